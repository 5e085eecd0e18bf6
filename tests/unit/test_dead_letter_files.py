"""Dead-letter files: staged, then published; a replay overwrites; what counts already is not repeated."""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest

from landonce.engine import replay
from landonce.engine.dead_letters import (
    DeadLetter,
    committed,
    files,
    kept,
    publish,
    publish_given_up,
    reasons,
    stage,
    stage_refused,
    stem,
    sync,
    with_refusals,
    write_letters,
)
from landonce.engine.publish import Letters
from landonce.engine.replay import LetterRecords, settle, take_dropped
from landonce.errors import DeadLettersMissing, DeadLettersUnwritable, Fenced, LettersUnreadable, RetentionOverrun
from landonce.protocol.blocks import Block, Kind, Plan
from landonce.protocol.ledger import LedgerState, Note, require_owner
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.reasons import Code, Counted, Reason
from landonce.protocol.receipt import Receipt
from landonce.read.kafka.records import Records, RecordSource
from landonce.sinks.deduplicating import InsertRecipe

PLAN = stem("clicks", 7, "0123456789abcdef")
HELD = LedgerState("clicks", "0123456789abcdef", batch=7)


def letter(offset: int, value: bytes | None = b"{", **more: object) -> DeadLetter:
    why = Reason(str(more.pop("reason", "broken")), Code.MALFORMED)
    fields = {"topic": "t", "partition": 0, "timestamp": 1, "reason": why, "key": None} | more
    return DeadLetter(offset=offset, value=value, **fields)  # type: ignore[arg-type]


def staged(folder: Path, plan: str, block: int, letters: list[DeadLetter], first: int = 0) -> str:
    return stage(folder, plan, block, letters, [Range(Partition("t", 0), first, 100)])


def begun(folder: Path, *journal: Note) -> Letters:
    """Of a driver that is about to take the pipeline, and believes that it has it."""
    letters = Letters(folder, "clicks", lambda: journal, lambda: HELD)
    letters.begin()
    return letters


def plan(*numbers: int, first: int = 0) -> Plan:
    """Blocks of a partition each, which they share where it does not matter."""
    return Plan(7, tuple(Block((Range(Partition("t", 0), first, 100),), "s", number=each) for each in numbers), "f", 0)


def offsets(folder: Path) -> list[int]:
    return [each["offset"] for each in committed(folder, "clicks")]


def test_a_driver_that_was_replaced_publishes_nothing(tmp_path: Path) -> None:
    """The newer driver recorded the plan, and its letter has landed by a replay since."""
    name = staged(tmp_path, PLAN, 0, [letter(1)])
    newer = replace(HELD, epoch=HELD.epoch + 1, owner="newer")
    letters = Letters(tmp_path, "clicks", load=lambda: newer)
    with pytest.raises(Fenced):
        letters.publish(plan(0), HELD, [name])
    assert offsets(tmp_path) == []


def test_a_driver_that_was_replaced_forgets_nothing_that_people_did_since(tmp_path: Path) -> None:
    """It wrote its plan, and slept. The newer driver recorded it, and its letter was replayed."""
    write_letters(tmp_path, f"{PLAN}.replayed", [{"topic": "t", "partition": 0, "offset": 1, "corrected": False}])
    driver = begun(tmp_path)
    with pytest.raises(Fenced):
        driver.delivered_again(
            plan(0), HELD, lambda: require_owner(HELD, replace(HELD, epoch=9, owner="newer")), rows_stay=False
        )
    assert len(list(replay.replayed(tmp_path, "clicks"))) == 1
    driver.delivered_again(plan(0), HELD, mine(driver), rows_stay=False)
    assert list(replay.replayed(tmp_path, "clicks")) == []


def test_only_published_letters_count(tmp_path: Path) -> None:
    name = staged(tmp_path, PLAN, 0, [letter(2), letter(1)])
    assert offsets(tmp_path) == []
    publish(tmp_path, PLAN, [name])
    assert offsets(tmp_path) == [1, 2]
    [path] = tmp_path.iterdir()
    assert re.fullmatch(r"clicks\.batch-000000007-01234567-0000d[0-9a-f]{8}\.jsonl", path.name)


def test_a_block_without_bad_records_has_no_file(tmp_path: Path) -> None:
    assert staged(tmp_path / "none", PLAN, 0, []) == ""
    publish(tmp_path / "none", PLAN, [""])
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("published_before", [False, True])
def test_a_replay_overwrites(tmp_path: Path, published_before: bool) -> None:
    names = [staged(tmp_path, PLAN, 0, [letter(1)]), staged(tmp_path, PLAN, 1, [letter(5)])]
    if published_before:
        publish(tmp_path, PLAN, names)
    replaying = begun(tmp_path)
    again = [staged(tmp_path, PLAN, 0, [letter(1)]), staged(tmp_path, PLAN, 1, [])]
    replaying.publish(plan(0, 1), HELD, again)
    assert offsets(tmp_path) == [1]
    assert len(list(tmp_path.iterdir())) == 1


