"""The worker's part of a sink that deduplicates: it drives `protocol.settle` against the target until the block has a fate.

Nothing here decides: it asks, waits and reports. A task that Spark runs a second time sends nothing, for its first run may have sent
already. The driver hears that there is doubt, and knows what to do.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import pyarrow as pa

from landonce import errors
from landonce.config.secrets import redact
from landonce.failpoints import reach
from landonce.protocol import settle
from landonce.protocol.blocks import Kind, table_token
from landonce.protocol.ranges import Partition, Range, label_of
from landonce.protocol.receipt import BlockResult, Fate, Receipt, Want
from landonce.protocol.settle import InsertStage, Mode, Problem, Reply, Settling
from landonce.protocol.target import TargetView
from landonce.read.block import ReadBlock, Reader, Rejected
from landonce.read.decoding import Identities, decode_by, decoder_of
from landonce.read.evolution import Evolution, merge, observed
from landonce.read.rows import fit_to
from landonce.read.sample import of_sample
from landonce.read.schema.fields import ANY_RECORD, MOST_DIGITS, Field, Schema
from landonce.sinks.contract import COORDINATES, BlockWriter, DeduplicatingSink, Finding, Insert, Target, wait_out
from landonce.sinks.run import Columns, OpenSink, Run, SparkNeeds, refuse_unfit
from landonce.sinks.worker import BlockWorker, OneTable, Refuse, Task, Wants, halted

_PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""Between sends that the target refuses. After the last one the driver takes over, which knows when to give up."""


@dataclass(frozen=True, kw_only=True)
class InsertTask(Task):
    """One block to be inserted."""

    token: str
    deadline: int
    mode: Mode
    kind: Kind
    final: bool = False
    """Tables were made and columns added already: what does not fit now waits no more."""

    def of(self, table: str) -> InsertTask:
        """The same for one of the block's tables."""
        token = table_token(self.token, self.block, table)
        return replace(self, token=token, block=replace(self.block, table=table))


@dataclass(frozen=True, kw_only=True)
class InsertRecipe(OneTable[InsertTask]):
    """Of a target that deduplicates."""

    sink: DeduplicatingSink
    wary: bool = False
    """Rows come through a shuffle from other executors. With one of those Spark loses a stage and runs all of its tasks again, and
    these do not say that they are run again: so an acknowledgement is checked by a probe."""

    def _decisive(self) -> tuple[object, ...]:
        keyed = (self.sink.key, repr(self.sink.changes)) if self.sink.changes_rows else ()
        return *super()._decisive(), *keyed

    @property
    def identities(self) -> Identities | None:
        if self.sink.changes is None:
            return None
        return Identities(self.source, self.decoding, self.sink.key, self.sink.changes)

    def worker(self, task: InsertTask) -> InsertWorker:
        return InsertWorker(self, task)

    def reader(self, task: InsertTask) -> Reader:
        decode = decode_by(self.source, self.decoding, self.sink.key, self.sink.changes)
        return Reader.of_one(task.block.table, decode, fit_to(self.target))

    @property
    def one_table(self) -> bool:
        """Whether every block has rows for the same one table."""
        return True

    def tables_of(self, task: InsertTask) -> tuple[str, ...]:
        """The tables that may hold rows of this block."""
        return (task.block.table,)

    def wants(self, task: InsertTask, block: ReadBlock) -> tuple[Wants, ...]:
        """What must be done to tables before this block can be written."""
        del task, block
        return ()


@dataclass(frozen=True)
class TableColumns:
    """One of several tables: what a record is decoded to for it, and what it takes."""

    name: str
    source: Schema
    target: Schema


