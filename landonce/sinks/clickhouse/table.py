"""A table as the server describes it: engine, keys, columns; rows as they are sent to it; and the statement that creates one.

Columns are matched by name, never by position. A column that ClickHouse computes (MATERIALIZED, ALIAS, EPHEMERAL) is never sent; nor is one
with a DEFAULT whose type cannot be decoded exactly. A NULL for a column with a DEFAULT that is not Nullable takes the default. For a Nullable
column it is a NULL. ClickHouse itself replaces NULLs by the default, but an Array, Map or Tuple has no NULL: such a column is sent as a list
of one value or none, and the statement replaces an empty one by the default. So is a Nullable(Tuple): ClickHouse would convert what is inside
of a NULL.

The columns `n.a`, `n.b` of a Nested are one column `n` here, whose values are lists of objects.

Rows are sent as one Arrow record batch, because ClickHouse makes one block of one batch. A value that does not fit exactly is refused by name.
The names and types of a table that is sent along may take at most 128 KiB, so very many columns are sent as several tables, side by side.

A created table has what the guarantee needs: coordinates, an index on them, a window of tokens. The statement is only `CREATE TABLE IF NOT EXISTS`:
an existing table is never changed or replaced.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from landonce.errors import ConfigError, TableUnfit, TargetRefused
from landonce.read.record_columns import BYTES, as_bytes, as_strings
from landonce.read.schema.ddl import UnfitFields
from landonce.read.schema.fields import Field, Schema, UnsupportedType, landed
from landonce.read.schema.values import fit
from landonce.sinks.clickhouse.address import TableName, literal, quoted
from landonce.sinks.clickhouse.connection import MOST_BYTES_OF_A_FIELD, Connection, Rows
from landonce.sinks.clickhouse.documents import OneOf, list_of_one
from landonce.sinks.clickhouse.nested import (
    absent_inside,
    as_sent,
    as_text,
    empty_value,
    is_empty_value,
    like,
    may_be_absent,
    note,
    noted,
    without_absent,
)
from landonce.sinks.clickhouse.settings import as_text as as_setting
from landonce.sinks.clickhouse.types import (
    VIRTUAL,
    Mapped,
    column_type,
    instead_of,
    map_type,
    parse_type,
    split_list,
    unfit,
    unquote,
)
from landonce.sinks.contract import COORDINATES

ROWS = "landonce_rows"
"""The name of the sent rows in a statement. Further tables have a number after it."""
WINDOW = 10_000
"""Tokens that a created table remembers."""
COORDINATE_TYPES: dict[str, pa.DataType] = {"_topic": pa.string(), "_partition": pa.int32(), "_offset": pa.int64()}
_FITTING = {"_topic": ("String",), "_partition": ("Int32", "Int64"), "_offset": ("Int64",)}
_COORDINATE_COLUMNS = (
    "`_topic` LowCardinality(String)",
    "`_partition` Int32",
    "`_offset` Int64 CODEC(Delta(8), LZ4)",
    "INDEX landonce_offset `_offset` TYPE minmax GRANULARITY 1",
)
VERSION, DELETED = "_version", "_is_deleted"
"""Of a created table whose rows records change: which change a row is, and whether it is a deletion."""
COLLAPSING = "CollapsingMergeTree"
_TABLE = """
SELECT engine, engine_full, partition_key, sorting_key,
       arrayMap((d, t) -> concat(d, '.', t), dependencies_database, dependencies_table) AS views