def test_what_cannot_be_staged_again_is_kept(tmp_path: Path) -> None:
    names = [staged(tmp_path, PLAN, 0, [letter(1)]), staged(tmp_path, PLAN, 1, [letter(5), letter(6)])]
    publish(tmp_path, PLAN, names[:1])
    assert kept(tmp_path, PLAN, 1) == (names[1], 2)
    assert kept(tmp_path, PLAN, 2) == ("", 0)
    publish(tmp_path, PLAN, [kept(tmp_path, PLAN, 1)[0]])
    assert offsets(tmp_path) == [1, 5, 6]


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(DeadLettersUnwritable, match=f"{tmp_path}/file/dead: Not a directory"):
        staged(tmp_path / "file" / "dead", PLAN, 0, [letter(1)])


def test_reasons_are_counted_in_the_files_that_count(tmp_path: Path) -> None:
    assert reasons(tmp_path, "clicks", 10) == ()
    long = [letter(at, reason=f"longer than {at} bytes") for at in range(5)]
    publish(tmp_path, PLAN, [staged(tmp_path, PLAN, 0, [*long, letter(9, reason="no JSON")])])
    later = stem("clicks", 8, "0123456789abcdef")
    staged(tmp_path, later, 0, [letter(3, reason="not published")])
    assert reasons(tmp_path, "clicks", 10) == (
        Counted("longer than … bytes", 5, "longer than 0 bytes", Code.MALFORMED),
        Counted("no JSON", 1, "no JSON", Code.MALFORMED),
    )
    publish(tmp_path, later, [staged(tmp_path, later, 0, [letter(3, reason="newest")])])
    assert [each.cause for each in reasons(tmp_path, "clicks", 1)] == ["newest"], "of many letters, the newest"


def test_a_workers_file_that_the_driver_does_not_see_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeadLettersMissing, match=r"clicks\.batch-"):
        publish(tmp_path / "elsewhere", PLAN, [staged(tmp_path, PLAN, 0, [letter(1)])])


def test_files_of_others_are_nobodys_business(tmp_path: Path) -> None:
    (tmp_path / "fixed.jsonl").write_text("not a letter")
    other = stem("clicks.batch-1", 7, "fedcba98")
    publish(tmp_path, other, [staged(tmp_path, other, 0, [letter(9)])])
    publish(tmp_path, PLAN, [staged(tmp_path, PLAN, 0, [letter(1)])], read_again=True)
    assert offsets(tmp_path) == [1]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / f"{PLAN}-0003.jsonl").write_text('{"topic": ')
    with pytest.raises(LettersUnreadable, match="line 1"):
        offsets(tmp_path)


@pytest.mark.parametrize("content", [b'{"topic": "t", "partition": 0, "offset": 1, "value": "\xff"}\n', b"\0" * 512])
def test_a_file_whose_bytes_were_damaged_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / f"{PLAN}-0003.jsonl").write_bytes(content)
    with pytest.raises(LettersUnreadable, match="line 1"):
        offsets(tmp_path)


def test_a_file_that_goes_while_all_are_read_is_no_error(tmp_path: Path) -> None:
    """A replay beside an audit takes letters out of their files, and removes those that are empty then."""
    for block in (0, 1):
        publish(tmp_path, PLAN, [staged(tmp_path, PLAN, block, [letter(block)])])
    letters = committed(tmp_path, "clicks")
    assert next(letters)["offset"] == 0
    for path in files(tmp_path, "clicks"):
        path.unlink()
    assert list(letters) == []


def test_a_folder_that_only_workers_may_write_to_is_named(tmp_path: Path) -> None:
    name = staged(tmp_path, PLAN, 0, [letter(1)])
    (tmp_path / name).mkdir()
    with pytest.raises(DeadLettersUnwritable, match=f"dead letters in {tmp_path} cannot be published"):
        publish(tmp_path, PLAN, [name])
    (tmp_path / name).rmdir()
    publish(tmp_path, PLAN, [name])
    assert offsets(tmp_path) == [1]


def test_a_folder_whose_names_cannot_be_synced_is_fine() -> None:
    """So it is on SMB; `/proc` refuses it, too."""
    with pytest.raises(OSError, match="Invalid argument"):
        os.fsync(os.open("/proc", os.O_RDONLY))
    sync(Path("/proc"))


