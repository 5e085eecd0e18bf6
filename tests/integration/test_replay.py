"""Dead letters that land in place: once, under their own coordinates, whatever happens on the way."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from pipelines import SmallPipeline
from replayed import KINDS, Replayed, event, row

from landonce.cli import letters as commands
from landonce.engine import driver
from landonce.engine import replay as replaying
from landonce.errors import Fenced
from landonce.local import LocalClickHouse, LocalKafka
from landonce.protocol.blocks import Kind
from landonce.protocol.ledger import Totals
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import load

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

BAD, BROKEN = b'{"id": "3", "name": "b3"}', b'{"id": 5, "name": "b5"'


@pytest.fixture
def make(
    kafka: LocalKafka,
    request: pytest.FixtureRequest,
    new_topic: Callable[..., str],
    new_table: Callable[[], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[str], Replayed]:
    """A pipeline that has landed records 0 to 7; 3 and 5 are dead letters."""

    def made(kind: str) -> Replayed:
        server: LocalClickHouse | None = request.getfixturevalue("clickhouse") if kind == "clickhouse" else None
        site = Replayed(kind, kafka, server, tmp_path, new_topic(), new_table(), capsys, monkeypatch)
        site.write_file()
        site.send(*(event(at) if at not in (3, 5) else {3: BAD, 5: BROKEN}[at] for at in range(8)))
        assert site.run() == Totals(landed=6, dead_lettered=2)
        return site

    return made


def fixed(site: Replayed, **values: object) -> Path:
    path = site.folder / "fixed.jsonl"
    lines = [
        {"topic": site.topic, "partition": 0, "offset": int(name[1:]), "value": value} for name, value in values.items()
    ]
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return path


def exact(site: Replayed) -> dict[str, int]:
    said = site.landonce("verify", "--values", "--json")
    assert said.code == 0, said.out + said.err
    return said.json["totals"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", KINDS)
def test_edited_values_land_in_place_once(make: Callable[[str], Replayed], kind: str) -> None:
    site = make(kind)
    before = site.state()
    assert exact(site)["dead_lettered"] == 2
    path = fixed(site, _3={"id": 3, "name": "b3"}, _5='{"id": 5, "name": 5}')
    said = site.landonce("dead replay", "--with", path, "--yes")
    assert said.code == 0, said.err
    assert "1 landed, 0 filtered, 1 stay dead letters" in said.out
    assert site.rows() == [row(at) for at in range(8) if at != 5]
    assert site.letters() == [5]
    (left,) = json.loads(site.landonce("dead show", "--json").out)["letters"]
    assert left["value"] == BROKEN.decode(), "the record itself is never lost"
    assert left["reason"].startswith("a corrected value was rejected: field 'name'")
    assert exact(site)["landed"] == 7
    after = site.state()
    assert after.positions == before.positions
    assert after.pending is None
    assert after.totals == Totals(landed=7, dead_lettered=1)
    assert site.left() == []
    again = site.landonce("dead replay", "--with", fixed(site, _3=None, _5=event(5).decode()), "--yes")
    assert "1 landed, 0 filtered, 0 stay" in again.out
    assert site.rows() == [row(at) for at in range(8)]
    assert site.letters() == []
    assert exact(site)["landed"] == 8
    twice = site.landonce("dead replay", "--yes")
    assert (twice.code, "NothingToDo" in twice.err) == (1, True)
    site.send(event(8))
    site.run()
    assert site.rows() == [row(at) for at in range(9)]
    assert exact(site)["landed"] == 9


class Killed(BaseException):
    """Stands for kill -9: nothing catches it."""


STEPS = (
    "acquire.before", "acquire.after", "survey.after", "prepare.before", "prepare.after", "write.before", "write.after", "commit.before",
    "commit.after", "record.before", "record.after", "letters.removing", "letters.removed",
)  # fmt: skip


@contextmanager
def killing(site: Replayed, step: str) -> Iterator[None]:
    """What is done here is cut short at a step, as by a kill."""

    def reach(place: str) -> None:
        if place == step:
            raise Killed(place)

    with site.monkeypatch.context() as patched:
        patched.setattr(driver, "reach", reach)
        patched.setattr(replaying, "reach", reach)
        with pytest.raises(Killed):
            yield


@pytest.mark.parametrize(
    "kind", [pytest.param(each, marks=[pytest.mark.long] if each != "sqlite" else []) for each in KINDS]
)
def test_killed_anywhere_every_letter_lands_once(make: Callable[[str], Replayed], kind: str) -> None:
    """One kill after the other, at every step; in turn the next command is a replay, a run, or a look. What a person edits
    meanwhile changes nothing of a plan that was made."""
    site = make(kind)
    landed = list(range(8))
    offset = 8
    for number, step in enumerate(STEPS):
        site.send(BAD, BROKEN, partition=0)
        site.run()
        path = fixed(site, **{f"_{offset}": event(offset).decode()})
        before = site.state().totals
        with killing(site, step):
            site.landonce("dead replay", "--with", path, "--yes")
        assert site.state().positions[0][1].committed == offset + 2
        planned = site.state().pending is not None
        assert planned == (kind != "iceberg" and step in STEPS[4:10])
        done = STEPS.index(step) >= (STEPS.index("record.after") if kind != "iceberg" else STEPS.index("commit.after"))
        if not planned:
            assert exact(site)["landed"] == len(set(landed) - {3, 5}) + done
        else:
            exact(site)
        if number % 3 == 1 and (planned or done):
            path.write_text("nothing that means anything")
            site.run()
        elif number % 3 == 2 and done:
            assert f"{2 + number + 1} dead letters" in site.landonce("dead list").out
        else:
            again = site.landonce("dead replay", "--with", path, "--yes")
            assert again.code in (0, 1), again.err
        landed.append(offset)
        offset += 2
        expected = sorted({*landed} - {3, 5})
        assert site.offsets() == expected
        assert site.letters() == sorted([3, 5, *range(9, offset, 2)])
        assert site.state().totals == Totals(landed=len(expected), dead_lettered=len(site.letters()))
        assert site.state().totals.landed == before.landed + 1
    assert exact(site)["landed"] == len(expected)
    site.send(event(offset))
    site.run()
    assert site.left() == []


WOULD_LAND = (
    "1 dead letters would land now, or be filtered: the file or the table changed since. landonce dead replay FILE"
)


@pytest.mark.parametrize(
    "kind",
    [pytest.param(each, marks=[pytest.mark.long] if each in ("clickhouse", "iceberg") else []) for each in KINDS],
)
def test_an_audit_is_exact_before_between_and_after_a_replay(make: Callable[[str], Replayed], kind: str) -> None:
    """The file is corrected so that one of the two letters would land. A row that became a letter by the same file stays a fault."""

    def audited() -> tuple[int, bool]:
        said = site.landonce("verify", "--values", "--json")
        assert said.json["exact"] == (said.code == 0)
        return said.code, WOULD_LAND in said.json["notes"]

    site = make(kind)
    assert audited() == (0, False)
    site.source = {"convert": "fit"}
    site.write_file()
    assert audited() == (0, True)
    for step in ("prepare.after", "commit.after", "letters.removing") if kind == "sqlite" else ("commit.after",):
        with killing(site, step):
            site.landonce("dead replay", "--yes")
        code, waits = audited()
        assert (code, waits) in ((0, True), (0, False)), step
    assert site.landonce("dead replay", "--yes").code in (0, 1)
    assert (audited(), site.letters()) == ((0, False), [5])
    site.forget(1)
    (path,) = site.dead.glob("*.jsonl")
    letter = json.loads(path.read_text().splitlines()[0])
    false = {**letter, "code": "malformed", "offset": 1, "value": event(1).decode()}
    path.with_name(path.name.replace("-0000", "-0001")).write_text(json.dumps(false) + "\n")
    said = site.landonce("verify", "--json")
    assert (said.code, said.json["totals"]["missing"], said.json["totals"]["unexpected"]) == (1, 1, 1)
    assert not any("would land now" in note for note in said.json["notes"])


def test_letters_that_cannot_be_replayed_would_land_too(make: Callable[[str], Replayed]) -> None:
    """A record with the same key may be newer: the note names another way."""
    site = make("upsert")
    site.source = {"convert": "fit"}
    site.write_file()
    said = site.landonce("verify")
    assert said.code == 0, said.out
    assert "1 dead letters would land now" in said.out
    assert "landonce dead export FILE, and produce them again" in " ".join(said.out.split())


@pytest.mark.parametrize("kind", ["sqlite", "clickhouse"])
def test_the_present_file_decodes_what_is_stored_even_if_kafka_deleted_it(
    make: Callable[[str], Replayed], kind: str
) -> None:
    site = make(kind)
    SmallPipeline.delete_records(site, 7)  # type: ignore[arg-type]
    site.source = {"convert": "fit"}
    site.write_file()
    said = site.landonce("dead replay", "--yes")
    assert "1 landed, 0 filtered, 1 stay dead letters" in said.out, said.err
    assert site.rows() == [row(at) for at in range(8) if at != 5]
    assert site.letters() == [5]
    said = site.landonce("dead replay", "--yes")
    assert "0 landed, 0 filtered, 1 stay dead letters" in said.out
    assert site.letters() == [5]


def test_a_plan_of_another_kind_is_settled_first(make: Callable[[str], Replayed]) -> None:
    site = make("sqlite")
    site.send(event(8))
    with killing(site, "write.before"):
        site.run()
    said = site.landonce("dead replay", "--yes")
    assert (said.code, "PlanPending" in said.err) == (3, True)
    assert (site.landonce("dead drop", "--yes").code, site.letters()) == (3, [3, 5])
    site.run()
    assert site.landonce("dead replay", "--with", fixed(site, _3=event(3).decode()), "--yes").code == 0
    assert site.rows() == [row(at) for at in range(9) if at != 5]


@pytest.mark.parametrize("step", ["prepare.after", "commit.after"])
def test_a_pending_replay_is_settled_by_a_command_and_not_cut_by_others(
    make: Callable[[str], Replayed], step: str
) -> None:
    site = make("clickhouse")
    with killing(site, step):
        site.landonce("dead replay", "--with", fixed(site, _3=event(3).decode()), "--yes")
    plan = site.state().pending
    assert plan is not None
    assert plan.kind is Kind.LETTERS
    for command in ("state rebase", "state accept-gap", "state fill"):
        said = site.landonce(command, "--yes")
        assert (said.code, "landonce dead replay" in said.err) == (3, True)
    dropped = site.landonce("state rebase", "--drop-pending", "--yes")
    assert dropped.code == 0, dropped.err
    assert site.letters() == [3, 5], "letters of a plan that is forgotten are letters still"
    assert "1 landed" in site.landonce("dead replay", "--with", fixed(site, _3=event(3).decode()), "--yes").out
    assert site.rows() == [row(at) for at in range(8) if at != 5], "rows that had landed are found, and not sent again"
    assert site.left() == []
    exact(site)


@pytest.mark.parametrize("step", ["prepare.after", "commit.after"])
def test_a_replay_is_forgotten_unless_a_table_holds_its_rows(make: Callable[[str], Replayed], step: str) -> None:
    site = make("fan-out")
    with killing(site, step):
        site.landonce("dead replay", "--with", fixed(site, _3=event(3).decode()), "--yes")
    dropped = site.landonce("state rebase", "--drop-pending", "--yes")
    if step == "commit.after":
        assert (dropped.code, "PlanPending" in dropped.err, "landonce dead replay" in dropped.err) == (3, True, True)
        assert site.landonce("dead replay", "--yes").code == 0, "it finishes the plan"
    else:
        assert dropped.code == 0, dropped.err
        assert site.letters() == [3, 5]
        assert "1 landed" in site.landonce("dead replay", "--with", fixed(site, _3=event(3).decode()), "--yes").out
    assert (site.rows(), site.letters()) == ([row(at) for at in range(8) if at != 5], [5])
    exact(site)


def test_lines_that_match_no_letter_are_refused(make: Callable[[str], Replayed]) -> None:
    site = make("sqlite")
    said = site.landonce("dead replay", "--with", fixed(site, _3="{}", _4="{}"), "--yes")
    assert (said.code, "line 2" in said.err, ":0:4" in said.err) == (2, True, True)
    path = fixed(site, _3="{}")
    path.write_text(path.read_text() * 2)
    assert "is also in line 1" in site.landonce("dead replay", "--with", path, "--yes").err
    assert "line 1" in site.landonce("dead replay", "--with", fixed(site, _3="{}"), "--code", "other", "--yes").err
    assert site.state().epoch == 1
    assert site.letters() == [3, 5]


@pytest.mark.parametrize(
    "kind",
    [pytest.param(each, marks=[pytest.mark.long] if each in ("clickhouse", "iceberg") else []) for each in KINDS],
)
def test_dropped_letters_are_accounted_for(make: Callable[[str], Replayed], kind: str) -> None:
    site = make(kind)
    assert site.landonce("dead drop", f"{site.topic}:0:4", "--yes").code == 1
    said = site.landonce("dead drop", f"{site.topic}:0:5", "--yes")
    assert said.code == 0, said.err
    assert site.letters() == [3]
    assert site.state().totals == Totals(landed=6, dead_lettered=1, filtered=1)
    verified = site.landonce("verify", "--json")
    assert (verified.code, verified.json["totals"]["filtered"]) == (0, 1)
    assert any("1 dead letters were dropped by an operator" in note for note in verified.json["notes"])
    assert "drop dead letters" in site.landonce("state show").out
    site.send(event(8))
    site.run()
    exact(site)
    assert site.left() == []


def test_a_replay_counts_what_it_landed_itself(
    make: Callable[[str], Replayed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run lands more while the command waits for an answer."""
    site = make("sqlite")

    def others(*_: object, **__: object) -> None:
        site.send(event(8), event(9))
        assert site.run() == Totals(landed=2)

    monkeypatch.setattr(commands, "confirm", others)
    said = site.landonce("dead replay", "--with", fixed(site, _3=event(3).decode()))
    assert "1 landed, 0 filtered, 0 stay dead letters" in said.out, said.err
    assert site.rows() == [row(at) for at in range(10) if at != 5]


