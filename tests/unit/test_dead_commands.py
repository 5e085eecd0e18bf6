"""`landonce dead`: letters are counted, shown and exported, by any filter, in memory that does not grow with their number."""

from __future__ import annotations

import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from landonce.cli import app
from landonce.engine.dead_letters import committed, place_of, stem
from landonce.engine.letter_choice import (
    EditedLine,
    Filters,
    chosen,
    fixed_lines,
    groups,
    parse_place,
    parse_since,
    readable,
    to_edit,
)
from landonce.errors import ConfigError, LandonceError, LettersUnreadable, NothingToDo

NOON = 1_763_467_200_000
"""2025-11-18 12:00 UTC, in milliseconds."""


def letter(offset: int, **more: object) -> dict[str, Any]:
    value = {"value": f'{{"id": "x{offset}"}}'} if "value_base64" not in more else {}
    return {
        "topic": "clicks",
        "partition": 0,
        "offset": offset,
        "timestamp": NOON + offset,
        "code": "wrong_type",
        "field": "id",
        "reason": f"field 'id' is text of {offset} characters",
        "key": None,
        **value,
        "headers": [],
        **more,
    }


def write(folder: Path, *letters: dict[str, Any], batch: int = 1, pipeline: str = "clicks") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{stem(pipeline, batch, '0123456789abcdef')}-0000d01234567.jsonl"
    (folder / name).write_text("".join(json.dumps(each) + "\n" for each in letters))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "clicks.yaml"
    path.write_text(
        "pipeline: clicks\n"
        "source: {kafka: {bootstrap_servers: 'localhost:1', topics: [clicks]}}\n"
        f"sink: {{sql: {{url: 'sqlite:///{tmp_path}/t.db', table: clicks}}}}\n"
        "dead_letters: {path: dead}\n"
    )
    return path


@pytest.fixture
def letters(file: Path) -> list[dict[str, Any]]:
    """Four of one cause, one of another topic, one in bytes, one without a code."""
    first = [letter(each) for each in range(4)]
    second = [
        letter(4, topic="views", partition=2, code="malformed", field="", reason="not JSON at character 3", value="{"),
        letter(5, code="not_utf8", field="", reason="not valid UTF-8", value_base64="/w=="),
        {key: value for key, value in letter(6).items() if key not in ("code", "field")},
    ]
    write(file.parent / "dead", *first)
    write(file.parent / "dead", *second, batch=2)
    write(file.parent / "dead", letter(99), pipeline="another")
    return [*first, *second]


def landonce(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["dead", *map(str, arguments)])


def error_of(result: Result) -> LandonceError:
    assert isinstance(result.exception, LandonceError), result.output
    return result.exception


def test_letters_are_counted_by_code_field_cause_and_topic(file: Path, letters: list[dict[str, Any]]) -> None:
    said = json.loads(landonce("list", file, "--json").stdout)
    assert said["letters"] == len(letters)
    most, *others = said["groups"]
    assert most == {
        "code": "wrong_type",
        "field": "id",
        "cause": "field 'id' is text of … characters",
        "topic": "clicks",
        "letters": 4,
        "first": "2025-11-18T12:00:00.000+00:00",
        "last": "2025-11-18T12:00:00.003+00:00",
        "example": {"place": "clicks:0:0", "reason": "field 'id' is text of 0 characters"},
    }
    assert {(each["code"], each["topic"], each["letters"]) for each in others} == {
        ("malformed", "views", 1),
        ("not_utf8", "clicks", 1),
        ("unknown", "clicks", 1),
    }


def test_people_read_the_same(file: Path, letters: list[dict[str, Any]]) -> None:
    said = landonce("list", file).stdout
    assert f"{len(letters)} dead letters" in said
    assert "4 × wrong_type, field id: field 'id' is text of … characters" in said
    assert "one of them: clicks:0:0" in said
    assert "0 dead letters" in landonce("list", file, "--topic", "nothing").stdout


@pytest.mark.parametrize(
    ("options", "offsets"),
    [
        (["--code", "wrong_type"], [0, 1, 2, 3]),
        (["--code", "unknown"], [6]),
        (["--field", "id"], [0, 1, 2, 3]),
        (["--topic", "views"], [4]),
        (["--partition", "2"], [4]),
        (["--since", "2025-11-18T12:00:00.003"], [3, 4, 5, 6]),
        (["--since", "2025-11-18T13:00:00.004+01:00"], [4, 5, 6]),
        (["--since", "1h"], []),
        (["--reason", "TEXT of 2"], [2]),
        (["--code", "wrong_type", "--reason", "of 3"], [3]),
        (["clicks:0:5"], [5]),
        (["clicks:0:4"], []),
    ],
)
def test_filters(file: Path, letters: list[dict[str, Any]], options: list[str], offsets: list[int]) -> None:
    del letters
    exported = landonce("export", file, *options, "--to", "-")
    assert [json.loads(line)["offset"] for line in exported.stdout.splitlines() if line.startswith("{")] == offsets