def test_another_ledgers_batch_of_the_same_number_is_left_alone(tmp_path: Path) -> None:
    publish(tmp_path, PLAN, [staged(tmp_path, PLAN, 0, [letter(1)])])
    other = stem("clicks", 7, "fedcba98")
    publish(tmp_path, other, [staged(tmp_path, other, 0, [letter(2)])])
    assert offsets(tmp_path) == [1, 2]


def test_what_counts_already_is_left_out_when_offsets_are_read_again(tmp_path: Path) -> None:
    publish(tmp_path, PLAN, [staged(tmp_path, PLAN, 0, [letter(1), letter(2)])])
    other = stem("clicks", 1, "fedcba98")
    for _ in range(2):
        publish(tmp_path, other, [staged(tmp_path, other, 0, [letter(1), letter(2), letter(3)])], read_again=True)
        assert sorted(offsets(tmp_path)) == [1, 2, 3]


def test_a_plan_that_is_published_twice_needs_no_letters_of_its_own(tmp_path: Path) -> None:
    """Its driver was killed before RECORD, and its receipts are in the rows of its blocks: nothing is staged again."""
    before_it(tmp_path, 1, 2)
    name = staged(tmp_path, PLAN, 0, [letter(1), letter(2)])
    for _ in range(2):
        driver = begun(tmp_path)
        driver.acquired(replace(HELD, pending=plan(0)))
        driver.publish(plan(0), HELD, [name])
        assert offsets(tmp_path) == [1, 2]
    driver.changed(plan(0), HELD)
    assert len(files(tmp_path, "clicks")) == 1, "a file without letters goes once the plan is recorded"


def test_a_file_without_letters_of_a_plan_that_is_recorded_goes_with_the_next_start(tmp_path: Path) -> None:
    before_it(tmp_path, 1)
    publish(tmp_path, PLAN, [staged(tmp_path, PLAN, 0, [letter(1)])], read_again=True)
    assert len(files(tmp_path, "clicks")) == 2
    begun(tmp_path).acquired(HELD)
    assert len(files(tmp_path, "clicks")) == 1
    assert offsets(tmp_path) == [1]


def test_nothing_of_a_record_is_lost(tmp_path: Path) -> None:
    bad = letter(1, value=b"\xff\x00", key=b"k\xc3\xbc", headers=(("h", b"x"), ("h", None), ("b", b"\xfe")))
    publish(tmp_path, PLAN, [staged(tmp_path, PLAN, 0, [bad, letter(2, value=None)])])
    first, second = committed(tmp_path, "clicks")
    assert first["value_base64"] == "/wA="
    assert first["key"] == "kü"
    assert first["headers"] == [
        {"name": "h", "value": "x"},
        {"name": "h", "value": None},
        {"name": "b", "value_base64": "/g=="},
    ]
    assert second["value"] is None


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("again", [[50], []], ids=["some are read again", "none are"])
def test_letters_of_offsets_that_are_not_read_again_stay(tmp_path: Path, published: bool, again: list[int]) -> None:
    """Kafka deleted the records below 20, and an operator gave them up: their letters are the only copy."""
    before = staged(tmp_path, PLAN, 0, [letter(5), letter(50)])
    if published:
        publish(tmp_path, PLAN, [before])
    replaying = begun(tmp_path)
    name = staged(tmp_path, PLAN, 0, [letter(each) for each in again], first=20)
    assert (name == before) == bool(again)
    replaying.publish(plan(0, first=20), HELD, [name])
    assert offsets(tmp_path) == [5, *again]
    assert len(list(tmp_path.iterdir())) == 1


def test_letters_of_a_partition_that_is_not_read_again_stay(tmp_path: Path) -> None:
    both = [Range(Partition("t", number), 0, 100) for number in (0, 1)]
    stage(tmp_path, PLAN, 0, [letter(5), letter(6, partition=1)], both)
    name = stage(tmp_path, PLAN, 0, [letter(6, partition=1)], both[1:])
    publish(tmp_path, PLAN, [name])
    assert [(each["partition"], each["offset"]) for each in committed(tmp_path, "clicks")] == [(0, 5), (1, 6)]


def test_a_replay_that_finds_no_letters_any_more_does_not_wait_for_their_file(tmp_path: Path) -> None:
    """The receipt may be all that is left after a crash: it names no file that publishing takes away."""
    publish(tmp_path, PLAN, [staged(tmp_path, PLAN, 0, [letter(1)])])
    receipt = staged(tmp_path, PLAN, 0, [])
    for _ in range(2):
        begun(tmp_path).publish(plan(0), HELD, [receipt])
        assert offsets(tmp_path) == []


