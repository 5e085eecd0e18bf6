"""Going back to an earlier commit of a table: which one it is, what comes again, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from landonce import errors
from landonce.protocol.ledger import LedgerState, Position, Totals
from landonce.protocol.marks import Mark
from landonce.protocol.operate import PastCommit, Return, refuse_undone, roll_back, skipped_ranges
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.source import Extent, SourceView

P, Q = Partition("t", 0), Partition("t", 1)
VIEW = SourceView("c", (("t", "id"),), ((P, Extent(0, 40)), (Q, Extent(0, 40))))


def said(p: int, q: int | None = 0, **changes: object) -> LedgerState:
    """The pipeline's state when it was there."""
    there = ((P, Position(0, p)), *(() if q is None else ((Q, Position(0, q)),)))
    state = LedgerState("p", "l", 7, "driver", 70, "c", (("t", "id"),), there, batch=p, totals=Totals(p + (q or 0)))
    return replace(state, **changes)  # type: ignore[arg-type]


def of(*commits: LedgerState | str) -> tuple[PastCommit, ...]:
    """A history, oldest first: a mark's state, or the operation of somebody else."""
    made = (
        PastCommit(number, f"time {number}", "append", Mark(each, snapshot=number))
        if isinstance(each, LedgerState)
        else PastCommit(number, f"time {number}", each, same_rows=each == "replace")
        for number, each in enumerate(commits)
    )
    return tuple(reversed(list(made)))


def back(
    to: dict[Partition, int],
    *commits: LedgerState | str,
    skipped: tuple[Range, ...] = (),
    topics: tuple[tuple[str, str], ...] = VIEW.topic_ids,
) -> Return:
    history = of(*commits)
    state = next(each.mark.state for each in history if each.mark is not None)
    extents = (*VIEW.extents, *((Partition(topic, 0), Extent(0, 40)) for topic, _ in topics if topic != "t"))
    return roll_back(state, replace(VIEW, topic_ids=topics, extents=extents), to, history, "op", skipped=skipped)


def test_to_the_newest_commit_that_is_not_beyond_the_place_in_any_partition() -> None:
    history = said(0), said(10, 5), said(20, 9), said(30, 9)
    found = back({P: 20}, *history)
    assert (found.base, found.head) == (2, 3)
    new = found.decision.new
    assert (new.committed(), new.totals, new.batch) == ({P: 20, Q: 9}, Totals(29), 31)
    assert (new.epoch, new.version, new.owner) == (8, 71, "op")
    assert found.decision.does == (
        "The table goes back to its snapshot 2 of time 2. 1 later snapshots are not current any more, and their rows go with them.",
        "Delivered again: t[0] [20, 30).",
    )
    assert found.decision.costs[0] == "At most 10 records are delivered again."
    found = back({P: 25, Q: 8}, *history)
    assert (found.base, found.mark.state) == (1, history[1])
    assert found.decision.new.committed() == {P: 10, Q: 5}
    assert "no snapshot ends in between: t[0] 10, t[1] 5." in found.decision.does[1]
    assert "24 records are delivered again (20 of t[0], 4 of t[1])." in found.decision.costs[0]
    assert back({P: 0}, *history).decision.new.committed() == {P: 0, Q: 0}


def test_what_is_below_the_place_and_was_skipped_stays_so() -> None:
    skipped = Range(P, 12, 17), Range(P, 22, 24), Range(Q, 6, 8)
    found = back({P: 20}, said(0, 5), said(10, 5), said(30, 9), skipped=skipped)
    assert found.decision.does[2:] == (
        "Delivered again: t[0] [10, 12).",
        "Delivered again: t[0] [17, 30).",
        "Delivered again: t[1] [5, 6).",
        "Delivered again: t[1] [8, 9).",
    )
    assert not set(skipped_ranges([found.decision.note()]))


def test_commits_of_others_stay_or_are_in_the_way() -> None:
    """A compaction is not: what it rewrote is there as it was."""
    found = back({P: 10}, said(10), "replace", "append", said(20), "replace", said(30), "replace")
    assert (found.base, found.head) == (2, 6), "with all that lies between two commits of this pipeline"
    assert "4 later snapshots" in found.decision.does[0]
    with pytest.raises(errors.SeekRefused, match=r"after snapshot 2 of time 2: 4 \(delete, time 4\)\."):
        back({P: 10}, said(10), "replace", "append", said(20), "delete", said(30))
    with pytest.raises(errors.SeekRefused, match=r"after snapshot 0 of time 0: 2 \(append, time 2\)"):
        back({P: 10}, said(10), said(20), "append")