def test_a_pipeline_that_never_had_a_letter_has_none_to_drop(make: Callable[[str], Replayed], tmp_path: Path) -> None:
    site = make("sqlite")
    before = site.state()
    site.dead_letters = {"path": "nothing"}
    site.write_file()
    said = site.landonce("dead drop", "--yes")
    assert (said.code, "NothingToDo" in said.err, "there is no such dead letter" in said.err) == (1, True, True)
    assert (site.state(), (tmp_path / "nothing").exists()) == (before, False)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("upsert", "could overwrite a newer change of its row"),
        ("wrapped", "is older than what was pushed after it, and could overwrite that"),
        ("dedup", "landing one now could land an event twice"),
    ],
)
def test_an_old_change_never_overwrites_a_newer_one(make: Callable[[str], Replayed], kind: str, why: str) -> None:
    """Nor does an event land that came again since. The letters stay, and can be produced again."""
    site = make(kind)
    site.send(event(3))
    site.run()
    rows, before = site.rows(), site.state()
    assert [row[2] for row in rows if row[2] == 3] == [3]
    path = fixed(site, _3=event(3, "old").decode())
    for words in (("--with", path), (), ("--again",)):
        said = site.landonce("dead replay", *words, "--yes")
        assert (said.code, "ReplayRefused" in said.err) == (3, True), said.out + said.err
        assert why in " ".join(said.err.split())
        assert "landonce dead export" in said.err
    assert (site.rows(), site.letters(), site.state()) == (rows, [3, 5], before)
    exported = site.landonce("dead export", "--to", site.folder / "again.jsonl")
    assert exported.code == 0, exported.err
    assert len((site.folder / "again.jsonl").read_text().splitlines()) == 2