FROM system.tables WHERE database = {database:String} AND name = {name:String}
"""
_SHAPE = "hex(sipHash128(toString(groupArray((name, type, default_kind, default_expression)))))"
_COLUMNS = """
SELECT name, type, default_kind, default_expression, is_in_partition_key, comment
FROM system.columns WHERE database = {database} AND table = {name} ORDER BY position
"""
_DESCRIBED = f"""
SELECT groupArray((name, type, default_kind, default_expression, is_in_partition_key, comment)) AS columns, {_SHAPE} AS shape
FROM ({_COLUMNS.format(database="{database:String}", name="{name:String}")})
"""  # noqa: S608

_NAMES = re.compile(r"`((?:[^`\\]|\\.)+)`|([A-Za-z_]\w*)")
_STRINGS = re.compile(r"'(?:[^'\\]|\\.|'')*'")


@dataclass(frozen=True)
class Column:
    """One column of `system.columns`."""

    name: str
    type: str
    default_kind: str = ""
    default: str = ""
    in_partition_key: bool = False
    comment: str = ""
    parts: tuple[str, ...] = ()
    """The columns that are this one in the table, if it is a Nested."""
    lacking: bool = False
    """Whether rows that are sent may lack it though records may not: a deletion holds nothing but its key."""

    @property
    def computed(self) -> bool:
        return self.default_kind in ("MATERIALIZED", "ALIAS", "EPHEMERAL")

    @property
    def mapped(self) -> Mapped:
        """A String holds any bytes. Those of a record's key, headers and value land as they are; all other strings are text."""
        found = map_type(self.type)
        return replace(found, arrow=as_bytes(found.arrow)) if self.name in BYTES else found

    @property
    def unsupported(self) -> str:
        """Why its values cannot be decoded exactly. Empty if they can."""
        try:
            map_type(self.type)
        except UnsupportedType as why:
            return str(why)
        return ""

    @property
    def left_out(self) -> bool:
        """Whether it takes its DEFAULT in every row, because its type cannot be decoded exactly."""
        return bool(self.default_kind) and not self.computed and bool(self.unsupported)

    @property
    def optional(self) -> bool:
        """Whether a row may come without it."""
        return self.mapped.nullable or bool(self.default_kind) or self.lacking

    @property
    def empty_default(self) -> bool:
        """Whether its DEFAULT is what an absent value becomes: an empty Array or Map, or a Tuple of NULLs."""
        if not self.default or self.unsupported:
            return False
        arrow = self.mapped.arrow
        return may_be_absent(arrow) and is_empty_value(self.default, self.type, arrow)

    @property
    def wrapped(self) -> bool:
        """Whether it is sent as a list of one value or none."""
        return self.optional and pa.types.is_nested(self.mapped.arrow) and not self.empty_default

    @property
    def wire(self) -> str:
        """The type in which it is sent."""
        mapped = self.mapped
        if self.wrapped:
            return f"Array({mapped.wire})"
        if self.optional and not mapped.nullable and not pa.types.is_nested(mapped.arrow):
            return f"Nullable({mapped.wire})"
        return mapped.wire

    @property
    def targets(self) -> dict[str, str]:
        """What an insert fills: the columns of the table, and what the sent rows hold for each."""
        if not self.parts:
            return {self.name: quoted(self.name)}
        return {part: f"arrayMap(x -> x.{at}, {quoted(self.name)})" for at, part in enumerate(self.parts, 1)}

    @property
    def value(self) -> str:
        """The SQL that reads it from the table."""
        return f"arrayZip({', '.join(map(quoted, self.parts))})" if self.parts else quoted(self.name)

    def field(self) -> Field:
        """What a decoder must produce for this column."""
        field = self.mapped.field(self.name, required=not self.optional)
        type_ = absent_inside(field.type) if self.empty_default else field.type
        return noted(replace(field, type=type_), self.comment)


