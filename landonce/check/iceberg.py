"""Sections for Iceberg: the catalog, the ledger, each table, what becomes of records, and the position."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from landonce.check import common
from landonce.check.creation import creation_text
from landonce.check.found import Look, World, nearest, writable
from landonce.check.iceberg_position import position
from landonce.check.iceberg_table import table_findings
from landonce.sinks.contract import Finding, Level
from landonce.sinks.declared import landing_schema
from landonce.sinks.iceberg.catalog import catalog_errors
from landonce.sinks.iceberg.driver import file_recipe
from landonce.sinks.iceberg.jvm import spark_name
from landonce.sinks.iceberg.ledger import TableLedger
from landonce.sinks.iceberg.sink import Seen, survey, table_names
from landonce.sinks.iceberg.table import why_spark
from landonce.sinks.iceberg.types import schema_for
from landonce.sinks.iceberg.worker import TableRecipe
from landonce.sinks.parts import Parts

_EXAMINED = 20
"""Tables of a template that are looked at one by one."""


def looks(parts: Parts, world: World) -> tuple[Look, ...]:
    """In the order in which a start would meet them."""
    sink = parts.iceberg
    tables: list[Look] = [(f"table {name}", partial(_table, parts, world, name)) for name in sink.static]
    if sink.routing.template is not None:
        tables.append(("tables", lambda: _template(parts, world)))
    return (
        ("catalog", lambda: _catalog(parts, world)),
        ("ledger", lambda: _ledger(parts, world)),
        *tables,
        ("records", lambda: _records(parts, world)),
        ("position", lambda: position(parts, world)),
    )


def _catalog(parts: Parts, world: World) -> Iterator[Finding]:
    spec = parts.iceberg.spec
    path = parts.iceberg.spec.sqlite_file
    if path is not None and not path.exists():
        folder = path.parent if path.parent.exists() else nearest(path.parent)
        yield from writable(folder, f"none yet: the first run makes {path}", f"mkdir -p {path.parent}")
        return
    with catalog_errors(spec):
        there = {each: bool(parts.iceberg.catalog.namespace_exists(each)) for each in _namespaces(parts)}
    world.catalog = True
    yield Finding(Level.OK, f"{spec.identity} answers")
    for namespace, found in there.items():
        made = ", and is made with its first table" if parts.iceberg.config.create else ""
        yield Finding(Level.OK, f"namespace {namespace} is " + ("there" if found else f"not there yet{made}"))


def _namespaces(parts: Parts) -> tuple[str, ...]:
    routing = parts.iceberg.routing
    names = (*parts.iceberg.static, *([routing.template] if routing.template is not None else []))
    return tuple(sorted({name.rpartition(".")[0] for name in names} - {""}))


def _ledger(parts: Parts, world: World) -> Iterator[Finding]:
    ledger = parts.ledger
    if not isinstance(ledger, TableLedger):
        yield from common.outside_ledger(parts, world)
        return
    where = f"the table {parts.iceberg.static[0]} itself, branch {parts.iceberg.config.branch}"
    if not _askable(parts, world):
        return
    world.state = ledger.load() if world.catalog else None
    world.ledger = True
    if world.state is None:
        yield Finding(Level.OK, f"{where}; it says nothing of this pipeline yet")
        return
    entry = common.entry(world.state)
    yield replace(entry, what=f"{where}: {entry.what}")
    if ledger.noticed:
        yield Finding(Level.WARNING, ledger.noticed, "nothing to change: the next start does so")


def _askable(parts: Parts, world: World) -> bool:
    """The catalog was asked, or there is nothing to ask yet."""
    path = parts.iceberg.spec.sqlite_file
    return world.catalog or (path is not None and not path.exists())


def _table(parts: Parts, world: World, name: str) -> Iterator[Finding]:
    sink = parts.iceberg
    if not _askable(parts, world):
        return
    seen = survey(sink, [name])[0] if world.catalog else Seen(name)
    world.tables[name] = seen
    sql_name = spark_name(sink.spec, name)
    if seen.table is not None:
        yield from table_findings(sink.config, sql_name, seen.table)
        if sink.config.changes is not None or why_spark(seen.table, unpartitioned=sink.config.unpartitioned):
            sink.spec.spark_conf()  # Spark writes it, so it must be able to open the catalog
        if sink.config.evolve:
            yield Finding(Level.OK, "columns are added and widened as records ask for it")
    elif sink.config.create:
        yield from common.to_be_created(parts, world, partial(creation_text, sink.config, sql_name))
    else:
        yield from common.missing(name)


def _template(parts: Parts, world: World) -> Iterator[Finding]:
    """One table per value. Those that are there are looked at; what is fine of them is not told one by one."""
    sink = parts.iceberg
    routing = sink.routing
    missing = "created" if sink.config.create else "a reason for a dead letter, since `create` is not said"
    yield Finding(
        Level.OK,
        f"a record goes to {routing.template}, by its field {routing.field}; a table that is not there is {missing}",
    )
    if not world.catalog:
        return
    names = [name for name in table_names(sink, world.state) if name not in sink.static]
    seen = survey(sink, names[:_EXAMINED])
    world.tables.update({each.name: each for each in seen})
    for each in seen:
        if each.table is not None:
            found = table_findings(sink.config, spark_name(sink.spec, each.name), each.table)
            bad = [one for one in found if one.level is not Level.OK]
            yield from (replace(one, what=f"{each.name}: {one.what}") for one in bad)
    rest = f"; the first {_EXAMINED} were looked at" if len(names) > _EXAMINED else ""
    yield Finding(Level.OK, f"{len(names)} tables are there{rest}")


def _records(parts: Parts, world: World) -> Iterator[Finding]:
    """What a record becomes, for each table that is there and fit."""
    told, declared = parts.iceberg.config, landing_schema(parts.config)
    recipe = file_recipe(parts)
    world.recipe = recipe
    common.same_fingerprint(world)
    there = {name: each.table for name, each in world.tables.items() if each.table is not None}
    fit = {
        name: schema_for(table, coordinates=True, fold_case=told.case_insensitive, declared=declared)
        for name, table in there.items()
        if all(each.level is not Level.REFUSED for each in table_findings(told, name, table))
    }
    tables = tuple(TableRecipe(name, schema, shape=None, scratch=None) for name, schema in sorted(fit.items()))
    world.recipe = replace(recipe, tables=tables) if fit else None
    if told.changes is not None:
        yield Finding(Level.OK, f"records say what changed ({told.changes.mode}); a row is {', '.join(told.identity)}")
        return
    alone = len(fit) == 1
    for name, schema in sorted(fit.items()):
        found = common.decoded(schema, recipe.max_record_bytes, "" if alone else f", for {name}")
        if alone or found.level is not Level.OK:
            yield found
    if not alone and fit:
        yield Finding(Level.OK, f"decoded to the columns of each of {len(fit)} tables")
