"""A user's `select` and `where`: Spark SQL on every row, between the reading and the writing half of the same task.

    read_half (Python: read, decode) ─► Spark: select …, (where) AS keep ─► write_half (Python: fit, write, account)

`where` becomes a column and not a filter, so that the writing half sees every record and can account for it. Only
row-wise, deterministic expressions are taken: a replay must make the same rows of the same records.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from landonce.engine.spark.finders import forget_zips
from landonce.engine.task import DECODED, read_half, write_half
from landonce.errors import ConfigError, LandonceError
from landonce.jvm import spark_errors
from landonce.protocol.receipt import BlockResult, Fate
from landonce.read.block import ReadAccount
from landonce.read.rows import KEEP
from landonce.read.schema.ddl import quoted
from landonce.read.schema.fields import Field, Schema, landed
from landonce.read.schema.values import can_fit
from landonce.sinks.contract import COORDINATES
from landonce.sinks.run import Expressions, RowExpressions, SourceAndTarget
from landonce.sinks.worker import AnyRecipe, Recipe, T, Task, named

_Half = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]

_ACCOUNT = "__landonce_account"
_PRIVATE = (*COORDINATES, _ACCOUNT)
_CARRIED = {"_topic": pa.string(), "_partition": pa.int32(), "_offset": pa.int64(), _ACCOUNT: pa.binary()}
_PLAIN_NODES = {"Project", "LogicalRDD", "LocalRelation", "OneRowRelation", "MapInArrow", "Range", "SubqueryAlias"}
_OTHER_EACH_TIME = {
    "CurrentTimestamp",
    "CurrentDate",
    "CurrentTime",
    "Now",
    "LocalTimestamp",
    "CurrentTimeZone",
    "CurrentUser",
    "SessionUser",
    "CurrentDatabase",
    "CurrentCatalog",
    "SparkVersion",
    "CurrentTimestampLike",
    "CurrentBatchTimestamp",
}
_SUBQUERIES = {"Exists", "ListQuery", "ScalarSubquery", "InSubquery", "LateralSubquery", "DynamicPruningSubquery"}
_MOVING_WORDS = ("now", "today", "tomorrow", "yesterday")
_MOVING_LITERAL = re.compile(
    rf"(?i)\b(?:date|timestamp(?:_ntz|_ltz)?)\s*r?(['\"])\s*(?:{'|'.join(_MOVING_WORDS)})\b[^'\"]*\1"
)


def widened(type_: pa.DataType, name: str) -> pa.DataType:
    """The Spark type that holds every value of this one; an error where there is none."""
    type_ = landed(type_)
    if pa.types.is_list(type_):
        return pa.list_(widened(type_.value_type, name))
    if pa.types.is_struct(type_):
        return pa.struct([child.with_type(widened(child.type, name)) for child in type_])
    unsigned = {
        pa.uint8(): pa.int16(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0),
    }
    if type_ in unsigned:
        return unsigned[type_]
    if pa.types.is_timestamp(type_):
        if type_.unit == "ns":
            raise ConfigError(f"column {name!r} is finer than microseconds, which Spark expressions cannot carry.")
        return pa.timestamp("us", tz="UTC")
    if pa.types.is_time(type_) or isinstance(type_, pa.BaseExtensionType):
        raise ConfigError(
            f"column {name!r} is of a type that Spark expressions cannot carry; declare it as STRING in "
            "`source.kafka.schema`, and landonce converts it to the column's type."
        )
    if pa.types.is_fixed_size_binary(type_):
        return pa.binary()
    if pa.types.is_decimal256(type_):
        raise ConfigError(f"column {name!r} has more than 38 digits, which Spark expressions cannot carry.")
    return type_


def carried_schema(source: Schema) -> pa.Schema:
    """What the reading half gives to Spark."""
    fields = [pa.field(each.name, widened(each.type, each.name)) for each in source.fields]
    return pa.schema([*(pa.field(name, type_) for name, type_ in _CARRIED.items()), *fields])


def shaped(frame: DataFrame, recipe: Expressions) -> DataFrame:
    """The user's expressions beside the coordinates. They are not asked about the row that holds the account."""
    is_record = sql.col(_ACCOUNT).isNull()
    chosen = chosen_columns(recipe)
    names = frame.select(*chosen).columns
    values = [sql.when(is_record, each).alias(name) for name, each in zip(names, chosen, strict=True)]
    carried = [sql.col(name) for name in _PRIVATE]
    return frame.select(*carried, sql.when(is_record, keep_column(recipe)).alias(KEEP), *values)


def keep_column(recipe: RowExpressions) -> Column:
    return sql.expr(recipe.where) if recipe.where is not None else sql.lit(True)