@dataclass(frozen=True)
class Table:
    """A table, its keys as ClickHouse writes them, and the views behind it."""

    name: TableName
    engine: str
    engine_full: str
    partition_key: str
    sorting_key: str
    views: tuple[str, ...]
    columns: tuple[Column, ...]
    shape: str = ""
    """A hash of the name, type and default of every column."""
    key: tuple[str, ...] = ()
    """The columns by which records change rows; empty where rows are only added."""

    @property
    def replicated(self) -> bool:
        return self.engine.startswith(("Replicated", "Shared"))

    @property
    def family(self) -> str:
        """The engine without `Replicated` or `Shared`."""
        return re.sub(r"^(Replicated|Shared)", "", self.engine)

    @property
    def engine_columns(self) -> tuple[str, ...]:
        """The columns that the engine's definition names."""
        arguments = self.engine_full[len(self.engine) :].lstrip()
        if not arguments.startswith("("):
            return ()
        return tuple(unquote(each) for each in split_list(arguments[1:]) if not each.startswith("'"))

    @property
    def version_column(self) -> str:
        """The column whose highest value a Replacing table keeps; empty if it has none."""
        return next(iter(self.engine_columns), "") if self.family == "ReplacingMergeTree" else ""

    @property
    def deleted_column(self) -> str:
        """The column that marks deletions in a Replacing table; empty if it has none."""
        return self.engine_columns[1] if self.version_column and len(self.engine_columns) > 1 else ""

    @property
    def sign_column(self) -> str:
        """The column that takes rows away in a Collapsing table; empty for other engines."""
        return next(iter(self.engine_columns), "") if self.family == COLLAPSING else ""

    @property
    def record_columns(self) -> tuple[Column, ...]:
        """The columns but for those that say which change of a key a row is."""
        ours = (self.version_column, self.deleted_column, self.sign_column) if self.key else ()
        return tuple(each for each in self.columns if each.name not in ours)

    @property
    def resend_harmless(self) -> bool:
        """Whether two copies of a row become one: a Replacing table with a version column that landonce fills."""
        version = self.version_column
        return any(each.name == version and not each.default_kind for each in self.columns)

    @property
    def ttl(self) -> str:
        """When rows expire; empty if they never do."""
        found = re.search(r"(?s)\sTTL (.+?)(?:\sSETTINGS \w+ = .*)?$", self.engine_full)
        return found[1] if found else ""

    def setting(self, name: str) -> str | None:
        """A setting in the table's own definition."""
        found = re.search(rf"\b{re.escape(name)}\s*=\s*([^,\s]+)", self.engine_full)
        return unquote(found[1]) if found else None


def describe(connection: Connection, name: TableName, key: tuple[str, ...] = ()) -> Table:
    """The table as it is now. Raises `TargetRefused` if there is none. `key`: by which records change its rows."""
    asked = {"database": name.database, "name": name.name}
    found = connection.ask(_TABLE, asked).to_pylist()
    if not found:
        raise TargetRefused(
            f"ClickHouse has no table {name}, or the user may not see it.",
            safe="Nothing was written.",
            command="create it, or set `create: true` in {file}; or grant SELECT and INSERT on it",
        )
    (described,) = connection.ask(_DESCRIBED, asked).to_pylist()
    columns = with_nested([Column(*values) for values in (each.values() for each in described["columns"])])
    (row,) = found
    found_row = {**row, "views": tuple(sorted(row["views"]))}
    return Table(name=name, **found_row, columns=columns, shape=described["shape"], key=key)


def with_nested(columns: Sequence[Column]) -> tuple[Column, ...]:
    """The columns, with one in the place of the parts of each Nested."""
    names_taken = {each.name for each in columns}
    parts: dict[str, list[Column]] = {}
    for each in columns:
        outer = each.name.partition(".")[0]
        if _is_part(each) and outer not in names_taken and not (each.computed or each.left_out):
            parts.setdefault(outer, []).append(each)
    first = {some[0].name: _nested(outer, some) for outer, some in parts.items()}
    others = {each.name for some in parts.values() for each in some[1:]}
    return tuple(first.get(each.name, each) for each in columns if each.name not in others)


def _is_part(column: Column) -> bool:
    """Whether ClickHouse takes it for a part of a Nested, whose arrays must have equal lengths."""
    outer, dot, inner = column.name.partition(".")
    return bool(outer and dot and inner) and column.type.startswith("Array(")


