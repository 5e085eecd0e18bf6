"""The parts of the local stack that need no server: ports, process identity, jar lists, configuration, state."""

import hashlib
import os
import socket
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from iceberg_servers import ConnectorStatus, LocalConnect

from landonce import jars
from landonce.local import LocalClickHouse, LocalStackError, LocalUser
from landonce.local.clickhouse import user_xml
from landonce.local.kafka import LocalKafka
from landonce.local.server import END, FIRST, ProcessRef, ServerState, free_ports, is_free, properties


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
        ProcessRef(victim.pid, "another boot:1").end(timeout=0.1)
        assert victim.poll() is None
        ProcessRef.of(victim.pid).end(timeout=5)
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


@pytest.mark.parametrize(
    ("name", "count", "one"),
    [
        ("kafka", 46, ("org.apache.kafka", "kafka_2.13", jars.KAFKA_VERSION)),
        ("iceberg-spark", 3, ("org.apache.iceberg", "iceberg-spark-runtime-4.0_2.13", jars.ICEBERG_VERSION)),
        ("iceberg-rest", 25, ("org.apache.iceberg", "iceberg-core", jars.ICEBERG_VERSION)),
        ("kafka-tools", 1, ("org.apache.kafka", "kafka-tools", jars.KAFKA_VERSION)),
        ("iceberg-connect", 87, ("org.apache.iceberg", "iceberg-kafka-connect", jars.ICEBERG_VERSION)),
    ],
)
def test_a_list_names_each_jar_once_with_its_hash(name: str, count: int, one: tuple[str, str, str]) -> None:
    listed = jars.SETS[name].listed()
    assert len({jar.file_name for jar in listed}) == len(listed) == count
    assert all(len(jar.sha256) == 64 for jar in listed)
    assert one in {jar.coordinates for jar in listed}


def test_two_jars_of_one_module_are_told_apart_by_their_classifier() -> None:
    core = [jar for jar in jars.ICEBERG_REST.listed() if jar.coordinates[1] == "iceberg-core"]
    assert sorted(jar.classifier for jar in core) == ["", "tests"]


@pytest.mark.parametrize("wanted", jars.SETS.values(), ids=jars.SETS.keys())
def test_the_ivy_file_asks_for_the_listed_jars_only(wanted: jars.JarSet) -> None:
    module = ElementTree.fromstring(jars.ivy_module(wanted.listed()))
    asked = {
        (
            each.get("org"),
            each.get("name"),
            each.get("rev"),
            artifact.get("{http://ant.apache.org/ivy/maven}classifier"),
        )
        for each in module.iter("dependency")
        if each.get("transitive") == "false"
        for artifact in each.iter("artifact")
    }
    assert asked == {(*jar.coordinates, jar.classifier or None) for jar in wanted.listed()}


def test_filling_the_cache_twice_fetches_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"jar"
    jar = jars.Jar("org/x/a/1/a-1.jar", hashlib.sha256(content).hexdigest())
    fetched: list[str] = []

    def download(_: jars.JarSet, wanted: list[jars.Jar], folder: Path) -> None:
        for one in wanted:
            fetched.append(one.path)
            (folder / one.file_name).write_bytes(content)

    cache = tmp_path / "cache"
    monkeypatch.setenv("LANDONCE_CACHE", str(cache))
    monkeypatch.setattr(jars.JarSet, "listed", lambda _: [jar])
    monkeypatch.setattr(jars, "_resolve_with_ivy", download)
    assert jars.spark_jars() == jars.spark_jars() == (cache / f"iceberg-spark-{jars.ICEBERG_VERSION}" / "a-1.jar",)
    assert fetched == [jar.path]
    assert [path.name for path in cache.iterdir()] == [f"iceberg-spark-{jars.ICEBERG_VERSION}"]


def test_a_jar_that_differs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANDONCE_CACHE", str(tmp_path))
    monkeypatch.setattr(jars.JarSet, "listed", lambda _: [jars.Jar("org/x/a/1/a-1.jar", "0" * 64)])
    monkeypatch.setattr(jars, "_resolve_with_ivy", lambda _, __, folder: (folder / "a-1.jar").write_bytes(b"bad"))
    with pytest.raises(LocalStackError, match=r"a-1\.jar differs"):
        jars.jars_of(jars.KAFKA)
    assert list(tmp_path.iterdir()) == []


def test_a_jar_that_is_in_no_list_is_not_on_the_class_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANDONCE_CACHE", str(tmp_path))
    monkeypatch.setattr(jars.JarSet, "listed", lambda _: [jars.Jar("org/x/a/1/a-1.jar", "0" * 64)])
    jars.KAFKA.folder.mkdir()
    for name in ("a-1.jar", "stray.jar"):
        (jars.KAFKA.folder / name).touch()
    own, lent = jars.class_path(jars.KAFKA, from_pyspark=("hadoop-client-api",)).split(os.pathsep)
    assert own == str(jars.KAFKA.folder / "a-1.jar")
    assert Path(lent).is_file()


def test_extra_configuration_wins(tmp_path: Path) -> None:
    ServerState({"broker": 15000, "controller": 15001}).write(tmp_path / "state.json")
    server = LocalKafka(tmp_path, extra_config={"log.retention.ms": "5"})
    config = server.config()
    assert config["log.retention.ms"] == "5"
    assert "127.0.0.1:15000" in config["listeners"]


def test_a_failed_task_fails_its_connector_and_says_why_without_places_in_code() -> None:
    trace = (
        "ConnectException: exiting\n\tat a.B.c(B.java:1)\nCaused by: NoSuchTableException: db.t\n\tat d.E.f(E.java:2)\n"
    )
    status = ConnectorStatus("RUNNING", ("RUNNING", "FAILED"), trace)
    assert status.failed
    assert not status.running
    assert status.reason == "ConnectException: exiting Caused by: NoSuchTableException: db.t"
    assert not ConnectorStatus("RUNNING").running  # its tasks are not there yet


def test_the_sink_is_reported_its_catalog_and_what_is_extra_wins(tmp_path: Path) -> None:
    sink = LocalConnect(
        tmp_path,
        bootstrap_servers="127.0.0.1:1",
        topics=["a", "b"],
        tables=["db.t"],
        catalog={"type": "rest", "uri": "http://127.0.0.1:2"},
        extra_sink={"tasks.max": "3"},
    )
    config = sink.sink_config()
    assert config["topics"] == "a,b"
    assert config["iceberg.catalog.uri"] == "http://127.0.0.1:2"
    assert config["iceberg.control.topic"] == sink.control_topic
    assert config["tasks.max"] == "3"


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


def test_what_dies_with_its_parent_dies_with_it() -> None:
    program = (
        "import subprocess, sys\n"
        "from landonce.local.server import dying_with_parent\n"
        "child = subprocess.Popen(dying_with_parent(['sleep', '60']), start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = ProcessRef.of(int(parent.stdout.readline()))
    assert child.alive()
    parent.terminate()
    parent.wait()
    assert child.wait_gone(10)
