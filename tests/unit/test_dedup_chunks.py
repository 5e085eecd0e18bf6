"""How records are cut into chunks, and what of a record a chunk keeps."""

from __future__ import annotations

import numpy as np
import pytest

from landonce.dedup import chunks
from landonce.dedup.chunks import cut, headers_of


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        ([], []),
        ([3], [(0, 1)]),
        ([3, 3, 3], [(0, 3)]),
        ([1, 1, 1, 1, 1], [(0, 4), (4, 5)]),
        ([6, 5, 1, 9], [(0, 1), (1, 3), (3, 4)]),
        ([50, 50, 1], [(0, 1), (1, 2), (2, 3)]),
        ([0, 0, 0], [(0, 3)]),
    ],
)
def test_a_chunk_has_few_records_and_bytes_or_one_large_record(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], found: list[tuple[int, int]]
) -> None:
    monkeypatch.setattr(chunks, "MOST", 4)
    monkeypatch.setattr(chunks, "_BYTES", 10)
    assert list(cut(np.array(sizes, np.int64))) == found


def test_headers_are_kept_where_there_are_any() -> None:
    assert headers_of([None, None]).to_pylist() == [None, None]
    assert headers_of([None, [("a", b"\x01"), ("b", None)], []]).to_pylist() == [
        None,
        b'[["a", "01"], ["b", null]]',
        None,
    ]
    assert headers_of([{"a": "x"}]).to_pylist() == [b'[["a", "78"]]']