@dataclass(frozen=True, kw_only=True)
class TablesRecipe(InsertRecipe):
    """Of a target with several tables, or with tables that evolve."""

    tables: tuple[TableColumns, ...] = ()
    declared: str = ""
    """The declared schema's fingerprint."""
    absent: tuple[tuple[str, str], ...] = ()
    """Tables that records name, and that neither exist nor can be made, each with the reason."""

    @property
    def describes_records(self) -> bool:
        return False

    @property
    def one_table(self) -> bool:
        return not self.sink.routing.many

    def _decisive(self) -> tuple[object, ...]:
        """What the file says, and the columns of the tables that it names, unless they evolve. Tables that records name come and go."""
        routing, named = self.sink.routing, self.sink.routing.static
        columns = [] if self.sink.evolve else [each for each in self.tables if each.name in named]
        prints = [(each.name, each.source.fingerprint(), each.target.fingerprint()) for each in columns]
        return self.sink.identity, routing.decisive(), self.declared, prints, self.select, self.where

    def with_tables(self, tables: Iterable[TableColumns]) -> TablesRecipe:
        """The same with these tables in the place of those of the same names."""
        mine = {each.name: each for each in (*self.tables, *tables)}
        known = tuple(mine[name] for name in sorted(mine))
        columns = {field.name: field for table in known for field in table.target.fields}
        if (by := self.sink.routing.field) is not None:
            columns.setdefault(by, Field(by, pa.string()))
        target = Schema(tuple(columns.values())) if columns else ANY_RECORD
        source = self.source if self.transforms and self.source != ANY_RECORD else target
        return replace(self, tables=known, source=source, target=target)

    def reader(self, task: InsertTask) -> Reader:
        return Reader(
            routing=self.sink.routing,
            format=self.decoding.format,
            decoders={each.name: decode_by(each.source, self.decoding) for each in self.tables},
            fits={each.name: fit_to(each.target) for each in self.tables},
            asking=not task.final,
            absent=dict(self.absent),
            payloads=self.sink.evolve and not task.final,
        )

    def tables_of(self, task: InsertTask) -> tuple[str, ...]:
        del task
        return tuple(each.name for each in self.tables)

    def wants(self, task: InsertTask, block: ReadBlock) -> tuple[Wants, ...]:
        if task.final:
            return ()
        wants = [Wants(table, tuple(sample)) for table, sample in sorted(block.missing.items())]
        sources = {each.name: each.source for each in self.tables}
        for name, payloads in sorted(block.payloads.items()):
            found = observed(payloads, sources[name], self.decoding.format, most_digits=MOST_DIGITS)
            if found and (possible := self.sink.can_change(sources[name], found)):
                wants.append(Wants(name, evolution=possible))
        return tuple(wants)


def recipe_of(run: Run, sink: DeduplicatingSink) -> InsertRecipe:
    """The recipe for the tables as they are now, for those who only look."""
    if not several(sink):
        with closing(sink.target()) as target:
            return insert_recipe(run, sink, target.schema())
    return tables_recipe(run, sink, [name for name in table_names(sink) if there(sink, name)])


def several(sink: DeduplicatingSink) -> bool:
    """Whether the sink has several tables, or tables that evolve."""
    return sink.routing.many or sink.evolve


def table_names(sink: DeduplicatingSink) -> tuple[str, ...]:
    """The tables that the file names, and those that records may name and that are there."""
    return tuple(dict.fromkeys((*sink.routing.static, *sink.existing())))


def there(sink: DeduplicatingSink, table: str) -> bool:
    with closing(sink.one(table).target()) as target:
        return target.exists()


def tables_recipe(run: Run, sink: DeduplicatingSink, names: Iterable[str]) -> TablesRecipe:
    """Of these tables, which are there."""
    by = sink.routing.field
    if run.selects and by is not None and "." in by:
        raise errors.ConfigError(f"sink: with `select`, records are routed by a column of its result, not by {by!r}.")
    source = run.selected_from if run.selects else run.declared or ANY_RECORD
    declared = run.declared.fingerprint() if run.declared is not None else ""
    recipe = TablesRecipe(**run.basics, source=source, target=ANY_RECORD, sink=sink, declared=declared)
    return recipe.with_tables(columns_of(run, sink, name) for name in names)


def columns_of(run: Run, sink: DeduplicatingSink, name: str) -> TableColumns:
    with closing(sink.one(name).target()) as target:
        taken = sink.taking(target.schema(), described(run, sink))
    source = taken if run.selects else run.source(taken)
    added = [each for each in taken.fields if sink.evolve and each.name not in source.by_name()]
    return TableColumns(name, replace(source, fields=(*source.fields, *added)), taken)


def insert_recipe(run: Run, sink: DeduplicatingSink, table: Schema) -> InsertRecipe:
    """What a record is decoded to and what the table takes, and that the one can become the other."""
    table = sink.taking(table, described(run, sink))
    run.refuse_misfits(table, sink.identity)
    wary = run.query is not None and not run.one_process
    recipe = InsertRecipe(**run.basics, source=run.source(table), target=table, sink=sink, wary=wary)
    if sink.changes_rows:
        refuse_key(recipe)
    return recipe


