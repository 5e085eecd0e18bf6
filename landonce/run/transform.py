"""A user's `select` and `where`: Spark SQL on every row, between the reading and the writing half of the same task.

    reap (Python: read, decode) ─► Spark: select …, (where) AS keep ─► sow (Python: conform, write, account)

`where` becomes a column and not a filter, so that the writing half sees every record and can account for it. Only
row-wise, deterministic expressions are taken: a replay must make the same rows of the same records.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from landonce.errors import ConfigError, LandonceError, Transient
from landonce.plan.ranges import Partition
from landonce.read.harvest import Rejected
from landonce.read.schema import Schema
from landonce.write.conform import conform
from landonce.write.receipt import BlockResult, Fate
from landonce.write.recipe import Recipe, Task
from landonce.write.sink import COORDINATES
from landonce.write.work import Reaped, deliver, gather, guarded

_ACCOUNT = "__landonce_account"
_KEEP = "__landonce_keep"
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
}


def widened(type_: pa.DataType, name: str) -> pa.DataType:
    """The Spark type that holds every value of this one; an error where there is none."""
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
    if pa.types.is_decimal256(type_):
        raise ConfigError(f"column {name!r} has more than 38 digits, which Spark expressions cannot carry.")
    return type_


def reaped_schema(source: Schema) -> pa.Schema:
    """What the reading half hands to Spark."""
    fields = [pa.field(each.name, widened(each.type, each.name)) for each in source.fields]
    return pa.schema([*(pa.field(name, type_) for name, type_ in _CARRIED.items()), *fields])


def shaped(frame: DataFrame, recipe: Recipe) -> DataFrame:
    """The user's expressions beside the coordinates."""
    keep = F.expr(recipe.where) if recipe.where is not None else F.lit(True)
    chosen = [F.expr(each) for each in recipe.select] or [F.col(_quoted(each.name)) for each in recipe.source.fields]
    return frame.select(*(F.col(name) for name in _PRIVATE), keep.alias(_KEEP), *chosen)


def examine(session: SparkSession, recipe: Recipe) -> None:
    """Refuses expressions that cannot be replayed, and columns that the table does not take, before anything starts."""
    spark_schema = from_arrow_schema(reaped_schema(recipe.source))
    try:
        frame = shaped(session.createDataFrame([], spark_schema), recipe)
        _deterministic(frame)
    except PySparkException as error:
        raise ConfigError(f"transform: {_first_line(error)}") from None
    kind = dict(frame.dtypes)[_KEEP]
    if kind not in ("boolean", "void"):
        raise ConfigError(f"transform.where: is of type {kind}, and must be true or false.")
    _columns_fit(frame, recipe)


def write(session: SparkSession, recipe: Recipe, tasks: Sequence[Task]) -> tuple[BlockResult, ...]:
    """One Spark job: each task reads, shapes, writes and accounts for one block."""
    schema = from_arrow_schema(reaped_schema(recipe.source))
    listed = tuple(tasks)
    indexes = session.range(0, len(listed), 1, len(listed))
    frame = shaped(indexes.mapInArrow(_reaping(recipe, listed), schema), recipe)
    rows = frame.mapInArrow(_sowing(recipe, listed), StructType().add("result", "binary")).collect()
    return tuple(pickle.loads(row.result) for row in rows)  # noqa: S301  made by our own workers in this job


def _reaping(recipe: Recipe, tasks: tuple[Task, ...]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The reading half. Its last row holds nothing but the account, or what went wrong."""

    def reap(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = reaped_schema(recipe.source)
        for index in (value for batch in batches for value in batch.column(0).to_pylist()):
            told: Any
            try:
                crop = gather(recipe, tasks[index])
                told = Reaped(crop.read, crop.bytes_read, tuple(crop.rejected))
                rows = crop.rows.append_column(_ACCOUNT, pa.nulls(crop.rows.num_rows, pa.binary()))
                yield from rows.select(schema.names).cast(schema).to_batches(max_chunksize=50_000)
            except LandonceError as error:
                told = error
            account = {name: pa.nulls(1, schema.field(name).type) for name in schema.names}
            account[_ACCOUNT] = pa.array([pickle.dumps((index, told))], pa.binary())
            yield pa.RecordBatch.from_pydict(account, schema=schema)

    return reap


def _sowing(recipe: Recipe, tasks: tuple[Task, ...]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The writing half."""

    def sow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table = pa.Table.from_batches(list(batches))
        is_account = table.column(_ACCOUNT).is_valid()
        account = table.column(_ACCOUNT).filter(is_account).to_pylist()
        index, told = pickle.loads(account[0])  # noqa: S301  made by our own worker in this task
        rows = table.filter(pc.invert(is_account)).drop_columns([_ACCOUNT])
        task = tasks[index]

        def attempt() -> BlockResult:
            if isinstance(told, LandonceError):
                raise told
            return _sow_rows(recipe, task, rows, told)

        result = guarded(recipe, task, attempt)
        yield pa.RecordBatch.from_pydict({"result": pa.array([pickle.dumps(result)], pa.binary())})

    return sow


def _sow_rows(recipe: Recipe, task: Task, rows: pa.Table, reaped: Reaped) -> BlockResult:
    keep = pc.fill_null(rows.column(_KEEP).combine_chunks().cast(pa.bool_()), False)
    chosen = rows.filter(keep)
    fitting, misfits = conform(chosen, recipe.target, COORDINATES)
    names = {label: topic for topic, label in task.labels}
    rejected = list(reaped.rejected)
    for at, reason in misfits:
        label, number, offset = (chosen.column(name)[at].as_py() for name in COORDINATES)
        rejected.append(Rejected(Partition(names.get(label, label), number), offset, reason))
    account = Reaped(reaped.read, reaped.bytes_read, tuple(rejected))
    return deliver(recipe, task, fitting, account, filtered=rows.num_rows - chosen.num_rows)


def doubtful(tasks: Sequence[Task], why: str) -> tuple[BlockResult, ...]:
    """What is known of a job that Spark could not finish: nothing."""
    return tuple(BlockResult(task.index, Fate.DOUBTFUL, why=why) for task in tasks)


def _deterministic(frame: DataFrame) -> None:
    plan = frame._jdf.queryExecution().analyzed()  # type: ignore[operator]
    for node in _walk(plan):
        if node.nodeName() not in _PLAIN_NODES:
            raise ConfigError(
                f"transform: {node.nodeName()} is not row-wise; select and where make one row of one record, or none."
            )
        expressions = node.expressions()
        for at in range(expressions.size()):
            _refuse_moving(expressions.apply(at))


def _refuse_moving(expression: Any) -> None:
    for each in _walk(expression):
        name = each.getClass().getSimpleName()
        if name in _OTHER_EACH_TIME or not each.deterministic() or "Subquery" in name or name == "PythonUDF":
            raise ConfigError(
                f"transform: {each.sql()} may give another value when a batch is replayed after a crash; "
                "only deterministic expressions are taken."
            )


def _walk(node: Any) -> Iterator[Any]:
    yield node
    children = node.children()
    for at in range(children.size()):
        yield from _walk(children.apply(at))


def _columns_fit(frame: DataFrame, recipe: Recipe) -> None:
    names = [name for name in frame.columns if name not in (*_PRIVATE, _KEEP)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"transform.select: {', '.join(twice)} stands twice.")
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


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def is_expression_error(error: PySparkException) -> bool:
    """Whether a job failed because of a value in a record, and not because of a machine."""
    condition = error.getCondition()
    return bool(condition) and not isinstance(error, Transient)
