"""The tables of a pipeline as its driver sees them: made, evolved, looked at, committed to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyiceberg.table import Table
from pyspark.sql import SparkSession

from landonce.config.model import Iceberg
from landonce.errors import ConfigError, NothingToInfer, TableUnfit
from landonce.read.schema import Schema
from landonce.write.iceberg import evolve, jvm
from landonce.write.iceberg.commit import Attempt, Place
from landonce.write.iceberg.coordinates import COLUMNS
from landonce.write.iceberg.create import Creation, create_table, upgrade_statement
from landonce.write.iceberg.ledger import Build
from landonce.write.iceberg.look import holds, look_at
from landonce.write.iceberg.marker import summary, table_view
from landonce.write.iceberg.merge import Append, Merge
from landonce.write.iceberg.names import schema_for
from landonce.write.iceberg.partitioning import parse_spec, spec_differs
from landonce.write.iceberg.recipe import FileRecipe, TableRecipe, Wants
from landonce.write.iceberg.scratch import Scratch
from landonce.write.iceberg.shape import TableShape, ensure_unpartitioned_spec, fast_path
from landonce.write.iceberg.sink import IcebergSink
from landonce.write.iceberg.staged import StageOf, drop_stage, drop_stages, stage
from landonce.write.marks import Mark, TableView, Verdict, verdict


@dataclass
class Lake:
    """Opened for one run. `recipe` is what workers are told, and changes when tables are made or evolve."""

    sink: IcebergSink
    recipe: FileRecipe
    topics: tuple[str, ...]
    declared: Schema | None
    session: Callable[[], SparkSession]
    """Spark with Iceberg's runtime, for what Arrow cannot write."""
    _places: dict[str, Place] = field(default_factory=dict)
    _opened: dict[str, Table] = field(default_factory=dict)

    @property
    def tables(self) -> tuple[str, ...]:
        """Those that workers write for."""
        return tuple(each.name for each in self.recipe.tables)

    @property
    def by_spark(self) -> bool:
        """Whether Spark's own writer is needed, for the tables that are there or for one that may be made."""
        told = self.sink.told
        made = {"format-version": ("1", "2"), "write.format.default": ("parquet",)}
        other = any(_text(told.properties.get(name, usual[0])) not in usual for name, usual in made.items())
        return told.changes is not None or other or any(each.scratch is not None for each in self.recipe.tables)

    def place(self, table: str) -> Place:
        if table not in self._places:
            self._places[table] = replace(self.sink.place(table), session=self.session)
        return self._places[table]

    def start(self, sampled: Callable[[], Schema]) -> None:
        """Opens the tables that the file names, and makes those that are not there if it says so."""
        for name in self.sink.static:
            if self.place(name).exists():
                self.admit(name)
            elif self.sink.told.create:
                self._create(name, self.declared or sampled())
            else:
                raise _no_table(name)

    def admit(self, name: str) -> None:
        """A table that is there becomes one that workers write for."""
        table = self.place(name).load()
        told = self.sink.told
        if told.partition_by:
            wrong = spec_differs(parse_spec(told.partition_by, table.schema()), table.spec(), table.schema())
            if wrong:
                raise _wrong_spec(name, wrong)
        if told.unpartitioned:
            self._ensure_unpartitioned(name, table)
            table = self.place(name).load()
        self._opened[name] = table
        tables = {each.name: each for each in self.recipe.tables}
        tables[name] = table_recipe(told, name, table, self.declared)
        self.recipe = replace(self.recipe, tables=tuple(tables[each] for each in sorted(tables)))

    def _create(self, name: str, schema: Schema) -> None:
        create_table(self.sink.catalog, name, schema, creation(self.sink.told))
        self.admit(name)

    def upgrade(self) -> None:
        """A table of format version 3 is made in version 2, which is all that PyIceberg makes, and raised by Spark."""
        asked = creation(self.sink.told)
        for name, table in list(self._opened.items()):
            fresh = not table.metadata.snapshots and table.metadata.format_version < asked.version
            if self.sink.told.create and fresh:
                with jvm.own_session(self.session(), self.sink.spec) as mine, jvm.talking(mine, self.sink.spec, name):
                    mine.sql(upgrade_statement(self.sink.spec.name, table, asked))
                self.admit(name)

    def _ensure_unpartitioned(self, name: str, table: Table) -> None:
        updates = ensure_unpartitioned_spec(table)
        if updates:
            self.place(name).send(table, Attempt(tuple(updates), (), 0))

    def open(self, wants: Iterable[Wants]) -> bool:
        """Makes the tables that records name, and evolves the ones they do not fit. Once, here, never by a worker.

        Gives whether there are tables that were not there before: their records were only sampled so far.
        """
        before = set(self.tables)
        samples: dict[str, list[bytes]] = {}
        evolutions: dict[str, list[evolve.Changes]] = {}
        for each in wants:
            if each.evolution is not None:
                evolutions.setdefault(each.table, []).append(each.evolution)
            else:
                samples.setdefault(each.table, []).extend(each.sample)
        for name, sample in sorted(samples.items()):
            if self.place(name).exists():
                self.admit(name)
            elif self.sink.told.create:
                self._create_for(name, sample)
            else:
                self._do_without(name, f"there is no table {name}")
        self.upgrade()
        for name, changes in sorted(evolutions.items()):
            evolve.apply(self.place(name), evolve.merge(changes))
            self.admit(name)
        return set(self.tables) != before

    def _create_for(self, name: str, sample: list[bytes]) -> None:
        """What cannot be made of records is a reason to reject them, and not to halt: anybody may send any record."""
        try:
            self._create(name, self.declared or evolve.schema_of_sample(sample))
        except (ConfigError, NothingToInfer, TableUnfit, ValueError, RecursionError) as error:
            self._do_without(name, f"no table {name} can be made for it: {str(error).splitlines()[0][:200]}")

    def _do_without(self, name: str, reason: str) -> None:
        self.recipe = replace(self.recipe, absent=(*self.recipe.absent, (name, reason)))

    def forget_absent(self) -> None:
        """Tables that were not there may be there by now."""
        self.recipe = replace(self.recipe, absent=())

    def look(self, names: Iterable[str]) -> tuple[TableView, ...]:
        """The tables as they are now."""
        views = tuple(self._view(name) for name in sorted(names))
        for view in views:
            if view.uuid and view.table not in self._opened:
                self.admit(view.table)
        return views

    def discover(self) -> tuple[TableView, ...]:
        """Tables of the template that carry this pipeline's mark: for a ledger that does not know them. Others that happen to
        have such a name are left alone."""
        marked = (name for name in self.sink.dynamic() if self._view(name).batch)
        return self.look(marked)

    def _view(self, name: str) -> TableView:
        place = self.place(name)
        return self._seen(place, place.load()) if place.exists() else TableView(name)

    def holds(self, topics: tuple[str, ...]) -> str:
        """The first table of the file that holds a record of these topics."""
        return next(
            (each for each in self.sink.static if holds(self.place(each).load(), self.sink.told.branch, topics)), ""
        )

    def commit(
        self, expected: TableView, mark: Mark, files: tuple[Any, ...], valid_through: int | None
    ) -> tuple[bool, TableView]:
        """A batch's files for one table of a fan-out: True if they are in it now. With it, the table as it is."""
        place = self.place(expected.table)
        told = summary(mark, valid_through)
        build = self.building(expected.table, files)
        place.ensure_branch()
        judged, _, table = place.commit(
            lambda seen: verdict(expected, self._seen(place, seen), mark.state), lambda seen: build(seen, told, {})
        )
        return judged is not Verdict.MOVED, self._seen(place, table)

    def _seen(self, place: Place, table: Table) -> TableView:
        return table_view(place.identifier, look_at(table, place.pipeline, place.branch))

    def building(self, name: str, files: tuple[Any, ...]) -> Build:
        """How a commit of these files is made: by PyIceberg, or by Spark on a staging branch."""
        place = self.place(name)
        if not self._by_spark(name):
            return lambda table, told, properties: place.appending(table, files, told, properties)

        def staging(table: Table, told: Mapping[str, str], properties: Mapping[str, str]) -> Attempt:
            session, spec = self.session(), self.sink.spec
            branch = StageOf(place.pipeline, int(told["landonce.epoch"]), int(told["landonce.batch"])).new_name()
            staged = stage(session, spec, name, branch, place.head(table), files, self._how(name), told)
            attempt = place.publishing(table, staged, branch, told, properties)
            return replace(attempt, discard=lambda: drop_stage(session, spec, name, branch))

        return staging

    def _by_spark(self, name: str) -> bool:
        return any(each.name == name and each.scratch is not None for each in self.recipe.tables)

    def _how(self, name: str) -> Append | Merge:
        """Columns that the pipeline does not fill are left as they are in a row that changes."""
        if self.sink.told.changes is None:
            return Append()
        mine = {each.name for each in self.recipe.by_name()[name].schema.fields} | set(COLUMNS)
        columns = self._opened[name].schema().column_names
        return Merge(self.sink.told.identity, tuple(each for each in columns if each in mine))

    def tidy(self, epoch: int) -> None:
        """Removes the staging branches that earlier drivers left."""
        for each in self.recipe.tables:
            if each.scratch is not None:
                drop_stages(self.session(), self.sink.spec, each.name, self.sink.pipeline, epoch)

    def clear(self, files: Mapping[str, tuple[Any, ...]]) -> None:
        """Removes what only waited for Spark."""
        for each in self.recipe.tables:
            if each.scratch is not None and each.name in files:
                each.scratch.remove(files[each.name])


