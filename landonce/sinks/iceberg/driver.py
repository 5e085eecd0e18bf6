"""The tables of a pipeline as its driver sees them: created, evolved, looked at, committed to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pyiceberg.table import Table
from pyspark.sql import SparkSession

from landonce.errors import ConfigError, NothingToInfer, TableUnfit
from landonce.protocol.marks import TableView
from landonce.read.schema.evolution import Evolution, merge
from landonce.read.schema.fields import Schema
from landonce.sinks.declared import declared_schema, selected_from
from landonce.sinks.iceberg import evolve, jvm
from landonce.sinks.iceberg.catalog import catalog_errors
from landonce.sinks.iceberg.commit import Attempt, TableBranch, by_pyiceberg, check_visible
from landonce.sinks.iceberg.files import StagedFile
from landonce.sinks.iceberg.ledger import Build, IcebergTable
from landonce.sinks.iceberg.marks import filled_by, holds
from landonce.sinks.iceberg.sink import IcebergSink
from landonce.sinks.iceberg.staging import Append, Merge, drop_stages, left_behind, staged_attempt
from landonce.sinks.iceberg.table import (
    as_text,
    create_table,
    creation,
    ensure_unpartitioned_spec,
    layout,
    no_table,
    require_spec,
    require_unchanged,
    upgrade_statement,
)
from landonce.sinks.iceberg.types import COLUMNS
from landonce.sinks.iceberg.worker import (
    FileRecipe,
    TableRecipe,
    Wants,
    planned_recipe,
    table_fingerprint,
    table_recipe,
)
from landonce.sinks.parts import Parts
from landonce.sinks.run import Columns, Run, SparkNeeds
from landonce.sinks.snapshot import MarkedTable, OpenSnapshot

_Answer = TypeVar("_Answer")
_AT_ONCE = 8
"""How many tables are looked at at the same time."""


@dataclass
class Lake:
    """Opened for one run. `recipe` is what goes to workers; it changes when tables are created or evolve."""

    sink: IcebergSink
    recipe: FileRecipe
    topics: tuple[str, ...]
    declared: Schema | None
    """What the file says of the rows, unless `select` makes them."""
    session: Callable[[], SparkSession]
    """Spark with Iceberg's runtime, for what Arrow cannot write."""
    missing: tuple[str, ...] = ()
    """Tables that the file names, and that are to be created."""
    planned: tuple[TableRecipe, ...] = ()
    """The same, once their columns are known."""
    _places: dict[str, TableBranch] = field(default_factory=dict)
    _opened: dict[str, Table] = field(default_factory=dict)
    _new: set[str] = field(default_factory=set)
    _epoch: int = 0

    @property
    def tables(self) -> tuple[str, ...]:
        """Those that workers write for."""
        return tuple(each.name for each in self.recipe.tables)

    @property
    def by_spark(self) -> bool:
        """Whether Spark's own writer is needed, for an existing table or for one that may be created."""
        config = self.sink.config
        made = {"format-version": ("1", "2"), "write.format.default": ("parquet",)}
        other = any(as_text(config.properties.get(name, usual[0])) not in usual for name, usual in made.items())
        tables = (*self.recipe.tables, *self.planned)
        return config.changes is not None or other or any(each.scratch is not None for each in tables)

    def place(self, table: str) -> TableBranch:
        if table not in self._places:
            self._places[table] = replace(self.sink.place(table), session=self.session)
        return self._places[table]

    def marked(self, table: str) -> IcebergTable:
        """The table as it carries marks, with commits made as it needs them."""
        return IcebergTable(self.place(table), lambda files: self.building(table, files))

    def start(self) -> None:
        """Opens the tables that the file names, and notes those that are to be created."""
        for name in self.sink.static:
            table = self.place(name).find()
            if table is not None:
                self.admit(name, table)
            elif self.sink.config.create:
                self.missing = (*self.missing, name)
            else:
                raise no_table(name)

    def plan(self, columns: Schema) -> FileRecipe:
        """The recipe once the missing tables are created with these columns. Raises what creating them would."""
        self.planned = tuple(planned_recipe(self.sink.config, name, columns) for name in self.missing)
        return replace(self.recipe, tables=(*self.recipe.tables, *self.planned))

    def make(self, columns: Schema) -> None:
        """Creates the missing tables."""
        for name in self.missing:
            self._create(name, columns)
        self.missing = self.planned = ()

    def admit(self, name: str, table: Table) -> None:
        """Adds an existing table to those that workers write for. Raises if it does not fit the file."""
        require_spec(self.sink.config, name, table)
        if self.sink.config.unpartitioned:
            if updates := ensure_unpartitioned_spec(table):
                self.place(name).send(table, Attempt(updates, (), 0))
            table = self.place(name).load()
        if name not in self._opened:
            self._new.add(name)
        self._update_recipe(name, table)
        self._drop_old_stages(name, table)

    def refresh(self, name: str, table: Table) -> None:
        """Updates the recipe: others may have changed the table's columns, properties or file format, and temporary credentials expire."""
        if name in self._opened and table_fingerprint(table) != table_fingerprint(self._opened[name]):
            self._update_recipe(name, table)

    def _update_recipe(self, name: str, table: Table) -> None:
        tables = {each.name: each for each in self.recipe.tables}
        tables[name] = table_recipe(self.sink.config, name, table, self.declared)
        self.recipe = replace(self.recipe, tables=tuple(tables[each] for each in sorted(tables)))
        self._opened[name] = table

    def _create(self, name: str, schema: Schema) -> None:
        with catalog_errors(self.sink.spec):
            table = create_table(self.sink.catalog, name, schema, creation(self.sink.config))
        self.admit(name, table)

    def upgrade(self) -> None:
        """A table of format version 3 is created in version 2, the newest that PyIceberg creates, and upgraded by Spark."""
        asked = creation(self.sink.config)
        for name, table in list(self._opened.items()):
            fresh = not table.metadata.snapshots and table.metadata.format_version < asked.version
            if self.sink.config.create and fresh:
                with (
                    jvm.own_session(self.session(), self.sink.spec) as mine,
                    jvm.in_session(mine, self.sink.spec, name),
                ):
                    mine.sql(upgrade_statement(self.sink.spec.name, table, asked))
                self.admit(name, self.place(name).load())

    def open(self, wants: Iterable[Wants]) -> bool:
        """Creates the tables that records name, and evolves those that records do not fit. Only the driver does this, once.

        Returns whether there are new tables: their records were only sampled so far.
        """
        samples: dict[str, list[bytes]] = {}
        evolutions: dict[str, list[Evolution]] = {}
        for each in wants:
            if each.evolution is not None:
                evolutions.setdefault(each.table, []).append(each.evolution)
            else:
                samples.setdefault(each.table, []).extend(each.sample)
        for name, sample in sorted(samples.items()):
            self._open_for(name, sample)
        self.upgrade()
        for name, changes in sorted(evolutions.items()):
            self.admit(name, evolve.apply(self.place(name), merge(changes)))
        made = bool(self._new)
        self._new.clear()
        return made

    def _open_for(self, name: str, sample: list[bytes]) -> None:
        """If no table can be created from records, they are rejected. The pipeline does not halt: anybody may send any record."""
        try:
            table = self.place(name).find()
            if table is not None:
                self.admit(name, table)
            elif self.sink.config.create:
                self._create(name, self._made_of(name, sample))
            else:
                self._do_without(name, f"there is no table {name}")
        except (ConfigError, TableUnfit) as error:
            self._do_without(name, f"the table {name} cannot take it: {_first_line(error)}")

    def _made_of(self, name: str, sample: list[bytes]) -> Schema:
        try:
            found = self.recipe.selected or self.declared or evolve.schema_of_sample(sample)
            layout(found, creation(self.sink.config))
            return found
        except (NothingToInfer, ValueError, RecursionError) as error:
            raise ConfigError(f"no table {name} can be made of such records: {_first_line(error)}") from None

    def _do_without(self, name: str, reason: str) -> None:
        self.recipe = replace(self.recipe, absent=(*self.recipe.absent, (name, reason)))

    def forget_absent(self) -> None:
        """Missing tables may exist by now."""
        self.recipe = replace(self.recipe, absent=())

    def look(self, names: Iterable[str]) -> tuple[TableView, ...]:
        """The tables as they are now."""
        wanted = sorted(names)
        found = self._each(wanted, lambda name: self.place(name).find())
        for name, table in zip(wanted, found, strict=True):
            if table is None:
                continue
            if name in self._opened:
                self.refresh(name, table)
            else:
                self.admit(name, table)
        self._new.clear()
        return tuple(
            self.place(name).view(table) if table is not None else TableView(name)
            for name, table in zip(wanted, found, strict=True)
        )

    def discover(self) -> tuple[TableView, ...]:
        """Tables of the template that carry this pipeline's mark: for a ledger that does not know them. Other tables with a fitting
        name are left alone."""
        with catalog_errors(self.sink.spec):
            could_be = self.sink.dynamic()
        return self.look(name for name in self._each(could_be, self._marked) if name)

    def _each(self, names: Iterable[str], ask: Callable[[str], _Answer]) -> list[_Answer]:
        """Asks about several tables at once. The catalog is connected before the threads start."""
        _ = self.sink.catalog
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(ask, names))

    def _marked(self, name: str) -> str:
        place = self.place(name)
        table = place.find()
        return name if table is not None and place.view(table).batch else ""

    def holds(self, topics: tuple[str, ...]) -> tuple[str, str]:
        """The first table, of those that the file names or that fit its template, that holds records of these topics, or that another
        writer filled from Kafka. Returns its name and that writer."""
        branch = self.sink.config.branch
        with catalog_errors(self.sink.spec):
            for name in (*self.sink.static, *self.sink.dynamic()):
                table = self.place(name).load()
                writer = filled_by(table, branch)
                if writer or holds(table, branch, topics):
                    return name, writer
        return "", ""

    def building(self, name: str, files: tuple[Any, ...]) -> Build:
        """Makes the commit of these files: by PyIceberg, or by Spark on a staging branch."""
        place, by_spark = self.place(name), self._by_spark(name)
        if files and not by_spark:
            check_visible(name, self._opened[name].io, files)

        def build(table: Table, summary: Mapping[str, str], properties: Mapping[str, str]) -> Attempt:
            if files:
                specs = () if by_spark else {each.spec_id for each in files}
                require_unchanged(name, self._opened[name], table, specs=specs, by_name=by_spark)
            if by_spark or not by_pyiceberg(table):
                return staged_attempt(place, table, summary, properties, files, self._how(name, files))
            return place.appending(table, files, summary, properties)

        return build

    def _by_spark(self, name: str) -> bool:
        return any(each.name == name and each.scratch is not None for each in self.recipe.tables)

    def _how(self, name: str, files: tuple[StagedFile, ...]) -> Append | Merge:
        """An append has to write every staged row. A row that changes keeps the values of columns that the pipeline does not fill."""
        if self.sink.config.changes is None:
            return Append(sum(each.rows for each in files))
        mine = {each.name for each in self.recipe.by_name()[name].schema.fields} | set(COLUMNS)
        columns = self._opened[name].schema().column_names
        return Merge(self.sink.config.identity, tuple(each for each in columns if each in mine))

    def drop_old_stages(self, epoch: int) -> None:
        """Removes the staging branches that earlier drivers left; from now on, of every table when it is opened."""
        self._epoch = epoch
        for name in self.tables:
            self._drop_old_stages(name, self.place(name).load())

    def _drop_old_stages(self, name: str, table: Table) -> None:
        if left_behind(table.metadata.refs, self.sink.pipeline, self._epoch):
            drop_stages(self.session(), self.sink.spec, name, self.sink.pipeline, self._epoch)

    def clear(self, files: Mapping[str, tuple[Any, ...]]) -> None:
        """Removes the files that waited for Spark."""
        for each in self.recipe.tables:
            if each.scratch is not None and each.name in files:
                each.scratch.remove(files[each.name])


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def file_recipe(parts: Parts) -> FileRecipe:
    """What the file says of records, before any table is looked at."""
    config, sink = parts.config, parts.iceberg
    declared = selected_from(config) if config.transform.select else declared_schema(config)
    by = sink.routing.field
    if config.transform.select and by is not None and "." in by:
        raise ConfigError(f"sink.iceberg: with `select`, records are routed by a column of its result, not by {by!r}.")
    return FileRecipe(
        pipeline=config.pipeline,
        consumer=tuple(sorted(parts.consumer.items())),
        routing=sink.routing,
        tables=(),
        dead_letters=config.dead_letters.path,
        max_record_bytes=config.source.kafka.max_record_bytes,
        block_bytes=config.batch.block_bytes,
        declared=declared if not config.transform.empty else None,
        select=config.transform.select,
        where=config.transform.where,
        changes=sink.config.changes.decoding() if sink.config.changes is not None else None,
        meaning=repr((declared.fingerprint() if declared else "", sink.config.case_insensitive, sink.config.identity)),
        evolve=sink.config.evolve,
    )


