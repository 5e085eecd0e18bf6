"""Every uuid becomes its text, wherever it is; nothing else changes."""

from __future__ import annotations

import random
import uuid
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from landonce.sinks.iceberg.files import plain

CHANCE = random.Random(5)
UUIDS = [CHANCE.choice([uuid.UUID(int=CHANCE.getrandbits(128)), None]) for _ in range(40)]
COLUMN = pa.array([each and each.bytes for each in UUIDS], pa.binary(16)).cast(pa.uuid())
OFFSETS = pa.array([0, 5, None, 5, 40], pa.int32())
ARRAYS = {
    "plain": COLUMN,
    "list": pa.ListArray.from_arrays(OFFSETS, COLUMN),
    "map": pa.MapArray.from_arrays(OFFSETS, pa.array(map(str, range(40))), COLUMN),
    "struct": pa.StructArray.from_arrays(
        [COLUMN, pa.array(range(40))], ["who", "what"], mask=pa.array(np.arange(40) % 7 == 0)
    ),
}


def texts(value: Any) -> Any:
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, dict):
        return {name: texts(each) for name, each in value.items()}
    return type(value)(map(texts, value)) if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize("piece", [slice(None), slice(1, None), slice(2, 4), slice(0, 0)])
def test_uuids_become_text(kind: str, piece: slice) -> None:
    array = ARRAYS[kind][piece]
    rows = pa.table({"before": range(len(array)), "id": array, "after": pa.nulls(len(array), pa.time64("us"))})
    for table in (rows, pa.concat_tables([rows, rows])):
        result = plain(table)
        result.validate(full=True)
        assert result.column_names == table.column_names
        assert result["before"] == table["before"]
        assert result["id"].to_pylist() == [texts(each) for each in table["id"].to_pylist()]
        assert "uuid" not in str(result.schema)


def test_other_rows_are_left_alone() -> None:
    rows = pa.table({"id": [1, 2], "raw": pa.array([b"0123456789abcdef", None], pa.binary(16))})
    assert plain(rows) is rows
