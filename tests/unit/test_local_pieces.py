"""The parts of the local stack that need no server: ports, process identity, jar lists, configuration, state."""

import hashlib
import os
import socket
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from landonce.local import LocalClickHouse, LocalStackError, LocalUser, jars, process
from landonce.local.clickhouse import user_xml
from landonce.local.kafka import LocalKafka, properties
from landonce.local.ports import END, FIRST, free_ports, is_free
from landonce.local.process import ProcessRef
from landonce.local.server import ServerState


def test_free_ports_are_different_free_and_not_ephemeral() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(FIRST <= port < END for port in ports)
    assert free_ports(0) == []


def test_a_port_in_use_is_not_free() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        assert not is_free(listener.getsockname()[1])


def test_a_process_is_known_by_its_start_as_well_as_its_id() -> None:
    me = ProcessRef.of(os.getpid())
    assert me.alive()
    assert not ProcessRef(me.pid, "another boot:1").alive()


def test_a_recycled_id_is_never_signalled() -> None:
    victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        process.end(ProcessRef(victim.pid, "another boot:1"), timeout=0.1)
        assert victim.poll() is None
        process.end(ProcessRef.of(victim.pid), timeout=5)
        assert victim.wait(5) < 0
    finally:
        victim.kill()
        victim.wait()


def test_a_zombie_counts_as_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    known = ProcessRef.of(child.pid)
    child.kill()
    assert known.wait_gone(5)
    assert Path(f"/proc/{child.pid}").exists()  # not reaped yet
    child.communicate()


def test_state_survives_a_round_trip(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    assert ServerState.read(file) == ServerState()
    state = ServerState({"http": 15000}, ProcessRef(7, "boot:1"))
    state.write(file)
    assert ServerState.read(file) == state


def test_the_jar_list_names_each_jar_once_with_its_hash() -> None:
    listed = jars.listed_jars()
    assert len({jar.file_name for jar in listed}) == len(listed) == 46
    assert all(len(jar.sha256) == 64 for jar in listed)
    assert ("org.apache.kafka", "kafka_2.13", jars.KAFKA_VERSION) in {jar.coordinates for jar in listed}


def test_the_ivy_file_asks_for_the_listed_jars_only() -> None:
    module = ElementTree.fromstring(jars.ivy_module(jars.listed_jars()))
    wanted = [element for element in module.iter("dependency") if element.get("transitive") == "false"]
    assert len(wanted) == len(jars.listed_jars())


def test_filling_the_cache_twice_fetches_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"jar"
    jar = jars.Jar("org/x/a/1/a-1.jar", hashlib.sha256(content).hexdigest())
    fetched: list[str] = []

    def download(wanted: list[jars.Jar], folder: Path) -> None:
        for one in wanted:
            fetched.append(one.path)
            (folder / one.file_name).write_bytes(content)

    monkeypatch.setenv("LANDONCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(jars, "listed_jars", lambda: [jar])
    monkeypatch.setattr(jars, "_resolve_with_ivy", download)
    assert jars.kafka_jars() == jars.kafka_jars()
    assert fetched == [jar.path]
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [f"kafka-{jars.KAFKA_VERSION}"]


def test_a_jar_that_differs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANDONCE_CACHE", str(tmp_path))
    monkeypatch.setattr(jars, "listed_jars", lambda: [jars.Jar("org/x/a/1/a-1.jar", "0" * 64)])
    monkeypatch.setattr(jars, "_resolve_with_ivy", lambda _, folder: (folder / "a-1.jar").write_bytes(b"bad"))
    with pytest.raises(LocalStackError, match=r"a-1\.jar differs"):
        jars.kafka_jars()
    assert list(tmp_path.iterdir()) == []


def test_extra_configuration_wins(tmp_path: Path) -> None:
    ServerState({"broker": 15000, "controller": 15001}).write(tmp_path / "state.json")
    server = LocalKafka(tmp_path, log_retention_ms=5, extra_config={"log.retention.check.interval.ms": "50"})
    config = server.config()
    assert config["log.retention.ms"] == "5"
    assert config["log.retention.check.interval.ms"] == "50"
    assert "127.0.0.1:15000" in config["listeners"]


def test_properties_escape_backslashes() -> None:
    assert properties({"a": "b\\c"}) == "a=b\\\\c\n"


def test_a_user_is_written_with_the_hash_of_its_password_only() -> None:
    element = ElementTree.fromstring(user_xml(LocalUser("u", "word", grants=("GRANT SELECT ON a.* ",))))
    assert "word" not in "".join(element.itertext())
    assert element.findtext("grants/query") == "GRANT SELECT ON a.* "
    assert element.find("access_management") is None


def test_the_default_user_has_no_password(tmp_path: Path) -> None:
    with pytest.raises(LocalStackError, match="name another user"):
        LocalClickHouse(tmp_path, password="word")


def test_a_server_that_never_started_says_so(tmp_path: Path) -> None:
    with pytest.raises(LocalStackError, match="never started"):
        _ = LocalKafka(tmp_path / "none").bootstrap_servers
    assert not (tmp_path / "none").exists()