def described(run: Run, sink: DeduplicatingSink) -> Schema | None:
    """The fields of the rows that records hold, as the file or the format's own schema says, before any record is read."""
    if run.query is not None or run.selects:
        return None
    if run.declared is not None:
        return run.declared
    fields = run.basics["decoding"].format.described()
    if fields is None or sink.changes is None or sink.changes.mode != "debezium":
        return fields
    row = fields.by_name().get("after")
    if row is None or not pa.types.is_struct(row.type):
        return None
    return Schema(tuple(Field(each.name, each.type) for each in row.type))


def refuse_key(recipe: InsertRecipe) -> None:
    """Raises for a key by which no change can be decoded, before any record is read."""
    try:
        decoder_of(recipe.source, recipe.decoding, recipe.sink.key, recipe.sink.changes)
    except ValueError as reason:
        raise errors.ConfigError(
            f"key: {reason}.", command="correct `key` or `source.kafka.schema` in {file}"
        ) from None


@dataclass(frozen=True)
class InsertWorker(BlockWorker):
    """Sends and probes one block."""

    recipe: InsertRecipe
    task: InsertTask

    def reader(self) -> Reader:
        return self.recipe.reader(self.task)

    def wants(self, block: ReadBlock) -> tuple[Wants, ...]:
        return self.recipe.wants(self.task, block)

    def landed_anyway(self, rejected: Sequence[Rejected]) -> frozenset[Rejected]:
        """Nearly always one count says that none did. Rows that records change by a key are no proof, unless each change is a row of its own."""
        sink = self.recipe.sink
        if not settle.looks_for_rejected(self.task.mode) or (sink.changes_rows and not sink.versioned):
            return frozenset()
        found: set[Rejected] = set()
        for name in self.recipe.tables_of(self.task):
            found.update(_present(self.recipe.sink.one(name).writer(), dict(self.task.labels), rejected))
        return frozenset(found)

    def run_again(self) -> BlockResult:
        """Doubt. Where the first task may still run, this one returns only once nothing that was sent can take effect any more: if the
        first is done before, Spark ends this one."""
        if self.recipe.shuffled:
            with closing(self.recipe.sink.target()) as target:
                wait_out(target, self.task.deadline)
        return BlockResult(self.task.index, Fate.DOUBTFUL, why="Spark ran the task again")

    def landed_before(self) -> int:
        """A block that was sent in this very cut lands whole where the table has no partitions: then one row proves all. It proves nothing
        of other tables."""
        if self.task.mode is Mode.FIRST or self.task.kind is not Kind.DELIVER or not self.recipe.one_table:
            return 0
        writer = self.recipe.sink.writer()
        return writer.count(self.task.labelled) if writer.atomic else 0

    def write(self, block: ReadBlock, receipt: Receipt, refuse: Refuse | None) -> BlockResult:
        """One table after the other. The block has landed when all of them hold their rows; one that does not keeps the rest waiting."""
        del refuse
        names, settled = sorted(block.tables), list[Settling]()
        counts: list[tuple[str, int]] = []
        columns: list[tuple[str, tuple[str, ...]]] = []
        while (fate := settle.block_fate(settled, len(names))) is None:
            name = names[len(settled)]
            task, rows = self.task.of(name), block.rows(name)
            sink = self.recipe.sink.one(name)
            settling, reply = land(sink.writer(), task, rows, wary=self.recipe.wary, whole=sink.ordered)
            if settling.fate is not Fate.LANDED:
                return verdict(task, settling, reply, whole=sink.ordered)
            settled.append(settling)
            counts.append((name, rows.num_rows))
            if self.recipe.sink.evolve and rows.num_rows:
                columns.append((name, tuple(each for each in rows.column_names if each not in COORDINATES)))
        landed = receipt.landed + sum(count for _, count in counts) - block.shared
        by_table = () if self.recipe.one_table else tuple(counts)
        receipt = replace(receipt, landed=landed, rows=by_table, columns=tuple(columns))
        return BlockResult(self.task.index, fate, receipt)