def test_blocks_of_any_number_count(tmp_path: Path) -> None:
    names = [
        staged(tmp_path, PLAN, 10_000, [letter(4, reason="the last one")]),
        stage_refused(tmp_path, PLAN, 10_000, [letter(5, reason="refused")]),
        staged(tmp_path, PLAN, 9_999, [letter(3)]),
        staged(tmp_path, PLAN, 2, [letter(2)]),
    ]
    stage_refused(tmp_path, PLAN, 10_000, [letter(5), letter(6, reason="of an attempt that did not land")])
    begun(tmp_path).publish(plan(2, 9_999, 10_000), HELD, names)
    assert offsets(tmp_path) == [2, 3, 4, 5], "in the order of blocks"
    assert [each["offset"] for each, refused in with_refusals(tmp_path, "clicks") if refused] == [5]
    assert len(files(tmp_path, "clicks")) == len(list(tmp_path.iterdir())) == 4


def test_what_is_staged_of_a_plan_that_was_given_up_counts_once(tmp_path: Path) -> None:
    other = stem("clicks", 6, "fedcba98")
    publish(tmp_path, other, [staged(tmp_path, other, 0, [letter(1)])])
    publish(tmp_path, PLAN, [staged(tmp_path, PLAN, 0, [letter(2)])])
    publish(tmp_path, PLAN, [staged(tmp_path, PLAN, 1, [letter(7)])])
    staged(tmp_path, PLAN, 0, [letter(1), letter(2), letter(3)])
    staged(tmp_path, PLAN, 1, [])
    stage_refused(tmp_path, PLAN, 2, [letter(8)])
    stage_refused(tmp_path, PLAN, 2, [letter(8), letter(9)])
    for _ in range(2):
        publish_given_up(tmp_path, PLAN)
        assert sorted(offsets(tmp_path)) == [1, 2, 3, 7, 8, 9]
        assert not list(tmp_path.glob("*.staged"))
    publish_given_up(tmp_path / "none", PLAN)
    assert not (tmp_path / "none").exists()


def test_a_driver_publishes_what_an_operator_gave_up_with_its_plan(tmp_path: Path) -> None:
    """Where he said so, the folder may be another one."""
    staged(tmp_path, PLAN, 0, [letter(1)])
    said = Note("now", "accept-gap", begun(tmp_path).given_up(HELD))
    begun(tmp_path, said).acquired(replace(HELD, pending=plan(0)))
    assert offsets(tmp_path) == [], "it is still to be settled"
    begun(tmp_path, said).acquired(HELD)
    assert offsets(tmp_path) == [1]
    assert not list(tmp_path.glob("*.staged"))


def test_letters_of_blocks_that_were_taken_out_of_a_plan_count(tmp_path: Path) -> None:
    """All of their records are gone. Those of blocks that are still in it count if a receipt names them."""
    names = [staged(tmp_path, PLAN, number, [letter(number)]) for number in range(4)]
    begun(tmp_path).publish(plan(0, 2), HELD, names[:1])
    assert offsets(tmp_path) == [0, 1, 3]
    assert not list(tmp_path.glob("*.staged"))


@pytest.mark.parametrize(
    ("mine", "zombies"), [([7], []), ([], [7]), ([7], [8]), ([7, 8], [8])], ids=["none", "one", "another", "fewer"]
)
@pytest.mark.parametrize("published", [False, True], ids=["before I publish", "after it"])
def test_a_zombie_that_rejects_others_changes_nothing(
    tmp_path: Path, mine: list[int], zombies: list[int], published: bool
) -> None:
    """The table was altered while it was paused. It stages its letters, and then hears that it is fenced."""
    driver = begun(tmp_path)
    receipt = staged(tmp_path, PLAN, 0, [letter(each) for each in mine])
    if published:
        driver.publish(plan(0), HELD, [receipt])
    staged(tmp_path, PLAN, 0, [letter(each) for each in zombies])
    if not published:
        driver.publish(plan(0), HELD, [receipt])
        assert not list(tmp_path.glob("*.staged"))
    assert offsets(tmp_path) == mine
    begun(tmp_path).acquired(HELD)
    assert offsets(tmp_path) == mine, "nor does the next driver take them for letters that were given up"


def test_a_receipt_of_an_earlier_driver_names_its_letters(tmp_path: Path) -> None:
    """It landed the block and was killed. The next one reads the block again, rejects nothing, and hears of the receipt."""
    receipt = staged(tmp_path, PLAN, 0, [letter(7)])
    driver = begun(tmp_path)
    assert staged(tmp_path, PLAN, 0, []) == ""
    driver.publish(plan(0), HELD, [receipt])
    assert offsets(tmp_path) == [7]


