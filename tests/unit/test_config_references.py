"""`${file:…}` and `${command:…}` in a pipeline file: their values arrive whole, mistakes are said, and no value is ever shown."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from landonce.config import references, secrets
from landonce.config.secrets import redact
from landonce.errors import ConfigError
from landonce.sinks.clickhouse.address import parse_url
from landonce.sinks.pipeline_file import Pipeline, parse

CANARY = "c4nary/with@odd:ch'a\"rs"


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_known", set())
    monkeypatch.setattr(references, "_printed", {})


def read(folder: Path, value: str, url: str = "http://localhost:8123/default") -> Pipeline:
    kafka = {"bootstrap_servers": "localhost:9092", "topics": ["clicks"], "options": {"client.rack": value}}
    sink = {"clickhouse": {"url": url, "table": "clicks"}}
    return parse(yaml.safe_dump({"pipeline": "p", "source": {"kafka": kafka}, "sink": sink}), folder / "p.yaml")


def value(config: Pipeline) -> Any:
    return config.source.kafka.options["client.rack"]


def printing(folder: Path, text: str, ending: str = "") -> str:
    """A command that prints the text, and counts how often it ran."""
    (folder / "text").write_text(text)
    (folder / "get secret.sh").write_text(f"echo ran >> runs; cat text; echo {shlex.quote(CANARY)} >&2; {ending}\n")
    return "${command:sh 'get secret.sh'}"


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
def test_a_file_beside_the_pipeline_file(tmp_path: Path, ending: str) -> None:
    (tmp_path / "se cret.txt").write_bytes((CANARY + ending).encode())
    config = read(tmp_path, "${file:se cret.txt}")
    assert value(config) == CANARY
    assert value(read(tmp_path, f"${{file:{tmp_path}/se cret.txt}}")) == CANARY


def test_several_lines_arrive_whole_and_each_of_them_is_secret(tmp_path: Path) -> None:
    text = "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49\nAwEHBG0wawIBAQQgc4na\n-----END PRIVATE KEY-----"
    (tmp_path / "key.pem").write_text(text + "\n")
    assert value(read(tmp_path, "${file:key.pem}")) == text
    assert redact("at AwEHBG0wawIBAQQgc4na of it") == "at *** of it"
    assert redact(json.dumps({"key": text})) == '{"key": "***"}'


def test_a_command_is_run_once_in_the_folder_of_the_file(tmp_path: Path) -> None:
    reference = printing(tmp_path, CANARY + "\n")
    for _ in range(2):
        assert value(read(tmp_path, f"a {reference} b")) == f"a {CANARY} b"
    assert (tmp_path / "runs").read_text() == "ran\n"


def test_no_shell_takes_the_words(tmp_path: Path) -> None:
    assert value(read(tmp_path, "${command:echo $HOME; touch x}")) == "$HOME; touch x"
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("kind", ["file", "command"])
def test_in_the_password_of_a_url_it_is_percent_encoded(tmp_path: Path, kind: str) -> None:
    reference = printing(tmp_path, CANARY) if kind == "command" else f"${{file:{tmp_path}/text}}"
    (tmp_path / "text").write_text(CANARY)
    config = read(tmp_path, "x", url=f"http://me:{reference}@host:8123/db")
    address = parse_url(config.sink.url.get_secret_value())  # type: ignore[attr-defined]
    assert (address.user, address.password, address.host, address.database) == ("me", CANARY, "host", "db")


@pytest.mark.parametrize("kind", ["file", "command"])
def test_whatever_it_gives_is_a_secret(tmp_path: Path, kind: str) -> None:
    """Under a name that suggests none, and however it is written."""
    reference = printing(tmp_path, CANARY) if kind == "command" else "${file:text}"
    (tmp_path / "text").write_text(CANARY)
    config = read(tmp_path, reference)
    for form in (CANARY, json.dumps(CANARY), repr(CANARY), f"--rack={CANARY}"):
        assert "c4nary" not in redact(form)
    assert "c4nary" not in repr(config) + str(config)


def test_the_control_a_value_of_an_innocent_variable_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RACK", "c4nary-rack")
    assert value(read(tmp_path, "${RACK}")) == "c4nary-rack"
    assert redact("on c4nary-rack") == "on c4nary-rack"


def test_a_variable_under_a_key_that_suggests_a_secret_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RACK", "c4nary-rack")
    document = {
        "pipeline": "p",
        "source": {"kafka": {"bootstrap_servers": "a:1", "topics": ["t"]}},
        "sink": {"wrapped": {"sink": "m:f", "options": {"api_token": "${RACK}"}}},
    }
    parse(yaml.safe_dump(document), tmp_path / "p.yaml")
    assert redact("on c4nary-rack") == "on ***"


def refusal(folder: Path, reference: str) -> str:
    with pytest.raises(ConfigError) as refused:
        read(folder, reference)
    assert refused.value.exit_code == 2
    assert refused.value.command
    said = f"{refused.value!r} {refused.value} {refused.value.__cause__} {refused.value.__context__ and ''}"
    assert "c4nary" not in said
    return str(refused.value)


def test_files_that_hold_no_value(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "bytes").write_bytes(b"\xff\xfec4nary")
    (tmp_path / "vast").write_text("c4nary" * 200_000)
    assert f"${{file:gone}}: there is no file {tmp_path}/gone" in refusal(tmp_path, "${file:gone}")
    assert "is empty" in refusal(tmp_path, "${file:empty}")
    assert "is not UTF-8" in refusal(tmp_path, "${file:bytes}")
    assert "more than" in refusal(tmp_path, "${file:vast}")
    assert "cannot be read: Is a directory" in refusal(tmp_path, "${file:.}")


def test_commands_that_give_no_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they print, and their words after the first, are not shown: they may hold the secret."""
    assert "the command ended with exit code 3" in refusal(tmp_path, printing(tmp_path, CANARY, "exit 3"))
    assert "printed nothing" in refusal(tmp_path, printing(tmp_path, ""))
    assert "there is no such command" in refusal(tmp_path, "${command:no-such-command --token c4nary}")
    assert "cannot be split" in refusal(tmp_path, "${command:echo 'c4nary}")
    assert "cannot be run: Permission denied" in refusal(tmp_path, f"${{command:{shlex.quote(str(tmp_path))} c4nary}}")
    monkeypatch.setattr(references, "_SECONDS", 0.1)
    assert "did not end within" in refusal(tmp_path, "${command:sh -c 'sleep 20; true' c4nary}")


def test_the_error_of_another_mistake_does_not_show_it(tmp_path: Path) -> None:
    (tmp_path / "text").write_text(CANARY)
    with pytest.raises(ConfigError) as refused:
        parse("pipeline: ${file:text}\n", tmp_path / "p.yaml")
    assert "c4nary" not in str(refused.value)
    assert "must be 1 to 100 letters" in str(refused.value)


def test_text_that_only_looks_like_a_reference_stays(tmp_path: Path) -> None:
    assert value(read(tmp_path, "a{2} $3 ${} ${a-b} $${x")) == "a{2} $3 ${} ${a-b} $${x"
