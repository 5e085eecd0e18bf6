"""What should have become of each record: the pipeline's decoding, `where`, `select` and routing, without its run.

Without a transform this needs no Spark. With one, Spark evaluates the same expressions over the records of a window. A
record lands in all of its tables or, where it does not fit one of them or has none, in the dead letters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import col

from landonce.engine.transform import chosen_columns, keep_column, widened
from landonce.errors import TransformFailed
from landonce.jvm import spark_errors
from landonce.read.decoding import Decode, decoder_of
from landonce.read.formats import Reject
from landonce.read.route import of_topic, route_values, routes
from landonce.read.rows import KEEP, conform
from landonce.sinks.audit import HeldTables, Mask, Offsets
from landonce.verify.judge import Fates
from landonce.verify.topic import Window

_AT = "__landonce_at"


class Expectation(Protocol):
    """Tells what should have become of the records of a window."""

    def of(self, window: Window) -> Fates: ...


class DecodedRecordsLand:
    """Every record that can be decoded for all of its tables lands in them."""

    def __init__(self, tables: HeldTables) -> None:
        self._tables = tables
        self._decoder_of = lru_cache(maxsize=None)(self._decoder)

    def _decoder(self, table: str) -> tuple[Decode | None, bool]:
        """The decoder, None if records for the table are dead letters; and whether records change rows."""
        tables, decoding = self._tables, self._tables.recipe.decoding
        schema = tables.schema(table)
        if schema is None:
            lost = tables.lost(table)
            return (decoder_of(lost, decoding) if lost is not None else None), False
        identity = tables.identity(table) if tables.changes is not None else ()
        return decoder_of(schema, decoding, identity, tables.changes), tables.changes is not None

    def of(self, window: Window) -> Fates:
        values, format_ = window.values, self._tables.recipe.decoding.format
        routing = of_topic(self._tables.routing, window.topic)
        if routing is None:
            return _fates(window.offsets, np.ones(len(window.offsets), np.bool_), {}, {})
        routed = routes(routing, values if routing.field is None else route_values(values, routing.field, format_))
        dead = np.zeros(len(window.offsets), np.bool_)
        dead[_indexes(routed.rejects)] = True
        rows: dict[str, tuple[Offsets, pa.Table]] = {}
        changes: dict[str, tuple[Offsets, pa.Table]] = {}
        for table, taken in routed.tables.items():
            if not len(taken):
                continue
            (decode, changing), places = self._decoder_of(table), _numbers(taken)
            if decode is None:
                dead[places] = True
                continue
            whole = len(places) == len(window.offsets)
            messages = window.messages if whole else [window.messages[at] for at in places.tolist()]
            decoded = decode(values if whole else values.take(taken), messages)
            (changes if changing else rows)[table] = places[decoded.kept], decoded.table
            dead[places[_indexes(decoded.rejects)]] = True
        return _fates(window.offsets, dead, rows, changes)


class Transformed:
    """Of the records that can be decoded, `where` filters, and those that do not fit a table are dead letters."""

    def __init__(self, tables: HeldTables, session: SparkSession) -> None:
        self._recipe = tables.recipe
        self._routing = tables.routing
        self._schema_of = lru_cache(maxsize=None)(tables.schema)
        self._session = session
        self._decode = decoder_of(self._recipe.source, self._recipe.decoding)

    def of(self, window: Window) -> Fates:
        decoded = self._decode(window.values, window.messages)
        dead = np.ones(len(window.offsets), np.bool_)
        dead[decoded.kept] = False
        if not len(decoded.kept):
            return Fates(window.offsets, dead, {})
        result = self._evaluate(decoded.table.append_column(_AT, pa.array(decoded.kept)))
        chosen = result.filter(pc.fill_null(result.column(KEEP), False)).sort_by(_AT)
        routing = of_topic(self._routing, window.topic)
        if routing is None:
            return Fates(window.offsets, np.ones(len(window.offsets), np.bool_), {})
        at, field = _numbers(chosen.column(_AT)), routing.field
        column = pa.nulls(len(at)) if field is None else chosen.column(field).combine_chunks().cast(pa.string())
        routed = routes(routing, column)
        dead[at[_indexes(routed.rejects)]] = True
        rows: dict[str, tuple[Offsets, pa.Table]] = {}
        for table, taken in routed.tables.items():
            if not len(taken):
                continue
            places, schema = at[_numbers(taken)], self._schema_of(table)
            if schema is None:
                dead[places] = True
                continue
            fitted, misfits = conform(chosen.take(taken), schema, (_AT,))
            dead[places[[index for index, _ in misfits]]] = True
            rows[table] = _numbers(fitted.column(_AT)), fitted.drop_columns([_AT])
        return _fates(window.offsets, dead, rows, {})

    def _evaluate(self, rows: pa.Table) -> pa.Table:
        wide = pa.schema([pa.field(each.name, widened(each.type, each.name)) for each in rows.schema])
        try:
            with spark_errors():
                keep = keep_column(self._recipe).cast("boolean").alias(KEEP)
                frame = self._session.createDataFrame(rows.cast(wide))
                return frame.select(col(_AT), keep, *chosen_columns(self._recipe)).toArrow()
        except PySparkException as error:
            raise TransformFailed(
                f"select or where failed on a record: {str(error).strip().splitlines()[0]}",
                safe="An audit changes nothing.",
                command="correct `transform` in {file}",
            ) from None


def _numbers(array: pa.Int64Array | pa.ChunkedArray) -> Offsets:
    return np.asarray(array.to_numpy(), np.int64)


def _indexes(rejects: Iterable[Reject]) -> Offsets:
    return np.array([each.index for each in rejects], np.int64)


_Found = Mapping[str, tuple[Offsets, pa.Table]]
"""By table: the indexes of the records that were decoded for it, and what they are, or change."""


def _fates(offsets: Offsets, dead: Mask, rows: _Found, changes: _Found) -> Fates:
    """A record that is dead for one table lands in none."""
    places = {table: at for table, (at, _) in (*rows.items(), *changes.items())}
    alive = {table: ~dead[at] for table, at in places.items()}

    def living(found: _Found) -> dict[str, pa.Table]:
        return {
            table: held if alive[table].all() else held.filter(pa.array(alive[table]))
            for table, (_, held) in found.items()
        }

    return Fates(
        offsets, dead, {table: at[alive[table]] for table, at in places.items()}, living(changes), living(rows)
    )