def _nested(name: str, parts: Sequence[Column]) -> Column:
    elements = [f"{quoted(each.name.partition('.')[2])} {parse_type(each.type).arguments[0]}" for each in parts]
    kind, default = "", ""
    if all(each.default_kind for each in parts):
        defaults = [f"CAST({each.default}, {literal(each.type)})" for each in parts]
        kind, default = "DEFAULT", f"arrayZip({', '.join(defaults)})"
    if all(each.empty_default for each in parts):
        default = "[]"
    in_key = any(each.in_partition_key for each in parts)
    return Column(
        name, f"Array(Tuple({', '.join(elements)}))", kind, default, in_key, parts=tuple(each.name for each in parts)
    )


def shape_now(name: TableName) -> str:
    """A subquery that yields the table's shape when the statement runs."""
    columns = _COLUMNS.format(database=literal(name.database), name=literal(name.name))
    return f"SELECT {_SHAPE} FROM ({columns})"  # noqa: S608


def words(expression: str) -> frozenset[str]:
    """Every name of a function or column in an expression."""
    return frozenset(quoted or plain for quoted, plain in _NAMES.findall(_STRINGS.sub("''", expression)))


def key_columns(table: Table) -> tuple[Column, ...]:
    """The columns that decide on the table partition, directly or through default expressions. Each comes after those that its own
    expression names."""
    return _with_named(table, [each for each in table.columns if each.in_partition_key])


def columns_in(table: Table, expression: str) -> tuple[Column, ...]:
    """The same for the columns that an expression names."""
    named = words(expression)
    return _with_named(table, [each for each in table.columns if each.name in named])


def _with_named(table: Table, start: Iterable[Column]) -> tuple[Column, ...]:
    """These columns, and those that their default expressions name, each after those that its own expression names."""
    columns = {each.name: each for each in table.columns}
    ordered: dict[str, Column] = {}
    entered: set[str] = set()

    def enter(column: Column) -> None:
        if column.name in entered:
            return
        entered.add(column.name)
        for word in sorted(words(column.default)):
            if word in columns:
                enter(columns[word])
        ordered[column.name] = column

    for each in start:
        enter(each)
    return tuple(ordered.values())


def filled(columns: Iterable[Column]) -> tuple[Column, ...]:
    """The columns that records fill. Raises `TableUnfit` with every column that they cannot fill."""
    mine = [each for each in columns if not (each.computed or each.left_out or each.name in COORDINATES)]
    reasons = [(each.name, "part of a Nested column" if _is_part(each) else each.unsupported) for each in mine]
    bad = [f"{name}: {why}" for name, why in reasons if why]
    if bad:
        raise TableUnfit(
            "landonce cannot fill these columns exactly: " + "; ".join(bad) + ".",
            safe="Nothing was written.",
            command="give each of them a DEFAULT (landonce then leaves the column to ClickHouse), or change its type",
        )
    return tuple(mine)


def schema_of(columns: Iterable[Column]) -> Schema:
    """The fields that a decoder must produce for a table."""
    return Schema(tuple(each.field() for each in filled(columns)))


def coordinate_faults(columns: Iterable[Column]) -> tuple[str, ...]:
    """The coordinate columns that are missing or have a wrong type."""
    there = {each.name: each for each in columns}
    faults = []
    for name in COORDINATES:
        column = there.get(name)
        bare = re.sub(r"^LowCardinality\((.*)\)$", r"\1", column.type) if column is not None else ""
        if column is None:
            faults.append(f"{name} is missing")
        elif column.computed or bare not in _FITTING[name]:
            faults.append(f"{name} is {column.default_kind} {column.type}".replace("  ", " "))
    return tuple(faults)


def structure(columns: Iterable[Column]) -> str:
    """Names and types of the columns, as they are sent."""
    return ", ".join(f"{quoted(each.name)} {each.wire}" for each in columns)


def sent_rows(table: Table, columns: Sequence[Column]) -> str:
    """The FROM clause of an insert: the sent rows, in which columns that are sent as lists of one value or none have their values."""
    return as_inserted(_with_named(table, [each for each in columns if each.wrapped or each.mapped.members]), columns)