def test_a_letter_is_shown_whole(file: Path) -> None:
    headers = [{"name": "trace", "value": "7"}, {"name": "raw", "value_base64": "/w=="}]
    write(file.parent / "dead", letter(7, key="k", headers=headers, value='{"id":"x","more":[1]}'))
    said = landonce("show", file, "clicks:0:7").stdout
    for part in (
        "clicks:0:7   2025-11-18T12:00:00.007+00:00",
        "code:   wrong_type, field id",
        "reason: field 'id' is text of 7 characters",
        "key:    k",
        "  trace: 7",
        "  raw: 1 bytes: ff",
        '    "id": "x",',
    ):
        assert part in said


def test_show_stops_at_its_limit_and_says_so(file: Path, letters: list[dict[str, Any]]) -> None:
    shown = json.loads(landonce("show", file, "--limit", 2, "--json").stdout)
    assert shown["letters"] == letters[:2]
    assert "There are more" in landonce("show", file, "--limit", 2).output
    assert "There are more" not in landonce("show", file, "--limit", len(letters)).output


def test_what_is_not_there_is_said_in_words(file: Path) -> None:
    assert isinstance(error_of(landonce("show", file, "clicks:0:1")), NothingToDo)
    assert "TOPIC:PARTITION:OFFSET" in error_of(landonce("show", file, "clicks")).what
    assert "neither a moment nor a duration" in error_of(landonce("list", file, "--since", "soon")).what


def test_export_writes_what_comes_back_as_it_was(file: Path, letters: list[dict[str, Any]]) -> None:
    to = file.parent / "fixed.jsonl"
    assert landonce("export", file, "--to", to).exit_code == 0
    assert list(map(json.loads, to.read_text().splitlines())) == list(map(to_edit, letters))
    back = {each.place: each.value for each in fixed_lines(to)}
    assert back[("clicks", 0, 5)] == b"\xff"
    assert back[("views", 2, 4)] == b"{"
    assert len(back) == len(letters)
    assert list(committed(file.parent / "dead", "clicks")) == letters


def test_export_overwrites_nothing_that_a_person_edits(file: Path, letters: list[dict[str, Any]]) -> None:
    del letters
    to = file.parent / "fixed.jsonl"
    to.write_text("mine")
    assert "exists already" in error_of(landonce("export", file, "--to", to)).what
    assert to.read_text() == "mine"
    assert "cannot be written" in error_of(landonce("export", file, "--to", file.parent / "no" / "such")).what


def test_an_export_that_fails_names_the_file_that_is_to_blame_and_leaves_none(
    file: Path, letters: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    del letters
    to = file.parent / "fixed.jsonl"
    (unreadable,) = (file.parent / "dead").glob("clicks.batch-000000002-*")
    kept = unreadable.read_text()
    unreadable.unlink()
    unreadable.mkdir()
    error = error_of(landonce("export", file, "--to", to))
    assert isinstance(error, LettersUnreadable)
    assert unreadable.name in error.what
    assert not to.exists()
    unreadable.rmdir()
    unreadable.write_text(kept + "no letter")
    assert isinstance(error_of(landonce("export", file, "--to", to)), LettersUnreadable)
    assert not to.exists()
    unreadable.write_text(kept)

    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    opened = Path.open

    def open_(path: Path, *given: Any, **how: Any) -> Any:
        if path != to:
            return opened(path, *given, **how)
        opened(path, *given, **how).close()
        return Full()

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", open_)
        error = error_of(landonce("export", file, "--to", to))
    assert f"--to: {to} cannot be written: No space left on device" in error.what
    assert not to.exists()
    assert landonce("export", file, "--to", to).exit_code == 0


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ({"value": '{"id": 1}'}, b'{"id": 1}'),
        ({"value": {"id": 1, "name": "ü"}}, '{"id":1,"name":"ü"}'.encode()),
        ({"value": [1]}, b"[1]"),
        ({"value": None}, None),
        ({"value_base64": "/w=="}, b"\xff"),
        ({"value_base64": "/w==", "value": "x"}, b"\xff"),
    ],
)
def test_a_fixed_value_is_text_json_base64_or_nothing(tmp_path: Path, value: dict[str, Any], read: bytes) -> None:
    path = tmp_path / "fixed.jsonl"
    path.write_text(json.dumps({"topic": "t", "partition": 0, "offset": 7, "key": "ignored", **value}) + "\n\n")
    assert list(fixed_lines(path)) == [EditedLine(("t", 0, 7), read)]


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"topic": "t", "partition": 0, "value": "x"}',
        '{"topic": "t", "partition": 0, "offset": 1}',
        '{"topic": "t", "partition": "0", "offset": 1, "value": "x"}',
        '{"topic": "t", "partition": true, "offset": 1, "value": "x"}',
        '{"topic": 1, "partition": 0, "offset": 1, "value": "x"}',
        '{"topic": "t", "partition": 0, "offset": 1, "value_base64": "?"}',
    ],
)
def test_a_line_that_is_none_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "fixed.jsonl"
    path.write_text('{"topic": "t", "partition": 0, "offset": 0, "value": "x"}\n' + line)
    with pytest.raises(ConfigError, match="line 2, is not a letter"):
        list(fixed_lines(path))