def land(
    writer: BlockWriter, task: InsertTask, rows: pa.Table, *, wary: bool = False, whole: bool = False
) -> tuple[Settling, str]:
    """Sends and probes until the block's fate is known; returns it with what the target replied last, where it refused. `whole`: a block that
    is there in part is not filled up."""
    fill = not whole and (task.kind in (Kind.FILL, Kind.LETTERS) or writer.resend_harmless)
    suspect = task.mode is Mode.RESOLVE and task.block.generation == 0 and writer.suspects(task.deadline)
    settling = settle.begin(task.mode, fill=fill, wary=wary, suspect=suspect)
    if rows.num_rows == 0:
        return settle.nothing_to_land(settling), ""
    missing = rows
    refusals = 0
    while settling.fate is None:
        if settling.stage is InsertStage.SEND:
            reach("send.before")
            insert = Insert(task.token, task.deadline, uuid.uuid4().hex[:12])
            reply = writer.send(missing if settling.missing_only else rows, insert)
            reach("send.after")
            settling = settle.after_send(settling, reply)
            if reply is Reply.REFUSED:
                if refusals == len(_PAUSES):
                    raise errors.TargetUnavailable(f"the target keeps refusing the insert: {writer.said}")
                time.sleep(_PAUSES[refusals])
                refusals += 1
        else:
            reach("probe.before")
            probe = writer.probe(rows, task.labelled if task.kind is not Kind.LETTERS else places(rows))
            reach("probe.after")
            missing = rows.filter(probe.missing)
            settling = settle.after_probe(settling, probe.presence)
    return settling, writer.why_gone() if settling.fate is Fate.TOKEN_USED_UP else writer.said


def _present(writer: BlockWriter, labels: Mapping[str, str], records: Sequence[Rejected]) -> Iterator[Rejected]:
    """Those of these records that have a row. The target only counts, so they are halved until each is known."""
    partitions = (replace(each.partition, topic=label_of(labels, each.partition)) for each in records)
    places = [Range(at, each.offset, each.offset + 1) for at, each in zip(partitions, records, strict=True)]
    if not places or not writer.count(places):
        return
    if len(records) == 1:
        yield records[0]
        return
    half = len(records) // 2
    yield from _present(writer, labels, records[:half])
    yield from _present(writer, labels, records[half:])


def places(rows: pa.Table) -> tuple[Range, ...]:
    """The offsets of these rows alone, in ranges: between letters are rows that landed long ago."""
    found: list[Range] = []
    for topic, number, offset in zip(*(rows.column(name).to_pylist() for name in COORDINATES), strict=True):
        partition = Partition(topic, number)
        if found and found[-1].partition == partition and found[-1].end == offset:
            found[-1] = replace(found[-1], end=offset + 1)
        else:
            found.append(Range(partition, offset, offset + 1))
    return tuple(found)


def verdict(task: InsertTask, settling: Settling, reply: str, *, whole: bool = False) -> BlockResult:
    """A fate that is not `LANDED`, as the driver gets it."""
    if settling.problem is Problem.DUPLICATE:
        duplicate = errors.DuplicatePresent(
            f"block {task.block}: the target {task.block.table} holds some of its coordinates more than once.",
            safe="landonce wrote nothing more. Something else wrote these rows, or restored them beside the old ones.",
            command="landonce verify {file}   (lists the coordinates; remove the copies, then run again)",
        )
        return halted(task, duplicate)
    if settling.problem is Problem.PARTIAL:
        partial = errors.PartialPresence(
            f"block {task.block}: one partition of the table {task.block.table} holds some of its rows and lacks others. "
            "A block lands whole there or not at all, so somebody deleted rows, a TTL ran, or rows merged away.",
            safe="landonce wrote nothing.",
            command="put back the rows that were removed, then: landonce run {file}; or give the pipeline another `pipeline` name and an empty "
            "table in {file}"
            if whole
            else "landonce state fill {file}   (writes what is missing)",
        )
        return halted(task, partial)
    return BlockResult(task.index, settling.fate or Fate.DOUBTFUL, why=redact(reply))


class OpenDeduplicating(OpenSink):
    """A target that deduplicates, opened on the driver."""

    recipe: InsertRecipe

    def __init__(self, sink: DeduplicatingSink, run: Run) -> None:
        super().__init__(run)
        self.sink = sink
        self.target = sink.target()

    def add(self, wants: Iterable[Want]) -> bool:
        """Makes the tables and adds the columns that blocks wait for. Returns whether there are new tables."""
        raise ValueError(f"{self.sink} has one table that does not evolve, and blocks wait for {[*wants]}")

    def forget_absent(self) -> None:
        """A table that was not there, and could not be made, may be there now."""

    def columns_to_make(self) -> Columns | None:
        if not self.sink.create or self.target.exists():
            return None
        return self.run.columns(self.sink.creation)

    def spark(self) -> SparkNeeds:
        return SparkNeeds(("landonce.sinks.deduplicating",))

    def make_ready(self, columns: Columns | None) -> None:
        self.recipe = self._fit() if columns is None else self._made(columns())

    def _fit(self) -> InsertRecipe:
        refuse_unfit(self.target.check())
        return insert_recipe(self.run, self.sink, self.target.schema())

    def _made(self, columns: Schema) -> InsertRecipe:
        """Makes the table. One that turns out not to be fit is not left behind."""
        self.sink.creation(columns)
        self._examined(columns)
        self.sink.make(self.target, columns)
        try:
            self._fit()
            return self._examined(self.target.schema())
        except (errors.Halt, errors.ConfigError):
            self.target.take_back()
            raise

    def _examined(self, table: Schema) -> InsertRecipe:
        recipe = insert_recipe(self.run, self.sink, table)
        if recipe.transforms:
            self.run.examine(recipe)
        return recipe

    def close(self) -> None:
        self.target.close()


