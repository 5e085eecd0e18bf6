"""Equality deletes, piece by piece, against what Python's own dicts say; and what a file may not ask for."""

from __future__ import annotations

import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.manifest import DataFile, DataFileContent

from landonce.sinks.iceberg.config import Iceberg
from landonce.sinks.iceberg.deletes import key_codes, superseded
from landonce.sinks.iceberg.held_files import _DeletedKeys

BASE = {"table": "db.t", "identity": "id", "changes": {"mode": "operation"}}
Keys = st.lists(st.tuples(st.integers(0, 3) | st.none(), st.sampled_from(["a", "b", None])), max_size=30)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"table": "db.t", "write": "equality"}, "has no `changes`"),
        ({**BASE, "inserts": "append"}, "goes with `write: equality` only"),
        (
            {**BASE, "changes": {"mode": "upsert"}, "write": "equality", "inserts": "append"},
            "with `upsert`, none does",
        ),
        ({**BASE, "write": "equality", "properties": {"format-version": 3}}, "format-version 2"),
        ({**BASE, "write": "equality", "properties": {"write.format.default": "orc"}}, "write.format.default parquet"),
        ({**BASE, "identity": (), "create": True}, "a table that is created needs `identity`"),
        ({**BASE, "write": "rewrite"}, "merge"),
    ],
)
def test_ways_to_write_that_do_not_go_together(section: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Iceberg(**section)


def table(keys: list[tuple[int | None, str | None]]) -> pa.Table:
    return pa.table(
        {
            "n": pa.array([n for n, _ in keys], pa.int64()),
            "s": pa.array([s for _, s in keys], pa.string()).dictionary_encode(),
        }
    )


def plain(keys: list[tuple[int | None, str | None]]) -> pa.Table:
    """As an audit reads them."""
    rows = table(keys)
    return pa.table([rows.column(0).combine_chunks(), rows.column(1).cast(pa.string()).combine_chunks()], ["n", "s"])


@given(keys=Keys)
def test_rows_have_the_same_code_if_their_keys_are_the_same(keys: list[tuple[int | None, str | None]]) -> None:
    codes = key_codes(table(keys), ("n", "s"))
    for one, left in zip(codes, keys, strict=True):
        assert [right == left for right in keys] == [bool(other == one) for other in codes]


@given(
    blocks=st.lists(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=6), min_size=1, max_size=5),
    shuffled=st.randoms(),
)
def test_the_last_change_of_a_key_wins_over_all_blocks(blocks: list[list[tuple[int, bool]]], shuffled: Any) -> None:
    """Offsets grow from block to block; within a block, a key is there once. A change is a row, or a deletion."""
    files, named, wanted, rows = [], [], {}, {}
    offset = 0
    for number, block in enumerate(blocks):
        changes = list({key: (key, alive) for key, alive in block}.values())
        offsets = range(offset, offset + len(changes))
        offset += len(changes)
        for content, some in (
            (DataFileContent.DATA, [(key, at) for (key, alive), at in zip(changes, offsets, strict=True) if alive]),
            (DataFileContent.EQUALITY_DELETES, [(key, at) for (key, _), at in zip(changes, offsets, strict=True)]),
        ):
            files.append(DataFile.from_args(content=content, file_path=f"{number}", partition=None))
            named.append(
                pa.table(
                    {
                        "id": pa.array([key for key, _ in some], pa.int64()),
                        "_topic": pa.array(["t"] * len(some), pa.string()),
                        "_kafka_partition": pa.array([0] * len(some), pa.int32()),
                        "_offset": pa.array([at for _, at in some], pa.int64()),
                    }
                )
            )
        for (key, alive), at in zip(changes, offsets, strict=True):
            wanted.pop(key, None)
            if alive:
                wanted[key] = at
    order = list(range(len(files)))
    shuffled.shuffle(order)
    files, named = [files[at] for at in order], [named[at] for at in order]
    gone = dict(superseded(files, named, ("id",)))
    for at, (file, keys) in enumerate(zip(files, named, strict=True)):
        if file.content == DataFileContent.DATA:
            left = np.setdiff1d(np.arange(keys.num_rows), gone.pop(at, np.empty(0, np.int64)))
            for row in keys.take(pa.array(left)).to_pylist():
                assert row["id"] not in rows
                rows[row["id"]] = row["_offset"]
    assert rows == wanted
    assert not gone, "only data files have rows"


@given(keys=Keys, deleted=st.lists(Keys, max_size=4), sequence=st.integers(0, 6))
def test_an_audit_knows_which_rows_later_deletes_name(
    keys: list[tuple[int | None, str | None]], deleted: list[list[tuple[int | None, str | None]]], sequence: int
) -> None:
    """Files with sequence numbers 1, 2, …; rows of a file with number `sequence`."""
    named = [(key, number) for number, some in enumerate(deleted, 1) for key in some]
    if not named:
        return
    found = _DeletedKeys(plain([key for key, _ in named]), np.array([number for _, number in named], np.int64))
    gone = found.gone(
        pa.record_batch([each.combine_chunks() for each in plain(keys).columns], names=["n", "s"]), sequence
    )
    later = {key for key, number in named if number > sequence}
    assert gone.tolist() == [at for at, key in enumerate(keys) if key in later]


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (pa.decimal128(20, 2), [Decimal("1.10"), Decimal("-9999.99"), None]),
        (pa.date32(), [0, -100_000, None]),
        (pa.timestamp("us", "UTC"), [0, -(2**55), None]),
        (pa.binary(), [b"", b"\0", None]),
        (pa.binary(16), [b"a" * 16, b"b" * 16, None]),
        (pa.uuid(), [uuid.UUID(int=1).bytes, uuid.UUID(int=2).bytes, None]),
        (pa.bool_(), [True, False, None]),
        (pa.large_string(), ["", "ü", None]),
    ],
    ids=str,
)
def test_keys_of_every_type(type_: pa.DataType, values: list[Any]) -> None:
    storage = type_.storage_type if isinstance(type_, pa.BaseExtensionType) else type_

    def column(some: list[Any]) -> pa.Array:
        array = pa.array(some, storage)
        return pa.ExtensionArray.from_storage(type_, array) if storage is not type_ else array

    rows = column([values[0], values[1], values[2], values[0]])
    first, second, third, again = key_codes(pa.table([rows], names=["k"]), ("k",))
    assert first == again
    assert len({first, second, third}) == 3
    for wanted, gone in (([values[0]], [0, 3]), ([values[2]], [2]), ([values[1], values[2]], [1, 2])):
        keys = _DeletedKeys(pa.table([column(wanted)], names=["k"]), np.full(len(wanted), 5, np.int64))
        assert keys.gone(pa.record_batch([rows], names=["k"]), 4).tolist() == gone
        assert keys.gone(pa.record_batch([rows], names=["k"]), 5).tolist() == []
