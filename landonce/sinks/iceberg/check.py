"""What `landonce check` says of Iceberg: the catalog, the ledger, each table, what becomes of records, and the position."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from landonce.errors import TargetAhead
from landonce.protocol.ledger import LedgerState
from landonce.protocol.marks import TableReport, TableState, TableView, adopted, report_on
from landonce.protocol.own_ledger import rollback_refused
from landonce.protocol.source import SourceView
from landonce.sinks import checking
from landonce.sinks.checking import CheckRun, Findings, Sections
from landonce.sinks.contract import Finding, Level
from landonce.sinks.declared import landing_schema
from landonce.sinks.iceberg.catalog import catalog_errors
from landonce.sinks.iceberg.check_table import creation_text, table_findings
from landonce.sinks.iceberg.driver import file_recipe
from landonce.sinks.iceberg.jvm import spark_name
from landonce.sinks.iceberg.marks import holds
from landonce.sinks.iceberg.sink import IcebergSink, Seen, survey, table_names
from landonce.sinks.iceberg.table import why_spark
from landonce.sinks.iceberg.types import schema_for
from landonce.sinks.iceberg.worker import TableRecipe
from landonce.sinks.snapshot import TableLedger

_EXAMINED = 20
"""Tables of a template that are looked at one by one."""


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
    tables: dict[str, Seen] = field(default_factory=dict)
    """Tables of the pipeline as they are."""

    @property
    def _askable(self) -> bool:
        """The catalog was asked, or there is nothing to ask yet."""
        path = self.sink.spec.sqlite_file
        return self.answers or (path is not None and not path.exists())

    def catalog(self) -> Findings:
        sink = self.sink
        path = sink.spec.sqlite_file
        if path is not None and not path.exists():
            folder = path.parent if path.parent.exists() else checking.nearest(path.parent)
            yield from checking.writable(folder, f"none yet: the first run makes {path}", f"mkdir -p {path.parent}")
            return
        with catalog_errors(sink.spec):
            there = {each: bool(sink.catalog.namespace_exists(each)) for each in _namespaces(sink)}
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
        seen = survey(sink, [name])[0] if self.answers else Seen(name)
        self.tables[name] = seen
        sql_name = spark_name(sink.spec, name)
        if seen.table is not None:
            yield from table_findings(config, sql_name, seen.table)
            if config.changes is not None or why_spark(seen.table, unpartitioned=config.unpartitioned):
                sink.spec.spark_conf()  # Spark writes it, so it must be able to open the catalog
            if config.evolve:
                yield Finding(Level.OK, "columns are added and widened as records ask for it")
        elif config.create:
            yield from checking.to_be_created(self.run, partial(creation_text, config, sql_name))
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
        recipe = file_recipe(run.parts)
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
        if config.changes is not None:
            row = ", ".join(config.identity)
            yield Finding(Level.OK, f"records say what changed ({config.changes.mode}); a row is {row}")
            return
        alone = len(fit) == 1
        for name, schema in sorted(fit.items()):
            found = checking.decoded(schema, recipe.max_record_bytes, "" if alone else f", for {name}")
            if alone or found.level is not Level.OK:
                yield found
        if not alone and fit:
            yield Finding(Level.OK, f"decoded to the columns of each of {len(fit)} tables")

    def position(self) -> Findings:
        """Where a start would go on, and how each table of a fan-out stands."""
        run = self.run
        if run.source is None or not run.ledger:
            return
        fan_out = not isinstance(run.parts.ledger, TableLedger)
        views = self._views() if fan_out and self.answers else ()
        state, found = self._known(views)
        yield from found
        bound = checking.bound_state(run, state)
        if bound is None:
            return
        yield from checking.distances(run, bound)
        if fan_out:
            follow = self.sink.config.rollback == "follow"
            yield from _statuses([report_on(bound, view) for view in views], run.source, follow=follow)

    def _views(self) -> tuple[TableView, ...]:
        return tuple(each.view for each in survey(self.sink, table_names(self.sink, self.run.state)))

    def _known(self, views: Iterable[TableView]) -> tuple[LedgerState | None, tuple[Finding, ...]]:
        """The ledger's state, or, where it has none, what the tables' marks say."""
        state = self.run.state
        if state is not None and not state.fresh:
            return state, ()
        found = adopted(state or LedgerState(self.run.parts.config.pipeline, lineage="check"), views)
        if found is None:
            self._refuse_foreign_rows()
            return state, ()
        warning = Finding(
            Level.WARNING,
            f"the ledger is new, and the tables' marks say how far the pipeline had come: batch {found.batch}",
            "nothing to change, if the ledger was lost: the next start goes on from there",
        )
        return found, (warning,)

    def _refuse_foreign_rows(self) -> None:
        """Rows of these topics in a table that says nothing of this pipeline would be delivered again."""
        topics = self.run.parts.config.source.kafka.topics
        for name, each in self.tables.items():
            if each.table is not None and holds(each.table, self.sink.config.branch, topics):
                raise TargetAhead(
                    f"the table {name} holds records of these topics, but no position of this pipeline",
                    command="take a new table, the name of the pipeline that wrote them, or `landonce state import {file}`",
                )


def _namespaces(sink: IcebergSink) -> tuple[str, ...]:
    template = sink.routing.template
    names = (*sink.static, *([template] if template is not None else []))
    return tuple(sorted({name.rpartition(".")[0] for name in names} - {""}))


def _statuses(reports: list[TableReport], source: SourceView, *, follow: bool) -> Findings:
    """Those that need a word, one by one; the others in one line."""
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
    yield from _in_step(reports)


def _in_step(reports: list[TableReport]) -> Findings:
    carrying = [each for each in reports if each.status is TableState.IN_STEP and each.view.mark]
    if carrying:
        batches = [each.view.mark.batch for each in carrying if each.view.mark]
        oldest, newest = min(batches), max(batches)
        span = f"batch {newest}" if oldest == newest else f"batches {oldest} to {newest}"
        yield Finding(Level.OK, f"{len(carrying)} tables are in step; the last that they carry: {span}")
    new = [each.view.table for each in reports if each.status is TableState.UNTOUCHED]
    if new:
        yield Finding(Level.OK, f"nothing was committed yet to {len(new)} tables")