class Tables(Target):
    """All tables of a sink, as one target. Opened on the driver."""

    def __init__(self, sink: DeduplicatingSink) -> None:
        self._sink = sink
        self._targets: dict[str, Target] = {}
        self.written: set[str] = set(sink.routing.static)
        """The tables that this driver writes: only their rows are counted. Others may fit the template, and be somebody else's."""

    def one(self, table: str) -> Target:
        if table not in self._targets:
            self._targets[table] = self._sink.one(table).target()
        return self._targets[table]

    def now(self) -> int:
        """The clock is the target's, whichever table is asked; there need not be one yet."""
        named = sorted(self.written) or [self._sink.table.translate({ord("{"): "", ord("}"): ""})]
        return self.one(named[0]).now()

    def kill(self) -> None:
        for name in self._all():
            self.one(name).kill()

    def look(self, floors: Iterable[tuple[Partition, int]]) -> TargetView:
        """The furthest of all tables: what one of them may hold is compared in each."""
        asked, ends = tuple(floors), dict[Partition, int]()
        for name in self._there(self._all()):
            for partition, end in self.one(name).look(asked).ends:
                ends[partition] = max(end, ends.get(partition, 0))
        return TargetView(tuple(sorted(ends.items())))

    def count(self, ranges: Iterable[Range]) -> int:
        """While the ledger knows no table that records named, all that are there are counted: it may have been lost."""
        asked, named = tuple(ranges), frozenset(self._sink.routing.static)
        known = sorted(self.written) if frozenset(self.written) - named else self._all()
        return sum(self.one(name).count(asked) for name in self._there(known))

    def exists(self) -> bool:
        return any(True for _ in self._there(self._all()))

    def create(self, declared: Schema, *, order_by: str | None = None, partition_by: str | None = None) -> None:
        for name in self._sink.routing.static:
            self.one(name).create(declared, order_by=order_by, partition_by=partition_by)

    def schema(self) -> Schema:
        fields = {field.name: field for name in self._there(self._all()) for field in self.one(name).schema().fields}
        return Schema(tuple(fields.values()))

    def check(self) -> tuple[Finding, ...]:
        """Of the tables that the file names."""
        found = ((name, each) for name in self._sink.routing.static for each in self.one(name).check())
        return tuple(replace(each, what=f"{name}: {each.what}") for name, each in found)

    def close(self) -> None:
        for each in self._targets.values():
            each.close()

    def _all(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*table_names(self._sink), *sorted(self.written))))

    def _there(self, names: Iterable[str]) -> Iterable[str]:
        return (name for name in names if self.one(name).exists())