def as_inserted(columns: Iterable[Column], sent: Sequence[Column]) -> str:
    """The sent rows, in which these columns have the values that an insert would give them. Each column comes after those that its default
    names, and is computed in a query around theirs: few levels, since ClickHouse limits the depth of a query."""
    source = " PASTE JOIN ".join(name for name, _ in _side_by_side(sent))
    levels: list[list[Column]] = []
    names = frozenset[str]()
    for each in columns:
        if not levels or words(each.default) & names:
            levels.append([])
            names = frozenset()
        levels[-1].append(each)
        names |= {each.name}
    for level in levels:
        values = [(each in sent, f"{_as_inserted(each, each in sent)} AS {quoted(each.name)}") for each in level]
        replaced = ", ".join(value for is_sent, value in values if is_sent)
        listed = [f"* REPLACE ({replaced})" if replaced else "*", *(value for is_sent, value in values if not is_sent)]
        source = f"(SELECT {', '.join(listed)} FROM {source})"  # noqa: S608
    return source


def to_evaluate(table: Table, columns: Sequence[Column], rows: pa.Table) -> tuple[str, tuple[Rows, ...]]:
    """What an expression of these columns is evaluated on: the FROM clause, in which they have the values that an insert of these rows would
    give them, and what is sent for it."""
    sent = [each for each in columns if each.name in rows.column_names and not each.computed] or [
        each for each in table.columns if each.name in COORDINATES
    ]
    return as_inserted(columns, sent), tables_of(fitted(rows, sent, table.name), sent)


def _as_inserted(column: Column, sent: bool) -> str:
    """The value that an insert would give a column."""
    name, type_ = quoted(column.name), literal(column.type)
    default = column.default or f"defaultValueOfTypeName({type_})"
    if not sent:
        return f"CAST({default}, {type_})"
    if column.mapped.members:
        found = [f"notEmpty({name}.{at}), CAST(CAST({name}.{at}, {literal(f'Array({each})')})[1], {type_})"
                 for at, each in enumerate(column.mapped.members, 1)]  # fmt: skip
        return f"multiIf({', '.join(found)}, CAST(NULL, {type_}))"
    if column.wrapped:
        given = f"CAST({name}, {literal(f'Array({column.type})')})[1]"  # of an empty list, nothing is converted
        if column.mapped.items is not None:  # ClickHouse casts no list of lists to a list of QBits
            given = f"CAST(arrayResize({name}[1], {column.mapped.items}), {type_})"
        return given if column.mapped.nullable else f"if(empty({name}), CAST({default}, {type_}), {given})"
    if column.wire.startswith("Nullable(") and not column.mapped.nullable:
        return f"CAST(ifNull({name}, {default}), {type_})"
    return f"CAST({name}, {type_})"


# Rows as they are sent.


def fitted(rows: pa.Table, columns: Sequence[Column], table: TableName) -> pa.Table:
    """The columns in the types in which they are sent, one chunk each."""
    arrays = [_fit(rows, each, table) for each in columns]
    return pa.table(arrays, names=[each.name for each in columns]).combine_chunks()


def tables_of(rows: pa.Table, columns: Sequence[Column], compression: str | None = None) -> tuple[Rows, ...]:
    """The rows as one table, or as several side by side. Each is one record batch in Arrow's stream format."""
    tables = []
    for name, some in _side_by_side(columns):
        chosen = rows.select([each.name for each in some]).combine_chunks()
        batches = chosen.to_batches()
        if len(batches) != 1:
            raise ValueError(f"{len(batches)} record batches are not one block")
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, chosen.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
            writer.write_batch(batches[0])
        tables.append(Rows(name, structure(some), out.getvalue()))
    return tuple(tables)


def _side_by_side(columns: Sequence[Column]) -> list[tuple[str, list[Column]]]:
    groups: list[list[Column]] = [[]]
    size = 0
    for each in columns:
        more = len(structure([each]).encode()) + 2
        if groups[-1] and size + more > MOST_BYTES_OF_A_FIELD:
            groups.append([])
            size = 0
        groups[-1].append(each)
        size += more
    return [(f"{ROWS}_{at}" if at else ROWS, group) for at, group in enumerate(groups)]