def test_a_zombies_letters_of_offsets_that_are_gone_stay_where_they_are(tmp_path: Path) -> None:
    """It read them before Kafka deleted them. No receipt names them, and nobody else has them."""
    driver = begun(tmp_path)
    receipt = staged(tmp_path, PLAN, 0, [letter(50)], first=20)
    staged(tmp_path, PLAN, 0, [letter(5), letter(50)])
    for _ in range(2):
        driver.publish(plan(0, first=20), HELD, [receipt])
        begun(tmp_path).acquired(HELD)
        assert offsets(tmp_path) == [50]
        assert len(list(tmp_path.glob("*.staged"))) == 1


def test_a_zombie_takes_nothing_away_that_a_newer_driver_published(tmp_path: Path) -> None:
    zombie = begun(tmp_path)
    receipt = staged(tmp_path, PLAN, 0, [letter(8)])
    begun(tmp_path).publish(plan(0), HELD, [staged(tmp_path, PLAN, 0, [letter(7)])])
    assert offsets(tmp_path) == [7]
    staged(tmp_path, PLAN, 0, [letter(8)])
    zombie.publish(plan(0), HELD, [receipt])
    assert 7 in offsets(tmp_path)


def test_a_zombie_removes_nothing_that_a_newer_driver_staged(tmp_path: Path) -> None:
    """Where the table is the ledger. It was paused after it took the pipeline, and before it put the folder in order."""
    staged(tmp_path, stem("clicks", 6, "fedcba98"), 0, [letter(1)])
    zombie = begun(tmp_path)
    name = staged(tmp_path, PLAN, 0, [letter(7)])
    zombie.publish_left([], "", LedgerState("clicks", lineage="l"))
    assert [path.name for path in tmp_path.iterdir()] == [f"{name}.staged"]


def test_a_published_file_that_a_person_moved_away_has_a_way_on(tmp_path: Path) -> None:
    """The driver was killed before it recorded the batch, so the next one asks for the file again."""
    name = staged(tmp_path, PLAN, 0, [letter(1)])
    publish(tmp_path, PLAN, [name])
    (tmp_path / name).unlink()
    with pytest.raises(DeadLettersMissing, match=name) as caught:
        publish(tmp_path, PLAN, [name])
    assert f"`touch {tmp_path / name}`" in caught.value.command
    (tmp_path / name).touch()
    publish(tmp_path, PLAN, [name])
    assert offsets(tmp_path) == []


def at_once(*calls: Callable[[], object]) -> None:
    barrier = Barrier(len(calls))

    def call(each: Callable[[], object]) -> None:
        barrier.wait()
        each()

    with ThreadPoolExecutor(len(calls)) as pool:
        for done in [pool.submit(call, each) for each in calls]:
            done.result()


@pytest.mark.parametrize("read_again", [False, True])
def test_two_drivers_publish_the_same_plan_at_once(tmp_path: Path, read_again: bool) -> None:
    """One of them was superseded, and does not know it yet."""
    other = stem("clicks", 6, "fedcba98")
    publish(tmp_path, other, [staged(tmp_path, other, 0, [letter(1000)])])
    names = [staged(tmp_path, PLAN, number, [letter(number)]) for number in range(60)]
    at_once(*[lambda: publish(tmp_path, PLAN, names, read_again=read_again)] * 3)
    assert sorted(offsets(tmp_path)) == [*range(60), 1000]
    assert len(list(tmp_path.iterdir())) == 61


@dataclass(frozen=True)
class Kafka(RecordSource):
    """Has these offsets."""

    has: tuple[int, ...]
    gone_below: int = 0

    def read(self, ranges: tuple[Range, ...]) -> Iterator[Records]:
        for each in ranges:
            if each.first < self.gone_below:
                raise RetentionOverrun("deleted")
            found = [at for at in self.has if each.holds(at)]
            yield Records(each.partition, pa.array(found, pa.int64()), pa.array([b""] * len(found)), ())

    def require_same(self, topics: Mapping[str, str]) -> None: ...


def mine(letters: Letters) -> Callable[[], None]:
    return lambda: require_owner(HELD, letters.load())


AGAIN = Receipt(read=90, landed=90)
"""Of a block of which Kafka lacks some offsets."""


def before_it(folder: Path, *places: int) -> None:
    """Letters of an earlier ledger, which was lost."""
    other = stem("clicks", 3, "fedcba98")
    publish(folder, other, [staged(folder, other, 0, [letter(each) for each in places])])