def test_there_is_no_such_commit() -> None:
    with pytest.raises(
        errors.SeekRefused, match=r"the oldest one of this pipeline is of time 1, at t\[0\] 10, t\[1\] 3\."
    ):
        back({P: 9}, "append", said(10, 3), said(20, 3))
    with pytest.raises(errors.SeekRefused, match="it has none of this pipeline"):
        roll_back(said(20), VIEW, {P: 9}, of("append"), "op")
    for other in ({"topic_ids": (("t", "older"),)}, {"labels": (("t", "t@older"),)}):
        with pytest.raises(errors.SeekRefused, match="the oldest one of this pipeline is of time 1"):
            back({P: 9}, said(5, **other), said(10), said(20))


def test_never_behind_where_a_topic_began_again() -> None:
    """Not even to a commit from before the pipeline knew the topic: rows of the old topic would go, and nothing would bring them back."""
    other = Partition("u", 0)

    def also(state: LedgerState, committed: int, id_: str, **changes: object) -> LedgerState:
        positions = (*state.positions, (other, Position(0, committed)))
        return replace(state, topic_ids=(("t", "id"), ("u", id_)), positions=positions, **changes)  # type: ignore[arg-type]

    again = {"labels": (("u", "u@new"),)}
    taken, old = replace(said(0), positions=()), also(said(10), 5, "old")
    new = also(said(10), 0, "new", **again), also(said(20), 3, "new", **again)
    for before in (taken, said(0), said(5)):
        with pytest.raises(errors.SeekRefused, match=r"of time 2, at .* before a topic or partition began again"):
            back({P: 5}, before, old, *new, topics=(("t", "id"), ("u", "new")))
    assert back({P: 10}, taken, old, *new, topics=(("t", "id"), ("u", "new"))).base == 2
    with pytest.raises(errors.SeekRefused, match="before a topic or partition began again"):  # it is gone
        back({P: 5}, said(0, None), said(10), said(20, None))


def test_a_partition_that_was_added_later_had_not_begun() -> None:
    found = back({P: 10}, said(10, None), said(20, 9))
    assert found.decision.new.committed() == {P: 10, Q: 0}
    assert found.decision.does[2:] == ("Delivered again: t[0] [10, 20).", "Delivered again: t[1] [0, 9).")


def test_kafka_must_have_what_comes_again() -> None:
    state, history = said(30, 9), of(said(10, 9), said(30, 9))
    for begins, there in ((11, False), (10, True)):
        view = replace(VIEW, extents=((P, Extent(begins, 40)), (Q, Extent(20, 40))))
        if there:
            assert roll_back(state, view, {P: 15}, history, "op").base == 0
        else:
            with pytest.raises(
                errors.SeekRefused, match=r"t\[0\]: .* of time 0, at offset 10, and Kafka begins at 11 now"
            ):
                roll_back(state, view, {P: 15}, history, "op")


def test_a_topic_that_the_file_names_no_more_is_in_the_way() -> None:
    """Unless nothing of it goes."""
    other = Partition("u", 0)

    def also(state: LedgerState, committed: int) -> LedgerState:
        positions = (*state.positions, (other, Position(0, committed)))
        return replace(state, topic_ids=(("t", "id"), ("u", "its")), positions=positions)

    with pytest.raises(
        errors.SeekRefused, match=r"u\[0\]: .* of time 0, at offset 5, and the pipeline does not read"
    ) as refused:
        back({P: 10}, also(said(10), 5), also(said(20), 9))
    assert "name topic u in {file} again" in refused.value.command
    assert back({P: 10}, also(said(10), 9), also(said(20), 9)).decision.new.committed() == {P: 10, Q: 0, other: 9}


def test_one_command_goes_back_or_forwards() -> None:
    with pytest.raises(errors.SeekRefused, match="goes back or forwards"):
        back({P: 9, Q: 10}, said(0), said(10))
    with pytest.raises(errors.NothingToDo, match="there already"):
        back({P: 10, Q: 0}, said(0), said(10))
    with pytest.raises(errors.SeekRefused, match="no position in u"):
        back({Partition("u", 0): 1}, said(0), said(10))
    with pytest.raises(errors.TopicRecreated):
        roll_back(said(10), replace(VIEW, topic_ids=(("t", "other"),)), {P: 1}, of(said(0), said(10)), "op")


def test_letters_that_were_replayed_since_are_in_the_way() -> None:
    refuse_undone([])
    with pytest.raises(errors.SeekRefused, match=r"the first of them t\[0\] 3\.") as refused:
        refuse_undone([(Q, 1), (P, 5), (P, 3)])
    assert "--to-offset t:0:3 --remove-rows" in refused.value.command
