"""What an operator may decide about a pipeline to Iceberg, whose tables carry the position, or a mark of their own."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from landonce.errors import ConfigError, NothingToDo, PositionUncertain
from landonce.protocol import operate
from landonce.protocol.ledger import Ledger, LedgerState
from landonce.protocol.marks import TableStatus, TableView, status_of
from landonce.protocol.operate import Ability, Decision, PastCommit, Return
from landonce.protocol.operate.decision import nothing_known
from landonce.protocol.ranges import Partition
from landonce.protocol.target import TargetView
from landonce.sinks.iceberg.catalog import catalog_errors
from landonce.sinks.iceberg.commit import IcebergTable, TableBranch, restate, returning
from landonce.sinks.iceberg.driver import file_recipe
from landonce.sinks.iceberg.files import WrittenFile
from landonce.sinks.iceberg.maintain.run import maintain
from landonce.sinks.iceberg.marks import history, last_rows
from landonce.sinks.iceberg.move_in.adopt import IcebergImport, Writer, adopt, beside
from landonce.sinks.iceberg.move_in.connect import Cluster, ConnectWriter
from landonce.sinks.iceberg.move_in.query import CheckpointFolder, QueryWriter
from landonce.sinks.iceberg.sink import IcebergSink, SeenTable, catalog_exists, survey, table_names
from landonce.sinks.operations import (
    UNCHANGED,
    Before,
    Choice,
    LedgerAddress,
    Operations,
    Upkeep,
    UpkeepReport,
    UpkeepWatch,
    carries_no_position,
)
from landonce.sinks.snapshot import TableLedger


@dataclass
class IcebergOperations(Operations):
    """For one table that is its own ledger, or for the tables of a fan-out, which carry marks beside an outside ledger."""

    sink: IcebergSink
    fan_out = True
    _vouching = False
    """The operator accepts the last commit, though the history that would show it is cut off."""
    no_fill = "there is nothing to fill: a commit to an Iceberg table lands whole, with its position, or not at all."
    instead = "roll the table back to a snapshot that holds the rows; `landonce run {file}` delivers the rest again"

    @property
    def observed(self) -> Ledger:
        """Where the table is its own ledger, a second object for it, which follows a rollback whatever the file says: what an operator looks
        at must not become what the next change is compared with."""
        return self.parts.ledger if self._own is None else self.sink.own_ledger(follow=True)

    @property
    def _own(self) -> TableLedger[WrittenFile] | None:
        return self.parts.ledger if isinstance(self.parts.ledger, TableLedger) else None

    def load(self, ledger: Ledger | None = None) -> LedgerState | None:
        """Does not create a catalog that does not exist."""
        return super().load(ledger) if self._own is None or catalog_exists(self.sink) else None

    def noticed(self, ledger: Ledger) -> str:
        return ledger.noticed if isinstance(ledger, TableLedger) else ""

    def kept(self) -> LedgerAddress:
        if self._own is None:
            return super().kept()
        own = survey(self.sink, self.sink.static)[0].own if catalog_exists(self.sink) else None
        table, branch = self.sink.static[0], self.sink.config.branch
        mark = own.valid if own is not None else None
        words = f"the table {table} itself, branch {branch}"
        if mark is not None:
            words += f", snapshot {mark.snapshot}" + (f", commit {mark.commit}" if mark.commit else "")
        kept = {
            "table": table,
            "branch": branch,
            "uuid": own.uuid if own is not None else None,
            "snapshot": mark.snapshot if mark is not None else None,
            "commit": mark.commit or None if mark is not None else None,
        }
        return LedgerAddress(words, kept)

    def fingerprint(self) -> str:
        return file_recipe(self.parts, self.sink).fingerprint()

    def tables(self, state: LedgerState | None) -> tuple[TableView, ...]:
        return tuple(each.view for each in self._seen(state))

    def _seen(self, state: LedgerState | None) -> tuple[SeenTable, ...]:
        """The tables of a fan-out as they are; none if the one table is the ledger."""
        if self._own is not None or not catalog_exists(self.sink):
            return ()
        return survey(self.sink, table_names(self.sink, state))

    def statuses(self, state: LedgerState) -> tuple[LedgerState, tuple[TableStatus, ...]]:
        views = self.tables(state)
        found = operate.known_state(state, views)
        return found, tuple(status_of(found, view) for view in views)

    def ahead(self, state: LedgerState, statuses: Iterable[TableStatus], partitions: Iterable[Partition]) -> TargetView:
        """The positions of tables of a fan-out that hold more of the pending plan than the ledger knows."""
        del partitions
        committed = state.committed()
        floors = (each for one in statuses if not one.behind for each in one.floors)
        return TargetView(tuple(sorted((partition, at) for partition, at in floors if at > committed[partition])))

    def change(self, state: LedgerState, decision: Decision) -> None:
        with self.committing() as place:
            super().change(state, decision)
            for each in decision.marks:
                restate(place(each.view.table), each.view, each.mark)

    @contextmanager
    def committing(self) -> Iterator[Callable[[str], TableBranch]]:
        """Gives the place of each table for commits in any format version. Spark is started only if a table needs it."""
        with self.sessions(self.sink.spark_conf()) as session:

            def place(table: str) -> TableBranch:
                return replace(self.sink.place(table), session=session)

            if self._own is not None:
                mine = place(self.sink.static[0])
                self._own.table = IcebergTable(mine, vouching=self._vouching)
            yield place

    def able(self) -> Ability:
        """One table that is its own ledger returns to an earlier snapshot, whatever its rows were changed by."""
        if self._own is not None:
            return Ability()
        return Ability(
            no_removal="rows of Iceberg tables go together with their snapshots, and a fan-out has several tables.",
            instead="roll the tables back to earlier snapshots; `landonce run {file}` delivers what the rollback removed again",
            keyed=self._keyed,
        )

    def history(self) -> Sequence[PastCommit] | None:
        if self._own is None:
            return None
        metadata = self.sink.place(self.sink.static[0]).load().metadata
        return history(metadata, self.sink.pipeline, self.sink.config.branch)

    def return_to(self, state: LedgerState, back: Return, decision: Decision) -> None:
        with self.committing() as place:
            assert self._own is not None
            mine, mark = place(self.sink.static[0]), back.mark
            self._own.table = IcebergTable(mine, lambda _: returning(mine, back.head, back.base))
            self._own.commit(
                state,
                decision.new,
                started=mark.started,
                letters=mark.letters,
                letters_in=mark.letters_in,
                tops=mark.tops,
                note=decision.note(),
            )

    def stay(self, owner: str) -> Choice:
        """Looks with a ledger of its own: the file may say that no rollback is followed. The same one makes the change, so that nothing
        is changed on top of what came after this look."""
        if self._own is None:
            raise NothingToDo(
                "`--stay` is for one table that is its own ledger: a table of a fan-out that was rolled back gets what it lacks.",
                safe=UNCHANGED,
                command="landonce run {file}",
            )
        ledger = self.sink.own_ledger(follow=True)
        state, last = self.load(ledger), ledger.last
        if state is None or last is None:
            raise carries_no_position()
        decision = operate.stay(state, last.state, owner)

        def change(decided: Decision) -> None:
            with self.committing() as place:
                mine = place(self.sink.static[0])
                ledger.table = IcebergTable(mine)
                ledger.change(state, decided.new, decided.note())

        return Choice(state, decision, change=change)

    def accept_position(self, table: str | None, owner: str, *, by_rows: bool) -> Choice:
        if self._own is not None:
            return self._accept_own(self._own, owner, by_rows=by_rows)
        state = self.required()
        asked = [each for each in self._seen(state) if table in (None, each.name)]
        if not asked:
            raise NothingToDo(f"the pipeline has no table {table}.", safe=UNCHANGED)
        doubted = [(each, each.own.last) for each in asked if each.own and each.own.last and each.view.uncertain]
        if not by_rows:
            return Choice(state, operate.accept_position(state, [(each.view, copy) for each, copy in doubted], owner))
        found = [(each.view, copy, self._last_rows(each, copy.state)) for each, copy in doubted]
        return Choice(state, operate.accept_rows(state, found, owner))

    def _accept_own(self, ledger: TableLedger[WrittenFile], owner: str, *, by_rows: bool) -> Choice:
        try:
            ledger.load()
        except PositionUncertain:
            self._vouching = True
            ledger.table = IcebergTable(self.sink.place(self.sink.static[0]), vouching=True)
        else:
            raise operate.nothing_uncertain()
        state = self.required()
        (seen,) = survey(self.sink, self.sink.static)
        if seen.own is None or seen.own.last is None:
            raise operate.nothing_uncertain()
        if not by_rows:
            return Choice(state, operate.accept_own_position(state, seen.own.last, owner))
        tops = self._last_rows(seen, state)
        decision = operate.accept_own_rows(state, tops, owner)

        def change(decided: Decision) -> None:
            with self.committing():
                ledger.set_position(state, decided.new, tuple(sorted(tops.items())), decided.note())

        return Choice(state, decision, change=change)

    def _last_rows(self, seen: SeenTable, state: LedgerState) -> dict[Partition, int]:
        assert seen.table is not None
        with catalog_errors(self.sink.spec):
            return last_rows(seen.table, self.sink.config.branch, state)

    def forget_table(self, table: str, owner: str, *, replay: bool) -> Choice:
        if self._own is not None:
            raise NothingToDo(
                "the table of this pipeline is its own ledger: a new table has no position, and gets everything.",
                safe=UNCHANGED,
                command="landonce run {file}",
            )
        state = self.required()
        known = table in dict(state.tables)
        view = survey(self.sink, [table])[0].view if known else TableView(table)
        source = self.parts.broker.survey(self.parts.config.source.kafka.topics) if replay else None
        return Choice(state, operate.forget_table(state, view, owner, replay=replay, source=source))

    def take_over(self, before: Before, owner: str) -> IcebergImport:
        named = [before.connector is not None, before.checkpoint is not None, before.nothing].count(True)
        if named != 1 or not before.only("connector", "checkpoint", "nothing", "control_topic", "group"):
            raise ConfigError(
                "name the previous writer with --from-connect NAME or --from-checkpoint PATH, or use --from-nothing. Other options are for "
                "other targets."
            )
        writer = self._writer(before)
        state = self.load()
        marked = (each.name for each in self._seen(state) if each.own is not None and each.own.last is not None)
        nothing_known(state, next(marked, ""))
        state = state or LedgerState(self.parts.config.pipeline, lineage=uuid.uuid4().hex)
        found = writer.look() if writer is not None else None
        view = self.parts.source()
        if found is None:
            start = self.parts.start
            return IcebergImport(self, None, state, None, beside(state, self.parts.begins(view), owner, start))
        return IcebergImport(self, writer, state, found, adopt(state, found, view, owner))

    def _writer(self, before: Before) -> Writer | None:
        kafka = self.parts.config.source.kafka
        if before.connector is not None:
            group = before.group or f"connect-{before.connector}"
            cluster = Cluster(kafka.bootstrap_servers, kafka.options, self.parts.consumer)
            return ConnectWriter(self.sink, cluster, self.parts.topics(), before.connector, group, before.control_topic)
        if before.checkpoint is not None:
            return QueryWriter(
                self.sink, self.parts.topics(), CheckpointFolder(before.checkpoint, self.sink.spec.properties)
            )
        return None

    def maintain(self, upkeep: Upkeep, watch: UpkeepWatch, tables: tuple[str, ...]) -> Sequence[UpkeepReport]:
        return maintain(self.parts, self.sink, upkeep, watch, self.sessions, tables)