def table_recipe(told: Iceberg, name: str, table: Table, declared: Schema | None = None) -> TableRecipe:
    """What workers are told of a table."""
    staged = told.changes is not None or bool(fast_path(table))
    return TableRecipe(
        name=name,
        schema=schema_for(table, coordinates=told.coordinates, fold_case=told.case_insensitive, declared=declared),
        shape=None if staged else TableShape.of(table, unpartitioned=told.unpartitioned),
        scratch=Scratch.of(table) if staged else None,
        identity=told.identity if told.changes is not None else (),
    )


_TIDY = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "20"}
"""Every commit writes all of the metadata anew: without this, the old copies would be kept for ever."""
_MERGE_ON_READ = {
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    "format-version": "2",
}


def creation(told: Iceberg) -> Creation:
    """How tables are made that are not there."""
    properties = {**_TIDY, **{name: _text(value) for name, value in told.properties.items()}}
    if told.changes is not None:
        properties = {**_MERGE_ON_READ, **properties}
    return Creation(told.partition_by, told.identity, told.coordinates, properties)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _no_table(name: str) -> TableUnfit:
    return TableUnfit(
        f"the catalog has no table {name}, or the user may not see it.",
        safe="Nothing was read or written.",
        command="create it, or say `create: true` in {file} and let landonce do it",
    )


def _wrong_spec(name: str, wrong: str) -> TableUnfit:
    return TableUnfit(
        f"the table {name} is not partitioned as `partition_by` says: {wrong}.",
        safe="Nothing was read or written.",
        command="correct `partition_by` in {file}, or change the table's partition spec",
    )
