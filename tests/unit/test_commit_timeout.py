"""The commit timeout: what goes ahead once it is over, which jobs are ended, what is said of the late ones, and who has none."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from landonce import errors
from landonce.engine.committing import CommitPerformer, CommitTimeout
from landonce.engine.driver import slow_words
from landonce.engine.publish import Letters
from landonce.engine.workers import Enough, Jobs
from landonce.protocol.blocks import Block, Plan
from landonce.protocol.ledger import LedgerState
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.receipt import BlockResult, Fate, Receipt
from landonce.protocol.snapshot import Snapshot
from landonce.protocol.steps import Write
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import parse

P, Q = Partition("t", 0), Partition("t", 1)
BLOCKS = tuple(
    Block((each,), "t", number=at) for at, each in enumerate((Range(P, 0, 5), Range(P, 5, 9), Range(Q, 0, 9)))
)
PLAN = Plan(3, BLOCKS, "f", 0)
FILE = """\
pipeline: p
source: {kafka: {bootstrap_servers: x, topics: [t], schema: "id BIGINT"}}
sink: %s
batch: {commit_timeout: 5m}
"""


def landed(*indexes: int) -> tuple[BlockResult, ...]:
    return tuple(BlockResult(index, Fate.LANDED, Receipt(1, 1)) for index in indexes)


class Workers:
    """Their results come one after the other; in the end, these are all that there are."""

    incoming = None

    def __init__(self, *results: BlockResult) -> None:
        self._results, self.asked = results, 0

    def write_until(self, recipe: object, tasks: Sequence[Any], enough: Enough) -> tuple[BlockResult, ...]:
        found: list[BlockResult] = []
        for each in self._results:
            if enough(found):
                break
            found.append(each)
        self.asked = len(found)
        assert len(found) == len(tasks) or enough(found), "the last one never comes"
        return tuple(found)


def wrote(workers: Workers, seconds: float = 0.0, indexes: tuple[int, ...] = (0, 1, 2)) -> dict[int, Fate]:
    performer = CommitPerformer(
        settings=Snapshot("t", "f", in_parts=True),
        opened=SimpleNamespace(own=None, tables=(), recipe=None),  # type: ignore[arg-type]
        workers=workers,  # type: ignore[arg-type]
        letters=Letters(Path("dead"), "p"),
        ledger=None,  # type: ignore[arg-type]
        timeout=CommitTimeout(seconds, workers),
    )
    tasks = [SimpleNamespace(index=index) for index in indexes]
    effect = Write(PLAN, indexes, in_parts=True)
    results = performer._write_in_parts(CommitTimeout(seconds, workers), None, tasks, effect)  # type: ignore[arg-type]
    return {each.index: each.fate for each in results}


def test_once_the_timeout_is_over_the_beginnings_of_partitions_go_ahead() -> None:
    assert wrote(Workers(*landed(1, 2))) == {0: Fate.SLOW, 1: Fate.SLOW, 2: Fate.LANDED}
    assert wrote(Workers(*landed(0, 2))) == {0: Fate.LANDED, 1: Fate.SLOW, 2: Fate.SLOW}, "the first one is enough"


def test_before_that_all_are_waited_for() -> None:
    assert set(wrote(Workers(*landed(0, 1, 2)), seconds=3600).values()) == {Fate.LANDED}


def test_what_is_in_doubt_is_left_behind() -> None:
    """One broker is away: what others hold goes ahead."""
    doubtful = BlockResult(0, Fate.DOUBTFUL)
    assert wrote(Workers(doubtful, *landed(1, 2))) == {0: Fate.DOUBTFUL, 1: Fate.LANDED, 2: Fate.LANDED}
    assert wrote(Workers(doubtful, *landed(2))) == {0: Fate.SLOW, 1: Fate.SLOW, 2: Fate.LANDED}


def test_what_landed_before_goes_ahead_at_once() -> None:
    """The blocks that are written again had their time."""
    workers = Workers()
    assert wrote(workers, indexes=(0, 1)) == {0: Fate.SLOW, 1: Fate.SLOW}
    assert workers.asked == 0


def test_an_error_that_halts_is_heard_with_all_results() -> None:
    halted = BlockResult(1, Fate.HALTED, error=errors.BadRecord("bad"))
    workers = Workers(halted, *landed(0, 2))
    assert wrote(workers) == {0: Fate.LANDED, 1: Fate.HALTED, 2: Fate.LANDED}


# Jobs.


def jobs(run: Callable[[Sequence[int]], tuple[BlockResult, ...]], count: int = 3, width: int = 3) -> Jobs[Any]:
    return Jobs(run, range(count), width)  # type: ignore[arg-type]


def never(_: object) -> bool:
    return False


def test_every_task_has_a_job_and_all_results_come() -> None:
    found = jobs(lambda tasks: landed(*tasks), count=9, width=2).results(never)
    assert sorted(each.index for each in found) == list(range(9))


def test_what_is_enough_ends_the_waiting_and_no_job_begins_any_more() -> None:
    goes, began = threading.Event(), []

    def run(tasks: Sequence[int]) -> tuple[BlockResult, ...]:
        began.extend(tasks)
        if tasks[0]:
            goes.wait()
        return landed(*tasks)

    running = jobs(run, count=9, width=2)
    assert [each.index for each in running.results(lambda done: len(done) == 1)] == [0]
    running.end(goes.set)
    assert not any(thread.is_alive() for thread in running._threads)
    assert len(began) < 9


def test_an_error_of_a_job_is_raised_once_and_others_are_left_alone() -> None:
    def run(tasks: Sequence[int]) -> tuple[BlockResult, ...]:
        raise errors.SparkLost("gone")

    running = jobs(run)
    with pytest.raises(errors.SparkLost):
        running.results(never)
    running.end(lambda: None)


# What is said, and who has none.


def test_ranges_that_touch_are_named_as_one_and_not_too_many() -> None:
    assert "batch 3 goes ahead without t[0] [0, 9), t[1] [0, 9). The next" in slow_words(3, BLOCKS)
    many = [Block((Range(Partition("t", number), 0, 1),), "t") for number in range(25)]
    assert slow_words(3, many).count("t[") == 20
    assert "[0, 1) and 5 more. " in slow_words(3, many)


@pytest.mark.parametrize(
    "sink", ['{clickhouse: {url: "http://x", table: t}}', '{sql: {url: "sqlite:///x.db", table: t}}']
)
def test_a_sink_whose_blocks_land_by_themselves_has_no_commit_timeout(sink: str, tmp_path: Path) -> None:
    with pytest.raises(
        errors.ConfigError, match=r"batch\.commit_timeout: is for sinks that make a batch visible in one commit"
    ):
        open_parts(parse(FILE % sink, tmp_path / "p.yaml"))


def test_dedup_has_none_either(tmp_path: Path) -> None:
    text = FILE % "{iceberg: {table: db.t}}"
    with pytest.raises(errors.ConfigError, match=r"batch\.commit_timeout: does not go with `dedup`"):
        parse(text + "dedup: {key: [id], ttl: 1d}\n", tmp_path / "p.yaml")
    assert parse(text, tmp_path / "p.yaml").batch.commit_timeout == 300.0


def test_of_a_plan_that_an_operator_gives_up_letters_of_late_blocks_never_count(tmp_path: Path) -> None:
    """These records are delivered by another plan, and become letters with it. The next start must not take them for this one's."""
    letters = Letters(tmp_path, "p")
    plan = Plan(3, BLOCKS[:1], "f", 0, late=(2,))
    held = LedgerState("p", "lineage", batch=3, pending=plan)
    stem = letters.stem(plan, held)
    for number in (0, 2):
        entry = f'{{"topic": "t", "partition": {number}, "offset": 0}}\n'
        (tmp_path / f"{stem}-{number:04d}d00000000.jsonl.staged").write_text(entry)
    letters.publish_given_up(held, held)
    assert [path.name for path in tmp_path.iterdir()] == [f"{stem}-0000d00000000.jsonl"]