@pytest.mark.parametrize("killed", ["never", "before RECORD", "after it"])
@pytest.mark.parametrize("staged_again", [True, False])
def test_a_letter_whose_record_lands_when_it_is_delivered_again_goes(
    tmp_path: Path, killed: str, staged_again: bool
) -> None:
    """1, 2 and 4 are letters. 1 lands, 2 is rejected again, and Kafka has no record at 4 any more: its letter is the only copy. A driver
    that is killed before RECORD does the same once more, whether its receipts are kept with the blocks or the blocks are written again."""
    before_it(tmp_path, 1, 2, 4)
    driver, source, pending = begun(tmp_path), Kafka((1, 2, 3)), replace(HELD, pending=plan(0))
    name = staged(tmp_path, PLAN, 0, [letter(2), letter(3)])
    receipt = replace(AGAIN, dead_letters=name)
    for _ in range(2 if killed == "before RECORD" else 1):
        driver = begun(tmp_path)
        driver.landing(plan(0), HELD, (receipt,), source, mine(driver))
        driver.publish(plan(0), HELD, [name])
        driver.changed(plan(0), pending)
        driver.settle_left(pending, owner=True)
        assert sorted(offsets(tmp_path)) == [1, 2, 3, 4], "the plan is not recorded"
        assert set(replay.handled(tmp_path, "clicks").landing) == {("t", 0, 1)}
        if staged_again:
            staged(tmp_path, PLAN, 0, [letter(2), letter(3)])
    if killed == "after it":
        begun(tmp_path).settle_left(HELD)
    else:
        driver.changed(plan(0), HELD)
    assert sorted(offsets(tmp_path)) == [2, 3, 4]
    assert not list(tmp_path.glob("*.landing"))
    driver.changed(plan(0), HELD)
    assert sorted(offsets(tmp_path)) == [2, 3, 4]


@pytest.mark.parametrize(
    ("receipt", "source", "left"),
    [
        (replace(AGAIN, read=100), Kafka(()), []),
        (AGAIN, Kafka((1, 2)), [4]),
        (AGAIN, Kafka((1, 2, 4), gone_below=1), []),
        (AGAIN, Kafka((1, 2, 4), gone_below=3), [1, 2, 4]),
    ],
    ids=["every offset was read", "one is gone", "all are there", "those below are gone"],
)
def test_only_letters_whose_records_were_read_again_go(
    tmp_path: Path, receipt: Receipt, source: Kafka, left: list[int]
) -> None:
    before_it(tmp_path, 1, 2, 4, 150)
    driver = begun(tmp_path)
    driver.landing(plan(0), HELD, (receipt,), source, mine(driver))
    driver.publish(plan(0), HELD, [])
    driver.changed(plan(0), HELD)
    assert offsets(tmp_path) == [*left, 150]


def test_letters_of_a_block_that_was_cut_off_stay(tmp_path: Path) -> None:
    """It was not ready in time, and another plan brings its records. What an attempt with it had listed is not so any more."""
    before_it(tmp_path, 60)
    driver = begun(tmp_path)
    whole = (replace(AGAIN, read=100),)
    driver.landing(plan(0), HELD, whole, Kafka(()), mine(driver))
    cut = replace(plan(0), blocks=(Block((Range(Partition("t", 0), 0, 50),), "s"),))
    driver.landing(cut, HELD, (replace(AGAIN, read=50),), Kafka(()), mine(driver))
    driver.changed(cut, HELD)
    begun(tmp_path).settle_left(HELD, owner=True)
    assert offsets(tmp_path) == [60]


@pytest.mark.parametrize("kind", [Kind.LETTERS, Kind.REPLAY])
def test_letters_stay_where_a_plan_delivers_no_offsets_again(tmp_path: Path, kind: Kind) -> None:
    """It lands letters itself; or only tables that were rolled back get the records again."""
    before_it(tmp_path, 1)
    driver = begun(tmp_path)
    driver.landing(replace(plan(0), kind=kind), HELD, (replace(AGAIN, read=100),), Kafka(()), mine(driver))
    driver.changed(replace(plan(0), kind=kind), HELD)
    assert offsets(tmp_path) == [1]


@pytest.mark.parametrize("how", ["by its driver", "by an operator", "the journal says so", "another plan came"])
def test_letters_stay_where_the_plan_was_given_up(tmp_path: Path, how: str) -> None:
    before_it(tmp_path, 1)
    driver = begun(tmp_path)
    driver.landing(plan(0), HELD, (replace(AGAIN, read=100),), Kafka(()), mine(driver))
    now, said = HELD, Note("now", "accept-gap", driver.given_up(HELD))
    if how == "by its driver":
        driver.discard(plan(0), HELD)
    elif how == "by an operator":
        driver.publish_given_up(replace(HELD, pending=plan(0)), HELD)
    elif how == "another plan came":
        now = replace(HELD, lineage="another")
    next_driver = begun(tmp_path, *([said] if how == "the journal says so" else []))
    next_driver.acquired(now)
    assert offsets(tmp_path) == [1]
    assert not list(tmp_path.glob("*.landing"))


