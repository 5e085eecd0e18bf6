"""Changes that workers write themselves (`write: equality`): new rows as data files, and equality deletes, which name the keys
whose older rows are gone.

An equality delete removes rows of earlier commits only, since it has the sequence number of its own commit. So a commit must not
hold two rows of one key, and the last change of a key must win over all changes of its batch:

    within a block     the worker writes the last change of each key, in the order of topic, partition and offset
    between blocks     the driver compares the keys of the blocks, and adds position deletes for rows that a later block changed

An equality delete counts in the partition that its file belongs to, or in the whole table if its file has no partition. If the
key decides the partition, and the table never had another partition spec, the deletes are written into partitions, where readers
look them up for fewer files. Otherwise a row may have moved here from any partition, and the deletes are written for the whole table.

The files of equality deletes hold the coordinates of the changes beside the keys: with them the driver orders the blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.conversions import to_bytes
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.table import Table
from pyiceberg.types import StringType

from landonce.errors import TableUnfit
from landonce.read.envelopes import DELETE, INSERT, OPERATION
from landonce.sinks.iceberg.config import Iceberg
from landonce.sinks.iceberg.files import write_files
from landonce.sinks.iceberg.storage import not_written
from landonce.sinks.iceberg.table import TableShape, unpartitioned_spec, why_spark
from landonce.sinks.iceberg.types import COLUMNS
from landonce.sinks.snapshot import Origin, origin_of

_VERSION = 2
_PATH, _POSITION = 2147483546, 2147483545
"""The field ids that Iceberg reserves for the columns of position deletes."""
_POSITIONS = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": str(_PATH)}),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": str(_POSITION)}),
    ]
)
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class EqualityWriter:
    """How a worker writes the changes of one table. Picklable."""

    rows: TableShape
    deletes: TableShape
    """Its columns are the key and the coordinates."""
    identity: tuple[str, ...]
    key: tuple[int, ...]
    """The field ids of the key's columns."""
    append_inserts: bool = False
    """An insert is the first change of its key: nothing older is deleted."""

    @staticmethod
    def of(config: Iceberg, identity: tuple[str, ...], table: Table) -> EqualityWriter:
        rows, schema = TableShape.of(table, unpartitioned=config.unpartitioned), table.schema()
        whole = whole_table(config, identity, table)
        spec = unpartitioned_spec(table) if whole else table.spec()
        assert spec is not None, "the driver adds it first"
        columns = {*identity, *COLUMNS}
        kept = Schema(*(each for each in schema.fields if each.name in columns), schema_id=schema.schema_id)
        deletes = replace(rows, schema=kept.model_dump_json(), spec=spec.model_dump_json())
        absent = [name for name in identity if name not in schema.column_names]
        if absent:
            raise TableUnfit(
                f"{rows.name} has no column {', '.join(absent)}, by which `identity` says that rows are found.",
                safe="Nothing was written.",
                command="correct `identity` in {file}",
            )
        key = tuple(schema.find_field(name).field_id for name in identity)
        return EqualityWriter(rows, deletes, identity, key, config.inserts == "append")

    def write(self, rows: pa.Table, origin: Origin) -> tuple[tuple[DataFile, ...], int]:
        """The files of a block, and for how many of its rows they stand, by their own counts."""
        order = _order(rows)
        codes = key_codes(rows, self.identity)[order]
        first = order[np.unique(codes, return_index=True)[1]]
        last = order[len(codes) - 1 - np.unique(codes[::-1], return_index=True)[1]]
        operations = rows.column(OPERATION).combine_chunks()
        deletion = _equals(operations.take(pa.array(last)), DELETE)
        inserted = _equals(operations.take(pa.array(first)), INSERT) & ~deletion & self.append_inserts
        data = write_files(self.rows, rows.take(pa.array(np.sort(last[~deletion]))).drop_columns([OPERATION]), origin)
        gone = rows.take(pa.array(np.sort(last[~inserted]))).select([*self.identity, *COLUMNS])
        deletes = write_files(self.deletes, gone, origin, equality=self.key)
        both = int(np.count_nonzero(~deletion & ~inserted))
        changed = sum(each.record_count for each in (*data, *deletes)) - both
        return (*data, *deletes), changed + rows.num_rows - len(last)


def require_equality(config: Iceberg, name: str, table: Table) -> None:
    """Raises if changes cannot be written to the table as equality deletes."""
    version = table.metadata.format_version
    reason = f"its format version is {version}, and they need version {_VERSION}" if version != _VERSION else ""
    reason = reason or why_spark(table, unpartitioned=config.unpartitioned)
    if reason:
        raise TableUnfit(
            f"{name}: workers cannot write equality deletes for it, since {reason}.",
            safe="Nothing was written.",
            command="set `write: merge` in {file}"
            + (", or upgrade the table to version 2" if version < _VERSION else ""),
        )


def require_whole_rows(name: str, table: Table, filled: Iterable[str]) -> None:
    """Raises if the table has columns that the pipeline does not fill: a row that is written again would lose their values."""
    left = sorted({each.name for each in table.schema().fields} - set(filled) - set(COLUMNS))
    if left:
        raise TableUnfit(
            f"{name} has columns that no record fills: {', '.join(left)}. With `write: equality`, a change writes the whole row again, and "
            "their values would be lost.",
            safe="Nothing was written.",
            command="set `write: merge` in {file}, which keeps them; or drop the columns",
        )