def _fit(rows: pa.Table, column: Column, table: TableName) -> pa.Array:
    values = rows.column(column.name).combine_chunks()
    if column.name in COORDINATES:
        return values.cast(COORDINATE_TYPES[column.name])
    values = as_sent(_checked(rows, column, table, values))
    if column.empty_default and (values.null_count or values.type != landed(column.mapped.arrow)):
        values = without_absent(values, like(landed(column.mapped.arrow), values.type, column.field()))
    if "Nullable(Tuple(" in column.wire:
        values = values.cast(_nullable_inside(values.type))
    judge = column.mapped.judge
    if isinstance(judge, OneOf):
        return judge.lists(values)
    if not column.wrapped:
        return values
    return list_of_one(values)


def _nullable_inside(type_: pa.DataType) -> pa.DataType:
    """A NULL object has NULLs inside, also where an object must have none."""
    if pa.types.is_list(type_):
        return pa.list_(_nullable_inside(type_.value_type))
    if pa.types.is_map(type_):
        return pa.map_(type_.key_type, _nullable_inside(type_.item_type))
    if pa.types.is_struct(type_):
        return pa.struct([(each.name, _nullable_inside(each.type)) for each in type_])
    return type_


def _checked(rows: pa.Table, column: Column, table: TableName, values: pa.Array) -> pa.Array:
    """Values fit already, unless the table was altered since they were decoded: then they are checked again here. Strings are not checked
    where ClickHouse itself refuses one that is no value of the type: Enum, UUID, addresses, FixedString."""
    absent = values.null_count > 0 and not column.optional
    field = column.field()
    decoded = landed(field.type if column.empty_default else column.mapped.arrow)
    if not absent and as_text(values.type) == as_text(decoded) and not column.mapped.checked_again:
        return values
    try:
        values, faults = fit(values, replace(field, type=like(landed(field.type), values.type, field)))
    except pa.ArrowNotImplementedError:
        why = f"values of type {values.type} cannot be made one."
    else:
        if not faults:
            return values
        at = int(faults[0].rows.argmax())
        topic, number, offset = (rows.column(name)[at] for name in COORDINATES)
        why = f"{topic}[{number}], offset {offset}: {faults[0].reason(column.name)}."
    raise TargetRefused(
        f"{table}, column {column.name} {column.type}: {why}",
        safe="Nothing of this block was sent.",
        command="change the column, or select, filter or cast the field in {file}, then start again",
    )


# The table that landonce creates.


@dataclass(frozen=True)
class Layout:
    """Of a table that landonce creates, beside its columns."""

    engine: str = "MergeTree"
    order_by: str | None = None
    """Default: the key; without one the coordinates, which makes a probe cheapest; after the primary key, if there is one."""
    primary_key: str | None = None
    partition_by: str | None = None
    ttl: str | None = None
    settings: tuple[tuple[str, str | int | float | bool], ...] = ()
    comment: str = ""
    cluster: str = ""
    key: tuple[str, ...] = ()
    """The columns by which records change rows; empty where rows are only added."""

    @property
    def full_engine(self) -> str:
        """With a key, the plain engines become those that keep the newest row of a key."""
        name, _, arguments = self.engine.partition("(")
        if not self.key or name.strip() not in ("MergeTree", "ReplicatedMergeTree", "SharedMergeTree"):
            return self.engine
        given = [*split_list(arguments), VERSION, DELETED]
        return f"{name.strip().replace('MergeTree', 'ReplacingMergeTree')}({', '.join(given)})"

    @property
    def change_columns(self) -> tuple[tuple[str, str], ...]:
        """The columns that say which change of a key a row is, and their types, named as the engine names them."""
        table = self.planned(TableName("", "planned"))
        named = {table.version_column: "UInt64", table.deleted_column: "UInt8", table.sign_column: "Int8"}
        return tuple((name, type_) for name, type_ in named.items() if name) if self.key else ()

    @property
    def sorted_by(self) -> str:
        return (
            self.order_by
            or ", ".join(map(quoted, self.key))
            or ", ".join(filter(None, (self.primary_key, *COORDINATES)))
        )

    @property
    def window(self) -> str:
        """The setting for how many tokens the table remembers."""
        return f"{'' if self.engine.startswith(('Replicated', 'Shared')) else 'non_'}replicated_deduplication_window"

    @property
    def on_cluster(self) -> str:
        return f" ON CLUSTER {quoted(self.cluster)}" if self.cluster else ""

    @property
    def clauses(self) -> str:
        """What comes after the columns."""
        settings = {self.window: WINDOW, **dict(self.settings)}
        listed = ", ".join(
            f"{name} = {literal(value) if isinstance(value, str) else as_setting(value)}"
            for name, value in settings.items()
        )
        parts = [
            self.full_engine,
            f"PARTITION BY {self.partition_by}" if self.partition_by else "",
            f"PRIMARY KEY ({self.primary_key})" if self.primary_key else "",
            f"ORDER BY ({self.sorted_by})",
            f"TTL {self.ttl}" if self.ttl else "",
            f"SETTINGS {listed}",
        ]
        return "\n".join(filter(None, parts))

    def planned(self, name: TableName) -> Table:
        """The table as it would be described, but for its columns."""
        engine = self.full_engine.partition("(")[0].strip()
        clauses = self.clauses.replace("\n", " ")
        return Table(name, engine, clauses, self.partition_by or "", self.sorted_by, (), (), key=self.key)