def test_a_driver_that_was_replaced_lists_no_letters_that_are_about_to_go(tmp_path: Path) -> None:
    before_it(tmp_path, 1)
    driver = begun(tmp_path)
    driver.load = lambda: replace(HELD, epoch=HELD.epoch + 1, owner="newer")
    with pytest.raises(Fenced):
        driver.landing(plan(0), HELD, (replace(AGAIN, read=100),), Kafka(()), mine(driver))
    assert not list(tmp_path.glob("*.landing"))


def test_two_workers_with_the_same_process_id_stage_the_same_block(tmp_path: Path) -> None:
    """In two containers that share the folder."""

    def often() -> None:
        for _ in range(20):
            staged(tmp_path, PLAN, 0, [letter(1), letter(2)])

    at_once(often, often, often)
    publish(tmp_path, PLAN, [staged(tmp_path, PLAN, 0, [letter(1), letter(2)])])
    assert offsets(tmp_path) == [1, 2]
    assert len(list(tmp_path.iterdir())) == 1


def test_letters_that_land_may_stay_letters_whatever_the_file_says_of_bad_records(tmp_path: Path) -> None:
    """A plan of letters is never given up: what a ledger without it would mean is that they landed."""
    nothing: Any = None
    letters = Letters(tmp_path, "clicks", load=lambda: HELD)
    recipe = InsertRecipe(pipeline="clicks", halts=True, source=nothing, target=nothing, sink=nothing)
    (block,) = plan(0).blocks
    replayed = replace(plan(0), kind=Kind.LETTERS, blocks=(replace(block, shard="digest"),))
    made = letters.for_workers(recipe, replayed, HELD)
    assert not made.halts
    assert made.records == LetterRecords(tmp_path / f"{PLAN}.replay", "digest")
    assert letters.for_workers(recipe, plan(0), HELD).halts


def test_a_table_that_was_rolled_back_gets_its_rows_though_the_first_bad_record_halts_by_now(tmp_path: Path) -> None:
    """Its bad records were judged by the file as it was then, and are letters."""
    nothing: Any = None
    letters = Letters(tmp_path, "clicks", load=lambda: HELD)
    recipe = InsertRecipe(pipeline="clicks", halts=True, source=nothing, target=nothing, sink=nothing)
    again = letters.for_workers(recipe, replace(plan(0), kind=Kind.REPLAY), HELD)
    assert (again.halts, again.records) == (False, recipe.records)


def test_letters_stay_while_another_command_settles_the_same_replay(tmp_path: Path) -> None:
    """The other one has taken away what says which letters are still dead: without that, none may be removed."""
    entry = '{"topic": "t", "partition": 0, "offset": 2, "reason": "r", "value": "x", "changed": false}\n'
    (tmp_path / "p.batch-000000001-l-0000.jsonl").write_text(entry)
    (tmp_path / "p.batch-000000002-l.replay").write_text(entry)
    settle(tmp_path, "p.batch-000000002-l")
    assert (tmp_path / "p.batch-000000001-l-0000.jsonl").read_text() == entry