_KEYED = {"iceberg": {"table": "db.t", "identity": "id", "changes": {"mode": "debezium"}}}
_COLLAPSING = {
    "clickhouse": {
        "url": "http://127.0.0.1:1",
        "table": "t",
        "mode": "upsert",
        "key": "id",
        "changes": {"mode": "debezium"},
        "engine": "CollapsingMergeTree(_sign)",
    }
}


@pytest.mark.parametrize("sink", [_KEYED, _COLLAPSING], ids=["iceberg-changes", "collapsing"])
def test_changes_without_versions_are_refused_before_the_target_is_asked(
    make: Callable[[str], Replayed], sink: dict[str, object]
) -> None:
    site = make("sqlite")
    site.more = {"sink": sink, "ledger": {"sqlite": "other.ledger"}} if sink is _COLLAPSING else {"sink": sink}
    site.write_file()
    for words in (("--with", fixed(site, _3=event(3).decode())), (), ("--again",)):
        said = site.landonce("dead replay", *words, "--yes")
        assert (said.code, "ReplayRefused" in said.err) == (3, True), said.out + said.err
        assert "could overwrite a newer change of its row" in " ".join(said.err.split())
        assert "produce the values to the topic again" in " ".join(said.err.split())
    assert site.letters() == [3, 5]


def test_a_running_driver_is_fenced(make: Callable[[str], Replayed]) -> None:
    """The driver that ran before cannot record anything any more."""
    site = make("clickhouse")
    held = site.state()
    assert "1 landed" in site.landonce("dead replay", "--with", fixed(site, _3=event(3).decode()), "--yes").out
    with closing(open_parts(load(site.file)).ledger) as ledger, pytest.raises(Fenced):
        ledger.change(held, replace(held, version=held.version + 1))
