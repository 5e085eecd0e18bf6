"""Which rows of which data file are deleted: position deletes (v2) and deletion vectors (v3), each file read once.

A delete applies to data files that are not newer than it, by sequence number. So if a file was registered again after
the delete, only the first registration is affected.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile
from pyiceberg.types import LongType, NestedField, StringType
from pyroaring import BitMap64

from landonce.verify.held.columns import Columns, Positions
from landonce.verify.held.snapshot import LiveFile

_POSITION_DELETES = Columns(
    Schema(
        NestedField(2147483546, "file_path", StringType(), required=True),
        NestedField(2147483545, "pos", LongType(), required=True),
    )
)


class Deletes:
    """All deletes of a snapshot, as one bitmap for each delete file and data file."""

    def __init__(self, io: FileIO, files: Iterable[LiveFile]) -> None:
        self._found: dict[str, list[tuple[int, BitMap64]]] = defaultdict(list)
        for sequence, file in {each.file.file_path: (each.sequence, each.file) for each in files}.values():
            for path, positions in _read(io, file).items():
                self._found[path].append((sequence, positions))

    def of(self, live: LiveFile) -> Positions:
        """The positions of its deleted rows, in order."""
        union = BitMap64()
        for sequence, positions in self._found.get(live.file.file_path, ()):
            if sequence >= live.sequence:
                union |= positions
        return np.array(union.to_array(), np.int64)


def _read(io: FileIO, file: DataFile) -> dict[str, BitMap64]:
    found: dict[str, BitMap64] = defaultdict(BitMap64)
    if file.file_format == FileFormat.PUFFIN:
        with io.new_input(file.file_path).open() as stream:
            puffin = PuffinFile(stream.read())
        for vector in deletion_vectors_from_puffin_file(puffin):
            found[vector.referenced_data_file] |= _bitmap(vector.to_vector())
        return found
    for batch in _POSITION_DELETES.of(io, file):
        paths = batch.column("file_path").dictionary_encode()
        indices = paths.indices.to_numpy(zero_copy_only=False)
        for at, path in enumerate(paths.dictionary.to_pylist()):
            found[path] |= _bitmap(batch.column("pos").filter(pa.array(indices == at)))
    return found


def _bitmap(positions: pa.Array | pa.ChunkedArray) -> BitMap64:
    return BitMap64(np.asarray(positions.to_numpy()).astype(np.uint64))