class OpenTables(OpenDeduplicating):
    """Several tables of a target that deduplicates, or tables that evolve, opened on the driver. Only the driver makes and changes them."""

    recipe: TablesRecipe

    def __init__(self, sink: DeduplicatingSink, run: Run) -> None:
        OpenSink.__init__(self, run)
        self.sink, self.target = sink, Tables(sink)
        self._filled: dict[str, frozenset[str]] = {}
        """The columns that rows were sent for, by table, as far as the ledger knew when the driver began. Not of tables that it made."""
        self.tables = self.target
        self._selected: Schema | None = None

    def columns_to_make(self) -> Columns | None:
        missing = self._missing()
        if not missing or not self.sink.create:
            return None
        return self.run.columns(lambda columns: [self.sink.one(name).creation(columns) for name in missing])

    def make_ready(self, columns: Columns | None) -> None:
        known = self.run.ledger.load()
        self._filled = {name: frozenset(mark.columns) for name, mark in known.tables} if known is not None else {}
        if columns is not None:
            made = columns()
            for name in self._missing():
                self._make(name, made)
        for name in self.sink.routing.static:
            refuse_unfit(self.tables.one(name).check())
        self.recipe = tables_recipe(self.run, self.sink, self.sink.routing.static)
        for name in [name for name, _ in known.tables] if known is not None else ():
            if self.sink.routing.could_make(name):
                self._open_for(name, [], make=False)
        self.forget_absent()

    def examine(self) -> None:
        if self.run.selects and self.sink.routing.template is not None:
            self._selected = self.run.select_columns()
        super().examine()

    def add(self, wants: Iterable[Want]) -> bool:
        """Records of new tables were only sampled so far. What cannot be made of them is a reason for dead letters, never for a halt."""
        samples: dict[str, list[bytes]] = {}
        evolutions: dict[str, list[Evolution]] = {}
        for each in (each for each in wants if isinstance(each, Wants)):
            if each.evolution is not None:
                evolutions.setdefault(each.table, []).append(each.evolution)
            else:
                samples.setdefault(each.table, []).extend(each.sample)
        opened = False
        for name, sample in sorted(samples.items()):
            opened |= self._open_for(name, sample)
            reach("open.table")
        for name, changes in sorted(evolutions.items()):
            self._change(name, merge(changes))
            reach("open.table")
        return opened

    def forget_absent(self) -> None:
        self.recipe = replace(self.recipe, absent=())

    def _missing(self) -> tuple[str, ...]:
        return tuple(name for name in self.sink.routing.static if not self.tables.one(name).exists())

    def _make(self, name: str, columns: Schema) -> None:
        """One that turns out not to be fit is not left behind."""
        target, sink = self.tables.one(name), self.sink.one(name)
        self._filled.pop(name, None)
        sink.creation(columns)
        sink.make(target, columns)
        reach("create.table")
        try:
            refuse_unfit(target.check())
        except errors.Halt:
            target.take_back()
            raise

    def _open_for(self, name: str, sample: list[bytes], *, make: bool = True) -> bool:
        """Opens a table that records name; makes it, if it may. Returns whether it is open now: it may have to evolve, whoever made it."""
        reason = f"there is no table {name}"
        try:
            target = self.tables.one(name)
            if make and self.sink.create and not target.exists():
                self._make(name, self._made_of(name, sample))
            if target.exists():
                refuse_unfit(target.check())
                self.tables.written.add(name)
                self.recipe = self.recipe.with_tables([columns_of(self.run, self.sink, name)])
                return True
        except (errors.ConfigError, errors.TableUnfit) as error:
            reason = f"the table {name} cannot take it: {_first_line(error)}"
        self.recipe = replace(self.recipe, absent=(*self.recipe.absent, (name, reason)))
        return False

    def _made_of(self, name: str, sample: list[bytes]) -> Schema:
        found = self._selected or self.run.landing
        try:
            return found or Schema(tuple(of_sample(sample).fields))
        except (errors.NothingToInfer, ValueError, RecursionError) as error:
            raise errors.ConfigError(f"no table {name} can be made of such records: {_first_line(error)}") from None

    def _change(self, name: str, wanted: Evolution) -> None:
        """Somebody else may have changed the table since: only what it still lacks is done."""
        possible = self.sink.can_change(columns_of(self.run, self.sink, name).source, wanted)
        refuse_gone(name, (path[0] for path, _ in possible.added), self._filled.get(name, frozenset()))
        if possible:
            self.sink.change(name, possible)
            refuse_unfit(self.tables.one(name).check(), safe="The columns were added, and no record was written.")
        self.recipe = self.recipe.with_tables([columns_of(self.run, self.sink, name)])


def refuse_gone(table: str, added: Iterable[str], filled: frozenset[str]) -> None:
    """Raises for a column that is about to be added and that the table had: rows that landed would not have their values there."""
    for column in sorted(filled.intersection(added)):
        raise errors.ColumnGone(
            f"{table} has no column {column} any more: it was dropped or renamed after landonce had filled it, and records still hold the "
            "field. A column that is added now would be empty in all rows that have landed.",
            safe="Nothing was added. The batch is pending, and no row of it was sent without the field.",
            command=f"if it was renamed, give {column} its name back (ALTER TABLE … RENAME COLUMN). If the old values may go, add it "
            f"yourself (ALTER TABLE … ADD COLUMN …). Then: landonce run {{file}}",
        )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
