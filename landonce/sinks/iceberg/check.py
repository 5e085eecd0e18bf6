"""What `landonce check` says of Iceberg: the catalog, the ledger, each table, what becomes of records, and the position.

Of a table: whether the pipeline can write to it, how it would, and what to change; or what a start would create, as text. Nothing is created
here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.types import IcebergType, ListType, LongType, MapType, StructType, TimestampType, TimestamptzType

from landonce.errors import TableUnfit, TargetAhead
from landonce.protocol.ledger import LedgerState
from landonce.protocol.marks import MarkReport, TableState, TableView, adopted, report_on
from landonce.protocol.own_ledger import rollback_refused
from landonce.protocol.source import SourceView
from landonce.read.evolution import READERS_OWN
from landonce.read.schema.ddl import literal, quoted, quoted_if_needed
from landonce.read.schema.fields import Schema
from landonce.sinks import checking
from landonce.sinks.checking import CheckRun, Findings, Sections
from landonce.sinks.contract import Finding, Level
from landonce.sinks.declared import landing_schema
from landonce.sinks.iceberg.catalog import catalog_errors
from landonce.sinks.iceberg.config import Iceberg
from landonce.sinks.iceberg.deletes import whole_table
from landonce.sinks.iceberg.driver import file_recipe
from landonce.sinks.iceberg.evolve import distinguishable
from landonce.sinks.iceberg.marks import holds
from landonce.sinks.iceberg.partitions import parse_spec, spec_differs, spelled
from landonce.sinks.iceberg.sink import IcebergSink, SeenTable, catalog_exists, survey, table_names
from landonce.sinks.iceberg.spark import spark_name
from landonce.sinks.iceberg.table import creation, identity_of, table_schema, why_spark
from landonce.sinks.iceberg.types import COLUMNS, COORDINATE_TYPES, coordinate_faults, schema_for
from landonce.sinks.iceberg.worker import TableRecipe, planned_recipe, require_decodable, table_recipe
from landonce.sinks.snapshot import TableLedger

_EXAMINED = 20
"""Tables of a template that are looked at one by one."""
_AGE = "history.expire.max-snapshot-age-ms"
_SHORT = 24 * 3_600_000
_MODE = "write.merge.mode"
_SPARK_TYPES: dict[IcebergType, str] = {
    LongType(): "bigint",
    TimestampType(): "timestamp_ntz",
    TimestamptzType(): "timestamp",
}


def sections(run: CheckRun, sink: IcebergSink) -> Sections:
    """In the order in which a start would meet them."""
    check = _IcebergCheck(run, sink)
    yield "catalog", check.catalog()
    yield "ledger", check.ledger()
    for name in sink.static:
        yield f"table {name}", check.table(name)
    if sink.routing.template is not None:
        yield "tables", check.template()
    yield "records", check.records()
    yield "position", check.position()


@dataclass
class _IcebergCheck:
    """The sections, and what they tell each other of the catalog and its tables."""

    run: CheckRun
    sink: IcebergSink
    answers: bool = False
    """The catalog is there and answers."""
    tables: dict[str, SeenTable] = field(default_factory=dict)
    """Tables of the pipeline as they are."""

    @property
    def _askable(self) -> bool:
        """The catalog was asked, or there is nothing to ask yet."""
        return self.answers or not catalog_exists(self.sink)

    def catalog(self) -> Findings:
        sink = self.sink
        path = sink.spec.sqlite_file
        if path is not None and not path.exists():
            folder = path.parent if path.parent.exists() else checking.nearest(path.parent)
            yield from checking.writable(folder, f"none yet: the first run creates {path}", f"mkdir -p {path.parent}")
            return
        names = (*sink.static, sink.routing.template or "")
        namespaces = sorted({name.rpartition(".")[0] for name in names} - {""})
        with catalog_errors(sink.spec):
            there = {each: bool(sink.catalog.namespace_exists(each)) for each in namespaces}
        self.answers = True
        yield Finding(Level.OK, f"{sink.spec.identity} answers")
        for namespace, found in there.items():
            made = ", and is made with its first table" if sink.config.create else ""
            yield Finding(Level.OK, f"namespace {namespace} is " + ("there" if found else f"not there yet{made}"))

    def ledger(self) -> Findings:
        run, ledger = self.run, self.run.parts.ledger
        if not isinstance(ledger, TableLedger):
            yield from checking.outside_ledger(run)
            return
        where = f"the table {self.sink.static[0]} itself, branch {self.sink.config.branch}"
        if not self._askable:
            return
        run.state = ledger.load() if self.answers else None
        run.ledger = True
        if run.state is None:
            yield Finding(Level.OK, f"{where}; it says nothing of this pipeline yet")
            return
        yield Finding(Level.OK, f"{where}: {checking.entry(run.state)}")
        if ledger.noticed:
            yield Finding(Level.WARNING, ledger.noticed, "nothing to change: the next start does so")

    def table(self, name: str) -> Findings:
        sink, config = self.sink, self.sink.config
        if not self._askable:
            return
        seen = survey(sink, [name])[0] if self.answers else SeenTable(name)
        self.tables[name] = seen
        sql_name = spark_name(sink.spec, name)
        if seen.table is not None:
            yield from table_findings(config, sql_name, seen.table)
            if _needs_spark(config, seen.table):
                sink.spec.spark_conf()  # Spark writes it, so it must be able to open the catalog
            if config.evolve:
                yield Finding(Level.OK, "columns are added and widened as records ask for it")
        elif config.create:
            recipe = file_recipe(self.run.parts, sink)

            def created(columns: Schema) -> str:
                require_decodable(recipe, planned_recipe(config, name, columns))
                return creation_text(config, sql_name, columns)

            yield from checking.to_be_created(self.run, created, lambda inferred: distinguishable(inferred.fields))
        else:
            yield from checking.missing(name)

    def template(self) -> Findings:
        """One table per value. Those that are there are looked at; what is fine is not listed one by one."""
        sink, routing = self.sink, self.sink.routing
        absent = "created" if sink.config.create else "a reason for a dead letter, since `create` is not said"
        yield Finding(
            Level.OK,
            f"a record goes to {routing.template}, by its field {routing.field}; a table that is not there is {absent}",
        )
        if not self.answers:
            return
        names = [name for name in table_names(sink, self.run.state) if name not in sink.static]
        seen = survey(sink, names[:_EXAMINED])
        self.tables.update({each.name: each for each in seen})
        for each in seen:
            if each.table is not None:
                found = table_findings(sink.config, spark_name(sink.spec, each.name), each.table)
                bad = [one for one in found if one.level is not Level.OK]
                yield from (replace(one, what=f"{each.name}: {one.what}") for one in bad)
        rest = f"; the first {_EXAMINED} were looked at" if len(names) > _EXAMINED else ""
        yield Finding(Level.OK, f"{len(names)} tables are there{rest}")

    def records(self) -> Findings:
        """What a record becomes, for each table that is there and fit."""
        run, config, declared = self.run, self.sink.config, landing_schema(self.run.parts.config)
        recipe = file_recipe(run.parts, self.sink)
        run.recipe = recipe
        checking.same_fingerprint(run, recipe)
        there = {name: each.table for name, each in self.tables.items() if each.table is not None}
        fit = {
            name: schema_for(table, coordinates=True, fold_case=config.case_insensitive, declared=declared)
            for name, table in there.items()
            if all(each.level is not Level.REFUSED for each in table_findings(config, name, table))
        }
        tables = tuple(TableRecipe(name, schema, shape=None, scratch=None) for name, schema in sorted(fit.items()))
        run.recipe = replace(recipe, tables=tables) if fit else None
        alone, changing = len(fit) == 1, config.changes is not None
        keys = {name: identity_of(config, name, there[name]) if changing else () for name in fit}
        for name, schema in sorted(fit.items()):
            into = "" if alone else f", for {name}"
            found = checking.decoded(schema, recipe.decoding, into, keys[name], recipe.changes)
            if found.level is not Level.OK or (alone and not changing):
                yield found
        if config.changes is not None:
            rows = {", ".join(each) for each in keys.values()}
            row = " or ".join(sorted(rows)) or ", ".join(config.identity) or "what a table's identifier fields say"
            yield Finding(Level.OK, f"records say what changed ({config.changes.mode}); a row is {row}")
        elif fit and not alone:
            yield Finding(Level.OK, f"decoded to the columns of each of {len(fit)} tables")

    def position(self) -> Findings:
        """Where a start would go on, and how far each table of a fan-out is."""
        run, sink = self.run, self.sink
        views: tuple[TableView, ...] = ()
        if run.source is None or not run.ledger:
            return
        fan_out = not isinstance(run.parts.ledger, TableLedger)
        if fan_out and self.answers:
            views = tuple(each.view for each in survey(sink, table_names(sink, run.state)))
        state, found = self._known(views)
        yield from found
        bound = checking.bound_state(run, state)
        if bound is None:
            return
        yield from checking.distances(run, bound)
        if fan_out:
            yield from _statuses([report_on(bound, view) for view in views], run.source, follow=sink.follow)

    def _known(self, views: Iterable[TableView]) -> tuple[LedgerState | None, tuple[Finding, ...]]:
        """The ledger's state, or, where it has none, what the tables' marks say. Rows of these topics in a table that says nothing of
        this pipeline would be delivered again."""
        state, config = self.run.state, self.run.parts.config
        if state is not None and not state.fresh:
            return state, ()
        found = adopted(state or LedgerState(config.pipeline, lineage="check"), views)
        if found is not None:
            warning = Finding(
                Level.WARNING,
                f"the ledger is new, and the tables' marks say how far the pipeline had come: batch {found.batch}",
                "nothing to change, if the ledger was lost: the next start goes on from there",
            )
            return found, (warning,)
        for name, each in self.tables.items():
            if each.table is not None and holds(each.table, self.sink.config.branch, self.run.topics):
                raise TargetAhead(
                    f"the table {name} holds records of these topics, but no position of this pipeline",
                    command="take a new table, the name of the pipeline that wrote them, or `landonce state import {file}`",
                )
        return state, ()


def _statuses(reports: list[MarkReport], source: SourceView, *, follow: bool) -> Findings:
    """Tables that need attention one by one; the others in one line."""
    starts = {partition: extent.start for partition, extent in source.extents}
    for each in reports:
        name = each.view.table
        if each.command:
            yield Finding(Level.REFUSED, each.words.removesuffix("."), each.command)
        elif each.status is TableState.BEHIND and not follow and not (each.view.mark and each.view.mark.behind):
            refused = rollback_refused([name])
            yield Finding(Level.REFUSED, refused.what, refused.command)
        elif any(starts.get(one.partition, one.first) > one.first for one in each.lacks):
            yield Finding(
                Level.REFUSED,
                f"{name} {each.words}; Kafka has deleted some of that",
                "roll the table forward again, or `landonce state accept-gap {file}`",
            )
        elif each.status in (TableState.BEHIND, TableState.AHEAD):
            yield Finding(Level.WARNING, f"{name} {each.words}", "nothing to change: the next start does so")
    batches = [
        each.view.mark.batch for each in reports if each.status is TableState.IN_STEP and each.view.mark is not None
    ]
    if batches:
        oldest, newest = min(batches), max(batches)
        span = f"batch {newest}" if oldest == newest else f"batches {oldest} to {newest}"
        yield Finding(Level.OK, f"{len(batches)} tables are in step; the last that they carry: {span}")
    new = sum(each.status is TableState.UNTOUCHED for each in reports)
    if new:
        yield Finding(Level.OK, f"nothing was committed yet to {new} tables")


def table_findings(config: Iceberg, sql_name: str, table: Table) -> Findings:
    """Of one table. `sql_name` is what Spark calls it."""
    schema = table.schema()
    yield Finding(
        Level.OK,
        f"is there: format version {table.metadata.format_version}, {len(schema.fields)} columns, partitioned by "
        f"{spelled(table.spec(), schema)}",
    )
    if config.branch != "main":
        yield _branch(config.branch, table)
    if config.partition_by:
        wrong = spec_differs(parse_spec(config.partition_by, schema), table.spec(), schema)
        if wrong:
            yield Finding(
                Level.REFUSED,
                f"is not partitioned as `partition_by` says: {wrong}",
                "correct `partition_by` in {file}, or change the table's partition spec",
            )
    if config.unpartitioned:
        yield Finding(Level.OK, "files are committed without partition values, whatever the table's spec says")
    yield from _columns(config, sql_name, table)
    reason = why_spark(table, unpartitioned=config.unpartitioned)
    if config.changes is not None:
        yield from _changes(config, sql_name, table)
    elif reason:
        yield Finding(Level.OK, f"Spark's own writer makes its files, since {reason}")
    else:
        yield Finding(Level.OK, "workers write its files themselves, with Arrow: the fast path")
    age = table.properties.get(_AGE, "")
    if age.isdigit() and int(age) < _SHORT:
        yield Finding(
            Level.WARNING,
            f"snapshots may be expired after {int(age) / 3_600_000:.1f} h: the table cannot be rolled back further than that",
            "nothing to change for landonce: a copy of the position is in the table's properties",
        )


def _branch(branch: str, table: Table) -> Finding:
    refs = table.metadata.refs
    if branch in refs and refs[branch].snapshot_ref_type is not SnapshotRefType.BRANCH:
        return Finding(Level.REFUSED, f"{branch} is a tag of the table, not a branch", "name a branch in {file}")
    if branch in refs:
        return Finding(Level.OK, f"branch {branch} is there; what lands on it is not in main until you publish it")
    where = "where main is now" if "main" in refs else "empty as the table is"
    return Finding(Level.OK, f"branch {branch} is made by the first start, {where}")


def _columns(config: Iceberg, sql_name: str, table: Table) -> Findings:
    schema = table.schema()
    names, faults = schema.column_names, coordinate_faults(schema)
    if faults:
        missing = {name: kind for name, kind in COORDINATE_TYPES.items() if name not in names}
        added = ", ".join(f"{name} {_SPARK_TYPES.get(kind, str(kind))}" for name, kind in missing.items())
        yield Finding(
            Level.REFUSED,
            f"cannot hold the coordinates of its rows: {'; '.join(faults)}",
            f"ALTER TABLE {sql_name} ADD COLUMNS ({added})" if added else "give these columns other types",
        )
    else:
        yield Finding(Level.OK, f"{', '.join(COLUMNS)} say which record each row came from")
    reserved = sorted(set(READERS_OWN) & set(names))
    if reserved:
        yield Finding(
            Level.REFUSED if _needs_spark(config, table) else Level.WARNING,
            f"{', '.join(reserved)} is a name that Iceberg's readers keep for themselves: Spark can neither read nor "
            "merge nor compact the table",
            "rename the column",
        )
    try:
        if not faults:
            table_recipe(config, ".".join(table.name()), table, planned=True)
        for each in schema_for(table, coordinates=not faults, fold_case=config.case_insensitive).fields:
            if not each.is_filled:
                yield Finding(
                    Level.WARNING,
                    f"column {each.name} stays NULL: no record becomes {schema.find_type(each.name)} exactly, and one with a value "
                    "for it is a dead letter",
                    "nothing to change if no record holds the field",
                )
    except TableUnfit as error:
        yield Finding(Level.REFUSED, error.what, error.command)


def _needs_spark(config: Iceberg, table: Table) -> bool:
    """Whether Spark writes the table."""
    merges = config.changes is not None and not config.by_equality
    return merges or bool(why_spark(table, unpartitioned=config.unpartitioned))


def _changes(config: Iceberg, sql_name: str, table: Table) -> Findings:
    """How a change finds its row, and how it is written. What a start would refuse of it is among the findings on columns."""
    schema = table.schema()
    try:
        identity = identity_of(config, ".".join(table.name()), table)
    except TableUnfit:
        return
    for name in identity:
        if name not in schema.column_names:
            yield Finding(
                Level.REFUSED,
                f"has no column {name}, by which `identity` says that rows are found",
                "correct `identity` in {file}; the table has " + ", ".join(schema.column_names),
            )
            return
        if not schema.find_field(name).required:
            yield Finding(
                Level.WARNING,
                f"{name}, which names a row, may be null in the table; a record without it becomes a dead letter",
                f"ALTER TABLE {sql_name} ALTER COLUMN {quoted_if_needed(name)} SET NOT NULL, if no row lacks it",
            )
    key = ", ".join(identity) + ("" if config.identity else ", the table's own identifier fields")
    if config.by_equality:
        yield from _equality(config, table, identity, key)
    else:
        yield Finding(Level.OK, f"Spark merges changes into it by {key}")
        yield from _merge(sql_name, table)


def _equality(config: Iceberg, table: Table, identity: tuple[str, ...], key: str) -> Findings:
    whole = whole_table(config, identity, table)
    where = "the whole table" if whole else "their partitions"
    yield Finding(
        Level.OK, f"workers write changes into it by {key}: new rows, and equality deletes, which count in {where}"
    )
    if whole and not table.spec().is_unpartitioned():
        yield Finding(
            Level.WARNING,
            "Spark's `rewrite_data_files` with `remove-dangling-deletes` would remove deletes that still count, and bring rows back",
            "compact the table with `landonce maintain {file}`, or without that option",
        )
    if config.inserts == "append":
        yield Finding(Level.OK, "`inserts: append`: an insert deletes nothing, so its row must not be there yet")
    yield Finding(
        Level.WARNING,
        "readers compare every row with the keys of all later deletes, and some, such as PyIceberg, refuse the table, until it is "
        "compacted",
        "run `landonce maintain {file}` regularly: it applies the deletes; or set `write: merge`",
    )


def _merge(sql_name: str, table: Table) -> Findings:
    if table.metadata.format_version == 1:
        yield Finding(
            Level.WARNING,
            "format version 1 knows no deletes: every batch rewrites whole files that hold a changed row",
            f"ALTER TABLE {sql_name} SET TBLPROPERTIES ('format-version' = '2', '{_MODE}' = 'merge-on-read')",
        )
    elif table.properties.get(_MODE, "copy-on-write") != "merge-on-read":
        yield Finding(
            Level.WARNING,
            f"`{_MODE}` is copy-on-write: every batch rewrites whole files that hold a changed row",
            f"ALTER TABLE {sql_name} SET TBLPROPERTIES ('{_MODE}' = 'merge-on-read')",
        )


def creation_text(config: Iceberg, sql_name: str, declared: Schema) -> str:
    """A statement of Spark SQL. A type that Spark SQL does not have is written as Iceberg writes it."""
    made = creation(config)
    schema = table_schema(declared, made)
    columns = ",\n    ".join(
        f"{quoted(each.name)} {_type(each.field_type)}{' NOT NULL' if each.required else ''}" for each in schema.fields
    )
    lines = [f"CREATE TABLE {sql_name}", f"(\n    {columns}\n)", "USING iceberg"]
    if config.partition_by:
        lines.append(f"PARTITIONED BY ({spelled(parse_spec(config.partition_by, schema), schema)})")
    properties = {**made.properties, "format-version": str(made.version)}
    listed = ", ".join(f"{literal(name)} = {literal(value)}" for name, value in sorted(properties.items()))
    lines.append(f"TBLPROPERTIES ({listed})")
    names = sorted(str(schema.find_column_name(each)) for each in schema.identifier_field_ids)
    if names:
        lines.append(f"ALTER TABLE {sql_name} SET IDENTIFIER FIELDS {', '.join(map(quoted_if_needed, names))}")
    return "\n".join(lines)


def _type(type_: IcebergType) -> str:
    if isinstance(type_, StructType):
        return (
            f"struct<{', '.join(f'{quoted_if_needed(each.name)}: {_type(each.field_type)}' for each in type_.fields)}>"
        )
    if isinstance(type_, ListType):
        return f"array<{_type(type_.element_type)}>"
    if isinstance(type_, MapType):
        return f"map<{_type(type_.key_type)}, {_type(type_.value_type)}>"
    return _SPARK_TYPES.get(type_, str(type_))
