"""A broken sink for every case of a snapshot sink: the reference with one promise less. Nothing but a test of the kit may open one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from landonce.protocol.ledger import Note
from landonce.protocol.marks import Mark
from landonce.protocol.own_ledger import OwnView
from landonce.read.schema.fields import Field, Schema
from landonce.sinks.contract import Finding, Guarantee, Level
from landonce.sinks.snapshot import Origin, Seen, SnapshotSink
from landonce.testing.cases_snapshots import SnapshotSite
from landonce.testing.reference_sinks import FolderSink, FolderSite, FolderTable, newest, write_version


class Boasting(FolderSink):
    guarantee: ClassVar[Guarantee] = Guarantee.TRANSACTIONAL


@dataclass(frozen=True)
class Rooted(FolderSink):
    """Holds what cannot travel."""

    opened: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "opened", threading.Lock())


class Talkative(FolderSink):
    def __repr__(self) -> str:
        return "Talkative(password='s3cret-word')"


class Emptying(FolderTable):
    def create(self, columns: Schema) -> None:
        super().create(columns)
        number, version = self.newest()
        write_version(self.folder, number + 1, {**version, "files": []})


class Uncovered(FolderTable):
    def schema(self) -> Schema:
        return Schema((*super().schema().fields, Field("_offset", pa.int64())))


class Refusing(FolderTable):
    def check(self) -> tuple[Finding, ...]:
        return (Finding(Level.REFUSED, "never"),)


class Smoothing(FolderSink):
    """Nothing is the empty string."""

    def stage(self, rows: pa.Table, origin: Origin) -> tuple[tuple[Any, ...], int]:
        return super().stage(rows.set_column(4, "word", rows.column("word").fill_null("")), origin)


class FirstFile(FolderTable):
    """Commits one file of many."""

    def attempt(self, seen: Seen, mark: Mark, files: Sequence[str], note: Note | None) -> bool:
        return super().attempt(seen, mark, files[:1], note)


class Letterless(FolderTable):
    """Keeps the position, and forgets the dead letters."""

    def attempt(self, seen: Seen, mark: Mark, files: Sequence[str], note: Note | None) -> bool:
        return super().attempt(seen, replace(mark, letters=()), files, note)


class Idle(FolderTable):
    """Commits a batch only where there are files."""

    def attempt(self, seen: Seen, mark: Mark, files: Sequence[str], note: Note | None) -> bool:
        if not files and mark.state.batch:
            return True
        return super().attempt(seen, mark, files, note)


class Eager(FolderSink):
    """What is staged is committed at once."""

    def stage(self, rows: pa.Table, origin: Origin) -> tuple[tuple[Any, ...], int]:
        files, count = super().stage(rows, origin)
        number, version = newest(self.folder)
        write_version(self.folder, number + 1, {**version, "files": [*version["files"], *files]})
        return (), count


class Sweeping(FolderTable):
    """A commit takes in whatever lies in the folder."""

    def attempt(self, seen: Seen, mark: Mark, files: Sequence[str], note: Note | None) -> bool:
        known = seen.version[1]["files"]
        found = [each.name for each in (self.folder / "data").glob("*.parquet") if each.name not in known]
        return super().attempt(seen, mark, found, note)


class Rebasing(FolderTable):
    """A library that tries again by itself, on the newest version."""

    def attempt(self, seen: Seen, mark: Mark, files: Sequence[str], note: Note | None) -> bool:
        while not super().attempt(seen, mark, files, note):
            seen = Seen(seen.view, self.newest())
        return True


class RebasingOverOthers(FolderTable):
    """The same, unless another driver of the pipeline has committed."""

    def attempt(self, seen: Seen, mark: Mark, files: Sequence[str], note: Note | None) -> bool:
        while not super().attempt(seen, mark, files, note):
            now = self.look()
            if now.view.last != seen.view.last:
                return False
            seen = now
        return True


class LookingFirst(Rebasing):
    """Compares, and writes afterwards."""

    def attempt(self, seen: Seen, mark: Mark, files: Sequence[str], note: Note | None) -> bool:
        if self.newest()[0] != seen.version[0]:
            return False
        time.sleep(0.3)
        return super().attempt(seen, mark, files, note)


class Ownerless(FolderTable):
    """A mark does not say whose it is: every driver takes the last commit for its own."""

    def look(self) -> Seen | None:
        seen = super().look()
        if seen is None:
            return None
        return Seen(replace(seen.view, mark=self._mine(seen.view.mark), copy=self._mine(seen.view.copy)), seen.version)

    def _mine(self, mark: Mark | None) -> Mark | None:
        return replace(mark, snapshot=1) if mark is not None else None


class HeadOnly(FolderTable):
    """Looks for the mark in the last commit alone."""

    def look(self) -> Seen | None:
        seen = super().look()
        if seen is None:
            return None
        if seen.view.mark is None or seen.view.mark.snapshot == seen.version[0]:
            return seen
        return Seen(OwnView(seen.view.uuid), seen.version)


class OneForAll(FolderTable):
    """The marks of all pipelines have one name."""

    def __init__(self, folder: Path, pipeline: str) -> None:
        super().__init__(folder, "all")
        self.real = pipeline

    def mark_in(self, marks: dict[str, Any]) -> Mark | None:
        mark = super().mark_in(marks)
        return replace(mark, state=replace(mark.state, pipeline=self.real)) if mark is not None else None


class Forgetful(FolderTable):
    """Remembers what it saw when it was opened, and what it heard of since."""

    first: Seen | None = None

    def look(self) -> Seen | None:
        seen = super().look()
        if seen is None:
            return None
        self.first = self.first or seen
        return Seen(self.first.view, seen.version)

    def attempt(self, seen: Seen, mark: Mark, files: Sequence[str], note: Note | None) -> bool:
        done = super().attempt(seen, mark, files, note)
        if done and not files:
            self.first = super().look()
        return done


class Copied(FolderTable):
    """Takes the last mark for the truth, whatever became of its commit."""

    def look(self) -> Seen | None:
        seen = super().look()
        if seen is None:
            return None
        return Seen(replace(seen.view, mark=seen.view.copy), seen.version)


class InHistory(FolderTable):
    """Keeps the marks in the versions that made them."""

    def look(self) -> Seen | None:
        seen = super().look()
        if seen is None:
            return None
        mark = seen.view.mark
        if mark is not None and not (self.folder / "versions" / f"{1:08}").exists():
            return Seen(OwnView(seen.view.uuid), seen.version)
        return seen


class Trusting(FolderTable):
    """Where the history is gone, the last mark counts."""

    def look(self) -> Seen | None:
        seen = super().look()
        if seen is None:
            return None
        cut = not (self.folder / "versions" / f"{0:08}").exists()
        return Seen(replace(seen.view, mark=seen.view.copy if cut else seen.view.mark), seen.version)


class Nameless(FolderTable):
    """Every table has the same id, and remembers what was in the one before."""

    last: ClassVar[dict[Path, OwnView]] = {}

    def look(self) -> Seen | None:
        seen = super().look()
        if seen is None:
            return None
        view = replace(seen.view, uuid="table")
        if view.last is None and self.folder in self.last:
            view = self.last[self.folder]
        self.last[self.folder] = view
        return Seen(view, seen.version)


class Blind(FolderTable):
    def holds(self, labels: tuple[str, ...]) -> bool:
        return False


class Noteless(FolderTable):
    """Keeps the last note only."""

    def journal(self) -> tuple[Note, ...]:
        return super().journal()[-1:]


class Capped(FolderTable):
    """Keeps the last hundred notes."""

    def journal(self) -> tuple[Note, ...]:
        return super().journal()[-100:]


class RowsFirst(FolderTable):
    """Adds the files in one commit, and the mark in the next one."""

    def attempt(self, seen: Seen, mark: Mark, files: Sequence[str], note: Note | None) -> bool:
        number, version = seen.version
        if files:
            after = {**version, "files": [*version["files"], *files]}
            if not write_version(self.folder, number + 1, after):
                return False
            seen = Seen(seen.view, (number + 1, after))
        return super().attempt(seen, mark, (), note)


def with_table(kind: type[FolderTable]) -> Callable[[Path], SnapshotSite]:
    @dataclass(frozen=True)
    class Sink(FolderSink):
        opens: ClassVar[type[FolderTable]] = kind

    return lambda folder: FolderSite(folder, Sink)


def with_sink(kind: Callable[[Path, str], SnapshotSink[Any, Any]], secret: str = "") -> Callable[[Path], SnapshotSite]:
    return lambda folder: FolderSite(folder, kind, secret)


BROKEN_SNAPSHOTS: dict[str, Callable[[Path], SnapshotSite]] = {
    "the_guarantee_is_one_that_this_port_keeps": with_sink(Boasting),
    "a_sink_travels_to_the_workers": with_sink(Rooted),
    "no_secret_is_shown": with_sink(Talkative, "s3cret-word"),
    "a_table_is_made_once": with_table(Emptying),
    "the_schema_comes_back": with_table(Uncovered),
    "a_fit_table_is_not_refused": with_table(Refusing),
    "values_come_back_as_they_were": with_sink(Smoothing),
    "all_blocks_of_a_batch_land_together": with_table(FirstFile),
    "a_mark_comes_back_whole": with_table(Letterless),
    "a_batch_without_rows_moves_the_position": with_table(Idle),
    "what_is_staged_is_not_there": with_sink(Eager),
    "files_of_a_dead_driver_never_appear": with_table(Sweeping),
    "an_attempt_on_an_older_version_is_refused": with_table(Rebasing),
    "an_attempt_is_never_moved_to_a_newer_version": with_table(RebasingOverOthers),
    "of_attempts_at_once_one_takes_effect": with_table(LookingFirst),
    "a_driver_that_was_replaced_is_fenced": with_table(Ownerless),
    "commits_of_others_disturb_nothing": with_table(HeadOnly),
    "pipelines_in_one_table_do_not_mix": with_table(OneForAll),
    "a_lost_answer_is_found_out": with_table(Forgetful),
    "a_rollback_is_followed": with_table(Copied),
    "a_driver_at_work_notices_a_rollback": with_table(Copied),
    "the_position_survives_the_history": with_table(InHistory),
    "a_rollback_is_not_forgotten_with_the_history": with_table(Trusting),
    "another_table_of_the_same_name_is_noticed": with_table(Nameless),
    "rows_without_a_mark_are_seen": with_table(Blind),
    "the_journal_is_kept": with_table(Noteless),
    "what_operators_skipped_outlives_later_notes": with_table(Capped),
    "after_a_crash_at_any_line_rows_and_position_agree": with_table(RowsFirst),
}