def test_values_are_readable() -> None:
    assert readable(None) == "(none)"
    assert readable(b"") == ""
    assert readable(b"plain, text") == "plain, text"
    assert readable(b'{"a":1}') == '{\n  "a": 1\n}'
    assert readable(b"{broken") == "{broken"
    assert readable(b"\xff\x00") == "2 bytes: ff 00"
    assert readable(b"\xff" * 5000).endswith("… 5,000 bytes in all")


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1}',
        "[]",
        '{"a": [], "b": {}, "c": [1, [2, {"d": "}],:\\""}]], "e": null}',
        ' [1 , "\\u00fc\\\\", true]\n',
        "[[]]",
    ],
)
def test_json_is_indented_as_python_does(text: str) -> None:
    assert readable(text.strip().encode()) == json.dumps(json.loads(text), indent=2)


@pytest.mark.parametrize(
    "text",
    [
        '{"half": "\\ud800"}',
        '{"twice": 1, "twice": 2}',
        '{"digits": 0.10000000000000000555, "large": 1e400, "long": 12345678901234567890123, "zero": -0.0}',
    ],
)
def test_a_value_is_shown_as_the_record_holds_it(file: Path, text: str) -> None:
    write(file.parent / "dead", letter(7, value=text))
    said = landonce("show", file)
    assert said.exit_code == 0
    assert text.replace(" ", "") in "".join(said.stdout.split())
    assert json.loads(readable(text.encode())) == json.loads(text)


def test_what_a_record_holds_does_not_steer_the_terminal(file: Path) -> None:
    evil = "\x1b]0;title\x07\x1b[2J\x9b31m\r\x7f\x00"
    write(
        file.parent / "dead",
        letter(
            7, key=evil, value=f"a\tb\nc{evil}", reason=evil, headers=[{"name": evil, "value": evil}], topic=f"t{evil}"
        ),
    )
    shown, listed = landonce("show", file).stdout, landonce("list", file).stdout
    for said in (shown, listed):
        assert not [each for each in said if (each < " " and each not in "\n\t") or "\x7f" <= each <= "\x9f"]
        assert r"\x1b]0;title\x07\x1b[2J\x9b31m\x0d\x7f\x00" in said
    assert "\n  a" in shown
    assert "\n  c\\x1b" in shown


@pytest.mark.parametrize("value", ['"\\ud800"', '{"a": "\\udfff"}'])
def test_a_value_that_no_bytes_stand_for_is_named(tmp_path: Path, value: str) -> None:
    path = tmp_path / "fixed.jsonl"
    path.write_text('{"topic": "t", "partition": 0, "offset": 0, "value": ' + value + "}")
    with pytest.raises(ConfigError, match="line 1: the value holds half of a character") as refused:
        list(fixed_lines(path))
    assert "Nothing was changed" in refused.value.safe


def test_filters_say_what_they_take() -> None:
    everything = Filters("a", "b", "c", 1, NOON, "d")
    assert str(everything) == "--code a --field b --topic c --since 2025-11-18T12:00:00+00:00 --reason d --partition 1"
    assert str(Filters(place=("t", 0, 1))) == "t:0:1"
    assert parse_place("a@b.1:2:3") == ("a@b.1", 2, 3)
    assert parse_since("1m", now=61) == 1000


def test_a_damaged_moment_is_shown_as_it_is(file: Path) -> None:
    write(file.parent / "dead", letter(1, timestamp=10**18), letter(2, timestamp=None))
    said = json.loads(landonce("list", file, "--json").stdout)["groups"][0]
    assert said["first"] == str(10**18)


def test_memory_does_not_grow_with_the_number_of_letters(tmp_path: Path) -> None:
    """Thousands of causes become one group, and no letter is kept."""
    reasons = [f"`{each}` is wrong" for each in range(1_000)]
    for batch in range(1, 41):
        write(tmp_path, *(letter(each, reason=reasons[each], value="x" * 200) for each in range(1_000)), batch=batch)
    tracemalloc.start()
    found = groups(chosen([tmp_path], "clicks", Filters()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(each.letters for each in found) == 40_000
    assert found[0].cause == "other reasons"
    assert peak < 3_000_000, "40,000 letters take 16 MB as objects"
    assert place_of(letter(3)) == ("clicks", 0, 3)


def test_the_place_of_a_letter_is_printed_as_it_is(file: Path) -> None:
    """`:100:` between two colons is the name of an emoji, which a terminal library likes to show."""
    write(file.parent / "dead", letter(4711, partition=100, value='{"mood": ":smile:"}'))
    for options in ([], ["--json"]):
        assert "clicks:100:4711" in CliRunner().invoke(app, ["dead", "list", str(file), *options]).output
        assert ":smile:" in CliRunner().invoke(app, ["dead", "show", str(file), *options]).output