@pytest.mark.parametrize("landed_before", [False, True])
def test_a_command_that_was_stopped_brings_back_no_letter_that_landed_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, landed_before: bool
) -> None:
    """It settles a replay in which the letter could not land. While it is stopped, another command settles that one, and lands the letter."""
    first, second = (stem("clicks", number, "0123456789abcdef") for number in (2, 3))
    entry = {"topic": "t", "partition": 0, "offset": 2, "reason": "r", "value": "x", "corrected": False}

    def tried(plan_: str, *still: dict[str, Any]) -> None:
        write_letters(tmp_path, f"{plan_}.replay", [entry])
        write_letters(tmp_path, f"{plan_}.still", still)

    def others(step: str) -> None:
        if step != "letters.removing":
            return
        monkeypatch.setattr(replay, "reach", lambda _: None)
        settle(tmp_path, first)
        assert offsets(tmp_path) == [2], "it could not land"
        tried(second)
        settle(tmp_path, second)
        assert offsets(tmp_path) == []

    earlier = stem("clicks", 1, "0123456789abcdef")
    write_letters(tmp_path, f"{earlier}.replayed" if landed_before else f"{earlier}-0000d00000000.jsonl", [entry])
    tried(first, {**entry, "reason": "still"})
    monkeypatch.setattr(replay, "reach", others)
    settle(tmp_path, first)
    assert offsets(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == [f"{second}.replayed"]
    assert list(replay.replayed(tmp_path, "clicks")) == [entry]


def test_a_drop_that_was_stopped_takes_away_no_account_of_a_replay_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = {"topic": "t", "partition": 0, "offset": 2, "reason": "r", "value": "x", "corrected": False}
    listed, later = tmp_path / "clicks.drop-000000002-me.dropping", stem("clicks", 3, "0123456789abcdef")
    write_letters(tmp_path, listed.name, [{**entry, "file": "clicks.batch-000000001-me-0000.jsonl"}])
    write_letters(tmp_path, "clicks.batch-000000001-me-0000.jsonl", [entry])
    rewrite = replay._rewrite

    def stopped(*given: Any) -> set[Any]:
        monkeypatch.setattr(replay, "_rewrite", rewrite)
        take_dropped(listed)
        assert (offsets(tmp_path), listed.exists()) == ([], False)
        write_letters(tmp_path, f"{later}.replayed", [entry])  # delivered again, a letter again, and landed
        return rewrite(*given)

    monkeypatch.setattr(replay, "_rewrite", stopped)
    take_dropped(listed)
    take_dropped(listed)
    assert list(replay.replayed(tmp_path, "clicks")) == [entry]
    assert listed.with_suffix(".dropped").exists()


@pytest.mark.parametrize("decided", [True, False])
def test_letters_of_records_that_are_skipped_go_only_once_the_journal_says_so(tmp_path: Path, decided: bool) -> None:
    """The command was killed after its commit, or before it. Of another command's file, nobody knows yet."""
    name = staged(tmp_path, PLAN, 0, [letter(3), letter(7)])
    publish(tmp_path, PLAN, [name])
    listed = replay.list_skipped(tmp_path, "clicks", [Range(Partition("t", 0), 5, 9)], HELD)
    assert offsets(tmp_path) == [3, 7]
    journal = [Note("now", "seek", f"{listed.stem} lists their places.")] if decided else []
    letters = Letters(tmp_path, "clicks", lambda: tuple(journal))
    letters.settle_left(HELD)
    assert (offsets(tmp_path), listed.exists()) == (([3], False) if decided else ([3, 7], True))
    letters.begin()
    letters.settle_left(HELD, owner=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [name], "and nothing else is left"


def test_what_a_driver_staged_of_a_plan_that_it_gave_up_goes_once_its_records_were_read_again(tmp_path: Path) -> None:
    """It was killed before it discarded them. The records may be gone by then, so nothing goes before."""
    left = tmp_path / (staged(tmp_path, PLAN, 0, [letter(3), letter(50)]) + ".staged")
    other = tmp_path / (staged(tmp_path, stem("clicks", 6, "fedcba98"), 0, [letter(4, partition=1)]) + ".staged")
    damaged = tmp_path / (staged(tmp_path, stem("clicks", 5, "fedcba98"), 0, [letter(5)]) + ".staged")
    damaged.write_text("no letter")
    letters = begun(tmp_path)
    newer = tmp_path / (staged(tmp_path, stem("clicks", 9, "fedcba98"), 0, [letter(3)]) + ".staged")

    def land(batch: int, first: int, end: int) -> None:
        block = Block((Range(Partition("t", 0), first, end),), "s")
        name = staged(tmp_path, stem("clicks", batch, HELD.lineage), 0, [letter(3)]) if not first else ""
        letters.publish(Plan(batch, (block,), "f", 0), replace(HELD, batch=batch), [name])

    land(8, 0, 40)
    assert left.exists()
    land(9, 40, 50)
    assert left.exists()
    land(10, 50, 60)
    assert not left.exists()
    assert other.exists()
    assert damaged.exists()
    assert newer.exists(), "it came after this driver began"
    assert offsets(tmp_path) == [3]


def test_a_late_start_takes_away_only_what_was_there_before_it(tmp_path: Path) -> None:
    """Between its ACQUIRE and its tidying, a newer driver may have the pipeline, and letters on their way."""
    entry = '{"topic": "t", "partition": 0, "offset": 2, "reason": "r", "value": "x", "changed": false}\n'
    left, newer = (
        tmp_path / f"clicks.batch-00000000{number}-{owner}.replay" for number, owner in ((7, "old"), (8, "new"))
    )
    left.write_text(entry)
    letters = Letters(tmp_path, "clicks", load=lambda: HELD)
    letters.begin()
    newer.write_text(entry)
    letters.acquired(HELD)
    assert (left.exists(), newer.exists()) == (False, True)