def chosen_columns(recipe: RowExpressions) -> list[Column]:
    """One column for each that lands. `*` stands for the fields of the record."""
    fields = [sql.col(quoted(each.name)) for each in recipe.source.fields]
    chosen = []
    for each in recipe.select or ("*",):
        chosen += fields if each.strip() == "*" else [sql.expr(each)]
    return chosen


def examine(session: SparkSession, recipe: Expressions) -> None:
    """Refuses expressions that cannot be replayed, and columns that the table does not take, before anything starts."""
    if not recipe.transforms:
        return
    for each in (*recipe.select, recipe.where or ""):
        _no_moving_literal(each)
    source = session.createDataFrame([], from_arrow_schema(carried_schema(recipe.source)))
    with _expression_errors():
        chosen = chosen_columns(recipe)
        frame = source.select(keep_column(recipe).alias(KEEP), *chosen)
        _deterministic(frame)
        if len(frame.columns) != len(chosen) + 1:
            raise ConfigError("transform.select: each expression makes one column: list the columns instead of `.*`.")
        _columns_fit(frame.columns[1:], recipe)
        kind = frame.select(KEEP).dtypes[0][1]
        if kind not in ("boolean", "void"):
            raise ConfigError(f"transform.where: is of type {kind}, and must be true or false.")
        _types_fit(shaped(source, recipe), recipe)


def selected_schema(session: SparkSession, source: Schema, select: tuple[str, ...]) -> Schema:
    """The columns that `select` makes of a record. One that no record can leave empty is required."""
    fields = [StructField(each.name, _spark_type(each.type, each.name), not each.required) for each in source.fields]
    for each in select:
        _no_moving_literal(each)
    with _expression_errors():
        frame = session.createDataFrame([], StructType(fields))
        made = to_arrow_schema(frame.select(*chosen_columns(SourceAndTarget(source, source, select))).schema)
    _no_column_twice(made.names)
    return Schema(tuple(Field(each.name, each.type, required=not each.nullable) for each in made))


def _spark_type(type_: pa.DataType, name: str) -> DataType:
    """As `widened`, with what is declared NOT NULL inside, which PySpark's own conversion forgets in arrays and maps."""
    type_ = landed(type_)
    if pa.types.is_list(type_):
        return ArrayType(_spark_type(type_.value_type, name), type_.value_field.nullable)
    if pa.types.is_map(type_):
        return MapType(_spark_type(type_.key_type, name), _spark_type(type_.item_type, name), type_.item_field.nullable)
    if pa.types.is_struct(type_):
        return StructType([StructField(each.name, _spark_type(each.type, name), each.nullable) for each in type_])
    return from_arrow_type(widened(type_, name))


@contextmanager
def _expression_errors() -> Iterator[None]:
    """What Spark does not take is a mistake in the file."""
    try:
        with spark_errors():
            yield
    except PySparkException as error:
        if error.getCondition() == "MISSING_GROUP_BY":
            raise _not_row_wise("an aggregate function") from None
        raise ConfigError(f"transform: {str(error).strip().splitlines()[0]}") from None


def write(session: SparkSession, recipe: Recipe[T], tasks: Sequence[T]) -> tuple[BlockResult, ...]:
    """One Spark job: each task reads, shapes, writes and accounts for one block."""
    schema = from_arrow_schema(carried_schema(recipe.source))
    listed = tuple(tasks)
    indexes = session.range(0, len(listed), 1, len(listed))
    frame = shaped(indexes.mapInArrow(_reading(recipe, listed), schema), recipe)
    rows = frame.mapInArrow(_writing(recipe, listed), StructType().add("result", "binary")).collect()
    return tuple(pickle.loads(row.result) for row in rows)  # noqa: S301  made by our own workers in this job


def _reading(recipe: AnyRecipe, tasks: tuple[Task, ...]) -> _Half:
    """The reading half. Its last row holds nothing but the account, or what went wrong."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = carried_schema(recipe.source)
        for index in (value for batch in batches for value in batch.column(0).to_pylist()):
            outcome: ReadAccount | LandonceError
            try:
                block = read_half(recipe, tasks[index])
                outcome = block.account
                rows = block.rows(DECODED)
                if rows.num_rows:
                    rows = rows.append_column(_ACCOUNT, pa.nulls(rows.num_rows, pa.binary()))
                    yield from rows.select(schema.names).cast(schema).to_batches(max_chunksize=50_000)
            except Exception as error:
                outcome = named(tasks[index], error)
            account = {name: pa.nulls(1, schema.field(name).type) for name in schema.names}
            account[_ACCOUNT] = pa.array([pickle.dumps((index, outcome))], pa.binary())
            yield pa.RecordBatch.from_pydict(account, schema=schema)
        forget_zips()

    return read


def _writing(recipe: Recipe[T], tasks: tuple[T, ...]) -> _Half:
    """The writing half."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table = pa.Table.from_batches(list(batches))
        is_account = table.column(_ACCOUNT).is_valid()
        account = table.column(_ACCOUNT).filter(is_account).to_pylist()
        index, outcome = pickle.loads(account[0])  # noqa: S301  made by our own worker in this task
        rows = table.filter(pc.invert(is_account)).drop_columns([_ACCOUNT])
        result = write_half(recipe, tasks[index], rows, outcome)
        forget_zips()
        yield pa.RecordBatch.from_pydict({"result": pa.array([pickle.dumps(result)], pa.binary())})

    return write