def whole_table(config: Iceberg, identity: tuple[str, ...], table: Table) -> bool:
    """Whether deletes have to be written for the whole table, without a partition."""
    spec = table.spec()
    if config.unpartitioned or spec.is_unpartitioned() or len(table.specs()) > 1:
        return True
    key = {each.field_id for each in table.schema().fields if each.name in identity}
    return not {each.source_id for each in spec.fields} <= key


def key_codes(rows: pa.Table, names: Sequence[str]) -> Numbers:
    """One number per row: the same for rows whose values in these columns are the same. Null is a value."""
    codes: Numbers = np.zeros(rows.num_rows, np.int64)
    for name in names:
        array = rows.column(name).combine_chunks()
        array = array.storage if isinstance(array, pa.ExtensionArray) else array
        if pa.types.is_dictionary(array.type):
            array = array.cast(array.type.value_type)
        encoded = array.dictionary_encode(null_encoding="encode")
        both = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
        codes = np.unique(both, return_inverse=True)[1].astype(np.int64)
    return codes


def _order(rows: pa.Table) -> Numbers:
    """The rows in the order of topic, partition and offset; those of one record stay as they are."""
    topics = rows.column(COLUMNS[0]).cast(pa.string())
    coordinates = rows.select(list(COLUMNS)).set_column(0, COLUMNS[0], topics)
    found = pc.sort_indices(coordinates, [(name, "ascending") for name in COLUMNS])
    return np.asarray(found.to_numpy(), np.int64)


def _equals(array: pa.Array, value: str) -> npt.NDArray[np.bool_]:
    return np.asarray(pc.equal(array, value).to_numpy(zero_copy_only=False), np.bool_)


# Between blocks: the driver's part, once for each batch.


def between_blocks(
    name: str, table: Table, identity: tuple[str, ...], files: Sequence[DataFile]
) -> tuple[DataFile, ...]:
    """Position deletes for the rows of these files whose key has a later change in another block of the batch."""
    if len({origin_of(each.file_path) for each in files}) < 2:
        return ()
    schema = sanitize_column_names(table.schema())
    names = {schema.find_field(table.schema().find_field(each).field_id).name: each for each in (*identity, *COLUMNS)}
    try:
        keys = []  # what each file names, in its order
        for each in files:
            with table.io.new_input(each.file_path).open() as stream:
                rows = pq.read_table(stream, columns=list(names))
            keys.append(rows.select(list(names)).rename_columns(list(names.values())))
        return tuple(
            _write_positions(table.io, files[at], positions) for at, positions in superseded(files, keys, identity)
        )
    except OSError as error:
        raise not_written(error, name) from None


def superseded(
    files: Sequence[DataFile], keys: Sequence[pa.Table], identity: Sequence[str]
) -> Iterator[tuple[int, Numbers]]:
    """The data files that hold rows which a later change of the batch replaced or deleted, and the positions of these rows.

    `keys`: what each file names, in its order: keys and coordinates.
    """
    rows = pa.concat_tables(keys)
    order = _order(rows)
    ordered = rows.select(list(COLUMNS)).take(pa.array(order))
    another = np.zeros(rows.num_rows, np.int64)
    for column in ordered.columns:
        another[1:] |= np.asarray(pc.not_equal(column[1:], column[:-1]).to_numpy(), np.int64)
    rank = np.empty(rows.num_rows, np.int64)
    rank[order] = np.cumsum(another)  # rows of one record have one rank
    codes = key_codes(rows, identity)
    newest = np.zeros(codes.max(initial=-1) + 1, np.int64)
    np.maximum.at(newest, codes, rank)
    older = rank < newest[codes]
    start = 0
    for at, (file, named) in enumerate(zip(files, keys, strict=True)):
        positions = np.flatnonzero(older[start : start + named.num_rows])
        start += named.num_rows
        if len(positions) and file.content is DataFileContent.DATA:
            yield at, positions


def _write_positions(io: FileIO, file: DataFile, positions: Numbers) -> DataFile:
    """A file of position deletes for one data file, beside it and in its partition."""
    folder, _, name = file.file_path.rpartition("/")
    origin = origin_of(name)
    assert origin is not None, "a worker of this pipeline wrote the file"
    path, written = f"{folder}/{origin.file_name()}", to_bytes(StringType(), file.file_path)
    rows = pa.table([pa.array([file.file_path] * len(positions), pa.string()), pa.array(positions)], schema=_POSITIONS)
    with io.new_output(path).create(overwrite=True) as stream:
        sink = stream if isinstance(stream, pa.NativeFile) else pa.PythonFile(stream, mode="w")
        pq.write_table(rows, sink, compression="zstd", store_schema=False)
        size = sink.tell()
    made = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=file.partition,
        record_count=len(positions),
        file_size_in_bytes=size,
        lower_bounds={_PATH: written},  # by equal bounds, readers know that the deletes are for one file
        upper_bounds={_PATH: written},
    )
    made.spec_id = file.spec_id
    return made