class OpenIceberg(OpenSnapshot):
    """The tables of a pipeline, opened on the driver: `Lake` as the engine knows it."""

    def __init__(self, sink: IcebergSink, run: Run) -> None:
        super().__init__(run)
        if run.parts is None:
            raise TypeError("the tables of a query are opened by it")
        self._sink, self.follow = sink, sink.follow
        self.lake = Lake(sink, file_recipe(run.parts), run.topics, run.landing, run.session)

    @property
    def recipe(self) -> FileRecipe:  # type: ignore[override]
        return self.lake.recipe

    @property
    def tables(self) -> tuple[str, ...]:
        return self.lake.tables

    def table(self, name: str) -> MarkedTable:
        return self.lake.marked(name)

    def start(self) -> None:
        self.lake.start()

    def columns_to_make(self) -> Columns | None:
        """What a sample shows is made so that readers can tell it apart."""
        tidy = lambda columns: evolve.distinguishable(columns.fields)  # noqa: E731
        return self.run.columns(self.lake.plan, tidy) if self.lake.missing else None

    def spark(self) -> SparkNeeds:
        """The catalog and the jars of Iceberg's runtime, where Spark writes itself; or where it may have to: a record may name a table that
        Arrow cannot write for, and `select` may make the columns of one."""
        lake, config = self.lake, self._sink.config
        unknown = lake.missing and not lake.planned and bool(config.properties or config.partition_by)
        open_ended = self._sink.routing.template is not None
        conf = self._sink.spark_conf() if lake.by_spark or open_ended or unknown else {}
        return SparkNeeds(("landonce.sinks.iceberg.worker",), conf, lake.recipe.transforms or lake.by_spark)

    def make_ready(self, columns: Columns | None) -> None:
        """Makes the tables that are not there, once nothing is in the way."""
        if columns is not None and self.lake.missing:
            made = columns()
            recipe = self.lake.plan(made)
            if recipe.transforms:  # only then Spark has to start
                self.run.examine(recipe)
            self.lake.make(made)
        self.lake.upgrade()
        if self.own is not None:
            self.own.table = self.lake.marked(self.lake.tables[0])

    def examine(self) -> None:
        if self.run.selects and self._sink.routing.template is not None:
            self.lake.recipe = replace(self.lake.recipe, selected=self.run.select_columns())
        super().examine()

    def views(self, names: Iterable[str]) -> tuple[TableView, ...]:
        return self.lake.look(names)

    def discover(self) -> tuple[TableView, ...]:
        return self.lake.discover()

    def refresh(self) -> None:
        table = self.own.table if self.own is not None else None
        if isinstance(table, IcebergTable) and table.loaded is not None:
            self.lake.refresh(self.lake.tables[0], table.loaded)

    def holds(self, labels: tuple[str, ...]) -> tuple[str, str]:
        return self.lake.holds(labels)

    def add(self, wants: Iterable[object]) -> bool:
        return self.lake.open(each for some in wants if isinstance(some, tuple) for each in some)

    def forget_absent(self) -> None:
        self.lake.forget_absent()

    def tidy(self, epoch: int) -> None:
        self.lake.drop_old_stages(epoch)

    def clear(self, files: Mapping[str, tuple[Any, ...]]) -> None:
        self.lake.clear(files)