def doubtful(tasks: Sequence[Task], why: str) -> tuple[BlockResult, ...]:
    """What is known of a job that Spark could not finish: nothing."""
    return tuple(BlockResult(task.index, Fate.DOUBTFUL, why=why) for task in tasks)


def _deterministic(frame: DataFrame) -> None:
    plan = frame._jdf.queryExecution().analyzed()
    for node in _walk(plan):
        if node.nodeName() not in _PLAIN_NODES:
            raise _not_row_wise(node.nodeName())
        expressions = node.expressions()
        for expression in map(expressions.apply, range(expressions.size())):
            if found := subquery_in(expression):
                raise ConfigError(f"transform: {found} is a subquery; select and where can use only their own record.")
            if found := moving_in(expression) or _first_sql(expression, lambda each: _kind(each) == "PythonUDF"):
                raise _moving(found)


def _not_row_wise(what: str) -> ConfigError:
    return ConfigError(f"transform: {what} is not row-wise; select and where make one row of one record, or none.")


def subquery_in(expression: Any) -> str | None:
    """The first subquery in it, as SQL."""
    return _first_sql(expression, lambda each: _kind(each) in _SUBQUERIES)


def moving_in(expression: Any) -> str | None:
    """The first thing in it that may have another value at a replay, as SQL. Python functions are taken at their word."""
    return _first_sql(
        expression,
        lambda each: _kind(each) in _OTHER_EACH_TIME or not each.deterministic() or _casts_moving_word(each),
    )


def _first_sql(expression: Any, wanted: Callable[[Any], bool]) -> str | None:
    return next((str(each.sql()) for each in _walk(expression) if wanted(each)), None)


def _kind(expression: Any) -> str:
    return str(expression.getClass().getSimpleName())


def _casts_moving_word(expression: Any) -> bool:
    """`CAST('now' AS TIMESTAMP)` and `to_date('today')` are the moment at which Spark plans the query."""
    if not expression.dataType().typeName().startswith(("date", "timestamp")):
        return False
    return any(
        str(child.eval(None)).strip().lower().startswith(_MOVING_WORDS)
        for child in _children(expression)
        if child.foldable() and child.dataType().typeName() == "string"
    )


def _no_moving_literal(expression: str) -> None:
    """`TIMESTAMP 'now'` is a constant by the time that Spark shows its plan."""
    if found := _MOVING_LITERAL.search(expression):
        raise _moving(found[0])


def _moving(expression: str) -> ConfigError:
    return ConfigError(
        f"transform: {expression} may give another value when a batch is replayed after a crash; use only "
        "deterministic expressions."
    )


def _walk(node: Any) -> Iterator[Any]:
    """Leaves first, so that what is refused is named as narrowly as can be."""
    for child in _children(node):
        yield from _walk(child)
    yield node


def _children(node: Any) -> Iterator[Any]:
    children = node.children()
    for at in range(children.size()):
        yield children.apply(at)


def _no_column_twice(names: Sequence[str]) -> None:
    """Neither among what is selected, nor beside the coordinates."""
    taken = sorted(set(names) & set(COORDINATES))
    if taken:
        raise ConfigError(
            f"transform.select: {', '.join(taken)} cannot be selected: landonce adds the coordinates to every row "
            "itself."
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"transform.select: {', '.join(twice)} appears twice.")


def _columns_fit(names: Sequence[str], recipe: Expressions) -> None:
    _no_column_twice(names)
    known = recipe.target.by_name()
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigError(
            f"transform.select: the table has no column {', '.join(map(repr, unknown))}; it has {', '.join(known)}. "
            "Name expressions with AS."
        )
    missing = [each.name for each in recipe.target.fields if each.required and each.name not in names]
    if missing:
        raise ConfigError(f"transform.select: lacks {', '.join(missing)}, which the table requires.")


def _types_fit(frame: DataFrame, recipe: Expressions) -> None:
    """A value may turn out not to fit, which costs that record; a type that never fits is a mistake in the file."""
    yields = to_arrow_schema(frame.schema)
    for each in recipe.target.fields:
        if each.name in yields.names and not can_fit(yields.field(each.name).type, each):
            made = frame.schema[each.name].dataType.simpleString()
            raise ConfigError(
                f"transform.select: {each.name} is of type {made}, which the table's column ({each.type}) cannot take."
            )
