"""What should have become of each record: the pipeline's decoding, `where` and `select`, without its run.

Without a transform this needs no Spark. With one, Spark evaluates the same expressions over the records of a window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from landonce.errors import TransformFailed
from landonce.read.decode import JsonDecoder
from landonce.verify.judge import Expected
from landonce.verify.topic import Window
from landonce.write.conform import conform
from landonce.write.recipe import Recipe

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_AT = "__landonce_at"
_KEEP = "__landonce_keep"


class Expectation(Protocol):
    """Tells what should have become of the records of a window."""

    def of(self, window: Window) -> Expected: ...


class Decoded:
    """Every record that can be decoded lands, every other one is a dead letter."""

    def __init__(self, recipe: Recipe) -> None:
        self._decoder = JsonDecoder(recipe.source, max_record_bytes=recipe.max_record_bytes)

    def of(self, window: Window) -> Expected:
        lands = np.zeros(len(window.offsets), np.bool_)
        lands[self.decode(window)[0]] = True
        return Expected(window.offsets, lands, ~lands)

    def decode(self, window: Window) -> tuple[Any, pa.Table]:
        """The records that can be decoded, by their index in the window, and their rows."""
        decoded = self._decoder.decode(window.values)
        return np.asarray(decoded.kept.to_numpy(), np.int64), decoded.table


class Transformed:
    """Of the records that can be decoded, `where` filters, and those that do not fit the table are dead letters."""

    def __init__(self, recipe: Recipe, session: SparkSession) -> None:
        self._recipe = recipe
        self._session = session
        self._decoded = Decoded(recipe)

    def of(self, window: Window) -> Expected:
        kept, rows = self._decoded.decode(window)
        lands = np.zeros(len(window.offsets), np.bool_)
        dead = np.ones(len(window.offsets), np.bool_)
        dead[kept] = False
        if len(kept):
            result = self._evaluate(rows.append_column(_AT, pa.array(kept)))
            chosen = result.filter(pc.fill_null(result.column(_KEEP), False))
            at = np.asarray(chosen.column(_AT).to_numpy(), np.int64)
            lands[at] = True
            _, misfits = conform(chosen, self._recipe.target, (_AT,))
            refused = at[[index for index, _ in misfits]] if misfits else at[:0]
            lands[refused], dead[refused] = False, True
        return Expected(window.offsets, lands, dead)

    def _evaluate(self, rows: pa.Table) -> pa.Table:
        from pyspark.errors import PySparkException

        from landonce.run.transform import widened

        wide = pa.schema([pa.field(each.name, widened(each.type, each.name)) for each in rows.schema])
        try:
            return self._select(self._session.createDataFrame(rows.cast(wide))).toArrow()
        except PySparkException as error:
            raise TransformFailed(
                f"select or where failed on a record: {str(error).strip().splitlines()[0]}",
                safe="An audit changes nothing.",
                command="correct `transform` in {file}",
            ) from None

    def _select(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql.functions import col

        from landonce.run.transform import chosen_columns, keep_column

        keep = keep_column(self._recipe).cast("boolean").alias(_KEEP)
        return frame.select(col(_AT), keep, *chosen_columns(self._recipe))