PLAIN = Layout()


def create_statement(table: TableName, declared: Schema, layout: Layout = PLAIN) -> str:
    """The DDL, to run or to show."""
    key = layout.key
    for name, _ in layout.change_columns:
        if name in declared.by_name():
            raise ConfigError(f"a field cannot be called {name}: with `mode: upsert`, landonce fills that column")
        if name in COORDINATES:
            raise ConfigError(
                f"engine: {name} is one of the coordinates, and says neither which change of a key a row is nor its sign"
            )
    planned, mine = layout.planned(table), {*declared.by_name(), *COORDINATES, *dict(layout.change_columns)}
    for name in filter(None, (planned.version_column, planned.deleted_column, planned.sign_column)):
        if name not in mine:
            raise ConfigError(f"engine: {layout.engine} names the column {name}, which the table would not have")
    fields = tuple(replace(each, required=each.required or each.name in key) for each in declared.fields)
    columns = column_definitions(replace(declared, fields=fields))
    changes = (f"{quoted(name)} {type_}" for name, type_ in layout.change_columns)
    listed = ",\n    ".join((*columns, *changes, *_COORDINATE_COLUMNS))
    comment = f"\nCOMMENT {literal(layout.comment)}" if layout.comment else ""
    return f"CREATE TABLE IF NOT EXISTS {table.sql}{layout.on_cluster}\n(\n    {listed}\n)\nENGINE = {layout.clauses}{comment}"


def column_definitions(declared: Schema) -> tuple[str, ...]:
    """The columns for these fields, as DDL says them. Raises for fields that no column can hold."""
    plain = (replace(each, type=as_strings(each.type)) if each.name in BYTES else each for each in declared.fields)
    declared = replace(declared, fields=tuple(plain))
    faults = [fault for each in declared.fields for fault in unfit(each.type, each.name, required=each.required)]
    if faults:
        raise UnfitFields(faults, instead_of(declared))
    columns = []
    for each in declared.fields:
        if each.name in COORDINATES:
            raise ConfigError(f"a field cannot be called {each.name}: that is one of the coordinates")
        if each.name in VIRTUAL:
            raise ConfigError(f"a field cannot be called {each.name}: ClickHouse has a column of that name")
        absent = not each.required and may_be_absent(each.type)
        default = f" DEFAULT {empty_value(each.type)}" if absent else ""
        said = "" if each.name in BYTES else note(each.type)
        comment = f" COMMENT {literal(said)}" if said else ""
        columns.append(f"{quoted(each.name)} {column_type(each.type, required=each.required)}{default}{comment}")
    return tuple(columns)
