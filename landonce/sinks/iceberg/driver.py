"""The tables of a pipeline as its driver sees them: created, evolved, looked at, committed to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from landonce.errors import ConfigError, NothingToInfer, TableUnfit
from landonce.protocol.marks import TableView, Verdict
from landonce.protocol.receipt import Want
from landonce.read.evolution import Evolution, merge
from landonce.read.schema.fields import Schema
from landonce.sinks.declared import declared_schema, selected_from
from landonce.sinks.iceberg import evolve
from landonce.sinks.iceberg.catalog import catalog_errors
from landonce.sinks.iceberg.commit import Attempt, Build, IcebergTable, TableBranch, by_pyiceberg, check_visible
from landonce.sinks.iceberg.deletes import between_blocks, require_equality, whole_table
from landonce.sinks.iceberg.files import StagedFile, WrittenFile
from landonce.sinks.iceberg.marks import filled_by, holds
from landonce.sinks.iceberg.sink import IcebergSink
from landonce.sinks.iceberg.spark import Append, Merge, in_session, left_behind, own_session
from landonce.sinks.iceberg.table import (
    as_text,
    create_table,
    creation,
    ensure_unpartitioned_spec,
    identity_of,
    layout,
    no_table,
    require_spec,
    require_unchanged,
    upgrade_statement,
    why_spark,
)
from landonce.sinks.iceberg.types import COLUMNS
from landonce.sinks.iceberg.worker import (
    FileRecipe,
    TableRecipe,
    planned_recipe,
    require_decodable,
    table_fingerprint,
    table_recipe,
)
from landonce.sinks.parts import Parts
from landonce.sinks.run import Columns, Run, SparkNeeds, run_of
from landonce.sinks.snapshot import OpenSnapshot
from landonce.sinks.worker import Wants

_Answer = TypeVar("_Answer")
_AT_ONCE = 8
"""How many tables are looked at at the same time."""


def file_recipe(parts: Parts, sink: IcebergSink) -> FileRecipe:
    """What the file says of records, before any table is looked at."""
    config = parts.config
    declared = selected_from(config) if config.transform.select else declared_schema(config)
    by = sink.routing.field
    if config.transform.select and by is not None and "." in by:
        raise ConfigError(f"sink.iceberg: with `select`, records are routed by a column of its result, not by {by!r}.")
    return FileRecipe(
        **run_of(parts).basics,
        routing=sink.routing,
        tables=(),
        declared=declared if not config.transform.empty else None,
        changes=sink.config.changes.decoding() if sink.config.changes is not None else None,
        meaning=repr((declared.fingerprint() if declared else "", sink.config.case_insensitive, sink.config.identity)),
        evolve=sink.config.evolve,
    )


class OpenIceberg(OpenSnapshot[WrittenFile]):
    """The tables of a pipeline, opened on the driver."""

    recipe: FileRecipe
    """It changes when tables are created or evolve."""

    def __init__(self, sink: IcebergSink, run: Run) -> None:
        super().__init__(run)
        self._sink, self._config, self.follow = sink, sink.config, sink.follow
        if run.parts is None:
            self.recipe = FileRecipe(**run.basics, routing=sink.routing, tables=())
        else:
            self.recipe = file_recipe(run.parts, sink)
        self._missing: tuple[str, ...] = ()
        """Tables that the file names, and that are to be created."""
        self._planned: tuple[TableRecipe, ...] = ()
        """The same, once their columns are known."""
        self._places: dict[str, TableBranch] = {}
        self._opened: dict[str, Table] = {}
        self._new: set[str] = set()
        self._epoch = 0

    @property
    def tables(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.recipe.tables)

    def table(self, name: str) -> IcebergTable:
        return IcebergTable(self._place(name), lambda files: self._building(name, files))

    def start(self) -> None:
        """Opens the tables that the file names, and notes those that are to be created."""
        for name in self._sink.static:
            table = self._place(name).find()
            if table is not None:
                self._admit(name, table)
            elif self._config.create:
                self._missing = (*self._missing, name)
            else:
                raise no_table(name, self.run.let_create)

    def columns_to_make(self) -> Columns | None:
        """What a sample shows is made so that readers can tell it apart."""
        if not self._missing:
            return None
        return self.run.columns(self._plan, lambda columns: evolve.distinguishable(columns.fields))

    def spark(self) -> SparkNeeds:
        """The catalog and the jars of Iceberg's runtime if Spark writes a table, or may have to: a record may name a table that Arrow cannot
        write, and which columns `select` makes is not known yet."""
        usual = {"format-version": ("1", "2"), "write.format.default": ("parquet",)}
        given = self._config.properties
        other = any(as_text(given.get(name, values[0])) not in values for name, values in usual.items())
        staged = any(each.scratch is not None for each in (*self.recipe.tables, *self._planned))
        by_spark = (self._config.changes is not None and not self._config.by_equality) or other or staged
        unknown = self._missing and not self._planned and bool(given or self._config.partition_by)
        open_ended = self._sink.routing.template is not None
        conf = self._sink.spark_conf() if by_spark or open_ended or unknown else {}
        return SparkNeeds(("landonce.sinks.iceberg.worker",), conf, self.recipe.transforms or by_spark)

    def make_ready(self, columns: Columns | None) -> None:
        """Creates the missing tables, once nothing can refuse the run any more."""
        if columns is not None and self._missing:
            made = columns()
            recipe = self._plan(made)
            if recipe.transforms:  # only then Spark has to start
                self.run.examine(recipe)
            for name in self._missing:
                self._create(name, made)
            self._missing = self._planned = ()
        if self.run.query is None:
            self._upgrade()
        if self.own is not None:
            self.own.table = self.table(self.tables[0])

    def examine(self) -> None:
        if self.run.selects and self._sink.routing.template is not None:
            self.recipe = replace(self.recipe, selected=self.run.select_columns())
        super().examine()

    def views(self, names: Iterable[str]) -> tuple[TableView, ...]:
        wanted = sorted(names)
        found = self._each(wanted, lambda name: self._place(name).find())
        for name, table in zip(wanted, found, strict=True):
            if table is not None and name in self._opened:
                self._refresh(name, table)
            elif table is not None:
                self._admit(name, table)
        self._new.clear()
        return tuple(
            self._place(name).view(table) if table is not None else TableView(name)
            for name, table in zip(wanted, found, strict=True)
        )

    def discover(self) -> tuple[TableView, ...]:
        """Other tables whose names fit the template are left alone."""

        def marked(name: str) -> bool:
            table = self._place(name).find()
            return table is not None and bool(self._place(name).view(table).batch)

        with catalog_errors(self._sink.spec):
            could_be = self._sink.dynamic()
        return self.views(name for name, ours in zip(could_be, self._each(could_be, marked), strict=True) if ours)

    def refresh(self) -> None:
        table = self.own.table if self.own is not None else None
        if isinstance(table, IcebergTable) and table.loaded is not None:
            self._refresh(self.tables[0], table.loaded)

    def holds(self, labels: tuple[str, ...], *, fresh: bool) -> tuple[str, str]:
        """Of the tables that the file names or that fit its template."""
        branch = self._config.branch
        with catalog_errors(self._sink.spec):
            for name in (*self._sink.static, *self._sink.dynamic()):
                table = self._place(name).load()
                writer = filled_by(table, branch) if fresh else ""
                if writer or holds(table, branch, labels):
                    return name, writer
        return "", ""

    def add(self, wants: Iterable[Want]) -> bool:
        """Creates and evolves tables, once for all blocks. Of records of new tables, blocks report a sample."""
        samples: dict[str, list[bytes]] = {}
        evolutions: dict[str, list[Evolution]] = {}
        for each in (each for each in wants if isinstance(each, Wants)):
            if each.evolution is not None:
                evolutions.setdefault(each.table, []).append(each.evolution)
            else:
                samples.setdefault(each.table, []).extend(each.sample)
        for name, sample in sorted(samples.items()):
            self._open_for(name, sample)
        self._upgrade()
        for name, changes in sorted(evolutions.items()):
            by_spark = self.recipe.by_name()[name].scratch is not None
            self._admit(name, evolve.apply(self._place(name), merge(changes), by_spark=by_spark))
        made = bool(self._new)
        self._new.clear()
        return made

    def forget_absent(self) -> None:
        self.recipe = replace(self.recipe, absent=())

    def tidy(self, epoch: int) -> None:
        """Removes the staging branches that earlier drivers left; from now on, of every table when it is opened."""
        if self.run.query is not None:  # its Spark may not have Iceberg's runtime
            return
        self._epoch = epoch
        for name in self.tables:
            self._drop_old_stages(name, self._place(name).load())

    def clear(self, files: Mapping[str, tuple[WrittenFile, ...]]) -> None:
        """Removes the files that waited for Spark."""
        for each in self.recipe.tables:
            if each.scratch is not None and each.name in files:
                each.scratch.remove(file for file in files[each.name] if isinstance(file, StagedFile))

    def _place(self, table: str) -> TableBranch:
        if table not in self._places:
            self._places[table] = replace(self._sink.place(table), session=self.run.session)
        return self._places[table]

    def _each(self, names: Iterable[str], ask: Callable[[str], _Answer]) -> list[_Answer]:
        """Asks about several tables at once. The catalog is connected before the threads start."""
        _ = self._sink.catalog
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(ask, names))

    def _plan(self, columns: Schema) -> FileRecipe:
        """The recipe once the missing tables are created with these columns. Raises what creating them would."""
        self._planned = tuple(planned_recipe(self._config, name, columns) for name in self._missing)
        for each in self._planned:
            require_decodable(self.recipe, each)
        return replace(self.recipe, tables=(*self.recipe.tables, *self._planned))

    def _create(self, name: str, schema: Schema) -> None:
        with catalog_errors(self._sink.spec):
            table = create_table(self._sink.catalog, name, schema, creation(self._config))
        self._admit(name, table)

    def _admit(self, name: str, table: Table) -> None:
        """Adds an existing table to those that workers write for. Raises if it does not fit the file."""
        require_spec(self._config, name, table)
        table = self._prepared(name, table)
        if name not in self._opened:
            self._new.add(name)
        self._update_recipe(name, table)
        self._drop_old_stages(name, table)

    def _prepared(self, name: str, table: Table) -> Table:
        """The table with a spec without fields, if workers write files without partition values: all of them, or those of deletes."""
        config, without = self._config, self._config.unpartitioned
        if config.by_equality:
            require_equality(config, name, table)
            without = whole_table(config, identity_of(config, name, table), table)
        if not without:
            return table

        def step(seen: Table) -> Attempt | Verdict:
            updates = ensure_unpartitioned_spec(seen)
            return Attempt(updates) if updates else Verdict.DONE

        return self._place(name).commit(step)[1]

    def _refresh(self, name: str, table: Table) -> None:
        """Makes the recipe again if others changed the table's columns, properties or file format, or if its credentials are new."""
        if name in self._opened and table_fingerprint(table) != table_fingerprint(self._opened[name]):
            self._update_recipe(name, self._prepared(name, table))

    def _update_recipe(self, name: str, table: Table) -> None:
        declared = self.run.landing if self.run.query is None else None
        tables = {**self.recipe.by_name(), name: table_recipe(self._config, name, table, declared)}
        if self.run.query is not None:
            self._refuse_for_query(name, table, tables[name])
        else:
            require_decodable(self.recipe, tables[name])
        self.recipe = replace(self.recipe, tables=tuple(tables[each] for each in sorted(tables)))
        self._opened[name] = table

    def _refuse_for_query(self, name: str, table: Table, recipe: TableRecipe) -> None:
        """Raises where landonce's own writer cannot write the table, or rows of the query do not fit it."""
        require_spec(self._config, name, table)
        if recipe.scratch is not None:
            raise TableUnfit(
                f"{name}: Spark's own writer is needed for it, since {why_spark(table)}, and queries are written by landonce's.",
                safe="Nothing was written.",
                command="write a pipeline file for it, which takes row-wise SQL, too; or name another table",
            )
        self.run.refuse_misfits(recipe.schema, name)

    def _upgrade(self) -> None:
        """A table of format version 3 is created in version 2, the newest that PyIceberg creates, and upgraded by Spark."""
        asked, spec = creation(self._config), self._sink.spec
        for name, table in list(self._opened.items()):
            fresh = not table.metadata.snapshots and table.metadata.format_version < asked.version
            if self._config.create and fresh:
                with own_session(self.run.session(), spec) as mine, in_session(mine, spec, name):
                    mine.sql(upgrade_statement(spec.name, table, asked))
                self._admit(name, self._place(name).load())

    def _open_for(self, name: str, sample: list[bytes]) -> None:
        """Opens or creates a table that records name. If that is not possible, the records become dead letters: anybody may send a record, so
        the pipeline does not halt for it."""
        reason = f"there is no table {name}"
        try:
            table = self._place(name).find()
            if table is not None:
                return self._admit(name, table)
            if self._config.create:
                return self._create(name, self._made_of(name, sample))
        except (ConfigError, TableUnfit) as error:
            reason = f"the table {name} cannot take it: {_first_line(error)}"
        self.recipe = replace(self.recipe, absent=(*self.recipe.absent, (name, reason)))
        return None

    def _made_of(self, name: str, sample: list[bytes]) -> Schema:
        try:
            found = self.recipe.selected or self.run.landing or evolve.schema_of_sample(sample)
            layout(found, creation(self._config))
            return found
        except (NothingToInfer, ValueError, RecursionError) as error:
            raise ConfigError(f"no table {name} can be made of such records: {_first_line(error)}") from None

    def _building(self, name: str, files: tuple[WrittenFile, ...]) -> Build:
        """Makes the commit of these files: by PyIceberg, or by Spark on a staging branch."""
        place = self._place(name)
        by_spark = any(each.name == name and each.scratch is not None for each in self.recipe.tables)
        data = [each for each in files if isinstance(each, DataFile)]
        staged = [each for each in files if isinstance(each, StagedFile)]
        if data:
            check_visible(name, self._opened[name].io, data)
        equality = next((each.equality for each in self.recipe.tables if each.name == name), None)
        if equality is not None:
            data += between_blocks(name, self._opened[name], equality.identity, data)

        def build(table: Table, summary: Mapping[str, str], properties: Mapping[str, str]) -> Attempt:
            if files:
                specs = {each.spec_id for each in data}
                all_specs = equality is not None and bool(data)
                require_unchanged(
                    name, self._opened[name], table, specs=specs, all_specs=all_specs, by_name=bool(staged)
                )
            if staged or (not data and (by_spark or not by_pyiceberg(table))):
                return place.staging(table, summary, properties, staged, self._how(name, staged))
            return place.appending(table, summary, properties, data)

        return build

    def _how(self, name: str, files: list[StagedFile]) -> Append | Merge:
        """An append must write every staged row. A merge changes only columns that the pipeline fills; the others keep their values."""
        if self._config.changes is None:
            return Append(sum(each.rows for each in files))
        recipe = self.recipe.by_name()[name]
        mine = {each.name for each in recipe.schema.fields if each.is_filled} | set(COLUMNS)
        columns = self._opened[name].schema().column_names
        return Merge(recipe.identity, tuple(each for each in columns if each in mine))

    def _drop_old_stages(self, name: str, table: Table) -> None:
        if left_behind(table.metadata.refs, self._sink.pipeline, self._epoch):
            self._place(name).drop_stages(self._epoch)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
