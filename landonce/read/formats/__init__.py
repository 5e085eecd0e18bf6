"""One folder or file per format: bytes become Arrow columns, or rejects with a reason. Here is what a format is, and what its decoder returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from landonce.protocol.reasons import NO_VALUE, NOT_UTF8, Reason, too_large
from landonce.read.schema.fields import Path, Schema
from landonce.read.schema.texts import cast_or_null

Indexes = npt.NDArray[np.int64]


class Reject(NamedTuple):
    """``index`` points into the decoded array."""

    index: int  # type: ignore[assignment]  # hides `tuple.index`, which nothing calls
    reason: Reason


@dataclass(frozen=True)
class Decoded:
    """Row ``i`` of ``table`` came from input ``kept[i]``. Every other input is rejected or filtered; order is preserved."""

    table: pa.Table
    kept: Indexes
    rejects: tuple[Reject, ...] = ()
    filtered: Indexes = field(default_factory=lambda: np.empty(0, np.int64))
    without_column: tuple[str, ...] = ()
    """Fields that no column takes, as far as they were noticed."""

    def is_whole(self, count: int) -> bool:
        """Whether each of `count` records became one row."""
        return len(self.kept) == count and not self.rejects and not len(self.filtered)


@dataclass
class Collected:
    """What became of the inputs so far, in any order; `result` puts it in order."""

    schema: pa.Schema
    tables: list[pa.Table] = field(default_factory=list)
    kept: list[Indexes] = field(default_factory=list)
    filtered: list[Indexes] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)

    def keep(self, rows: Indexes, columns: list[pa.Array]) -> None:
        self.kept.append(rows)
        self.tables.append(pa.Table.from_arrays(columns, schema=self.schema))

    def reject(self, row: int, reason: Reason) -> None:
        self.rejects.append(Reject(int(row), reason))

    def settle(self, rows: Indexes, columns: list[pa.Array], reasons: Mapping[int, Reason]) -> None:
        """Rejects the rows that have a reason, by their place among `rows`, and keeps the others."""
        for at, reason in reasons.items():
            self.reject(rows[at], reason)
        if reasons:
            good = np.ones(len(rows), np.bool_)
            good[list(reasons)] = False
            rows, columns = rows[good], [each.filter(pa.array(good)) for each in columns]
        self.keep(rows, columns)

    def screen(
        self, values: pa.BinaryArray, max_record_bytes: int, *, text: bool = False
    ) -> tuple[Indexes, pa.BinaryArray]:
        """Rejects values that are absent, too large, or not UTF-8 where they are `text`. Returns the others, and their rows."""
        values = values.cast(pa.binary())
        lengths = pc.binary_length(values).fill_null(-1).to_numpy(zero_copy_only=False)
        good: npt.NDArray[np.bool_] = (lengths >= 0) & (lengths <= max_record_bytes)
        for at in np.flatnonzero(~good).tolist():
            self.reject(at, too_large(int(lengths[at]), max_record_bytes) if lengths[at] >= 0 else NO_VALUE)
        if text:
            unreadable = cast_or_null(values, pa.string()).is_null().to_numpy(zero_copy_only=False)
            for at in np.flatnonzero(good & unreadable).tolist():
                self.reject(at, NOT_UTF8)
            good &= ~unreadable
        return np.flatnonzero(good), values if good.all() else values.filter(pa.array(good))

    def add(self, decoded: Decoded, rows: Indexes) -> None:
        """Adds the result of decoding some of the inputs: those at ``rows``."""
        self.kept.append(rows[decoded.kept])
        self.tables.append(decoded.table)
        self.rejects += [Reject(int(rows[at]), reason) for at, reason in decoded.rejects]

    def result(self) -> Decoded:
        kept, filtered = (np.concatenate([np.empty(0, np.int64), *each]) for each in (self.kept, self.filtered))
        table = pa.concat_tables(self.tables) if self.tables else self.schema.empty_table()
        if (np.diff(kept) < 0).any():
            order = np.argsort(kept)
            kept, table = kept[order], table.combine_chunks().take(pa.array(order))
        return Decoded(table, kept, tuple(sorted(self.rejects)), np.sort(filtered))


@dataclass(frozen=True)
class RecordType:
    """What a schema says of a type of records: of an Avro record, or of a Protobuf message."""

    name: str
    """With its namespace or package."""
    key: tuple[Path, ...] = ()
    """The fields that the schema marks as the key of an event, by their names in records."""

    @staticmethod
    def of(name: str, marks: Iterable[tuple[int, Path]]) -> RecordType:
        """`marks`: the position in the key, and the field. Of equal positions, the first field comes first."""
        return RecordType(name, tuple(path for _, path in sorted(marks, key=lambda each: each[0])))


class RecordTypes(NamedTuple):
    """The types of some records. `number`: of each record, which of `types` it has; -1 if its type is not known."""

    number: Indexes
    types: tuple[RecordType, ...] = ()


class Decoder(Protocol):
    """Decodes the values of records to the fields of one schema. It may keep what it learns; a row never depends on that."""

    def decode(self, values: pa.BinaryArray) -> Decoded: ...


class Format(ABC):
    """How the values of records hold their fields. Picklable, hashable, and its repr hides secrets."""

    has_fields: ClassVar[bool] = True
    """Whether records have fields at all."""
    marks_nulls: ClassVar[bool] = False
    """Whether its schemas say which fields may be null."""
    is_text: ClassVar[bool] = False
    """Whether what is no struct is the text of the bytes: a number in a key is its digits."""

    @abstractmethod
    def decoder(self, schema: Schema, *, max_record_bytes: int) -> Decoder:
        """Raises `ValueError` or `TypeError` if no record of this format can become these fields."""

    @abstractmethod
    def decisive(self) -> tuple[object, ...]:
        """What decides which rows records become, as JSON: it is part of every plan's fingerprint."""

    @property
    def written(self) -> pa.DataType | None:
        """The type in which its decoders give any value as the record writes it. None: values have types of their own."""
        return None

    def fields(self, values: Sequence[bytes]) -> Schema | None:
        """The fields that the format itself knows of these records. None: their JSON shows them."""
        del values
        return None

    def described(self) -> Schema | None:
        """The fields that every record may have, if the format itself says so without looking at records."""
        return None

    @property
    def has_types(self) -> bool:
        """Whether schemas say what records are: their types have names, and may mark the fields of the key."""
        return False

    def examples(self, values: pa.BinaryArray) -> list[bytes]:
        """Some of these values, one of each schema, for `fields`."""
        return [each for each in values.slice(0, 1).to_pylist() if each is not None]

    def types_of(self, values: pa.BinaryArray) -> RecordTypes:
        """The types of these records, by the schemas that they were written with, or are resolved to."""
        return RecordTypes(np.full(len(values), -1, np.int64))

    def types(self, values: Sequence[bytes], subjects: Sequence[str]) -> tuple[RecordType, ...]:
        """The types that decide the keys of events: those of the format's own schemas. With a registry, those of these records, and of the
        newest schemas of these subjects."""
        del values, subjects
        return ()

    def keyed_by(self) -> tuple[object, ...]:
        """What the id of an event depends on, beside the values of its key: as JSON, empty for most formats."""
        return ()

    def bodies(self, values: pa.BinaryArray) -> pa.BinaryArray:
        """The values without their frames, where JSON shows the fields."""
        return values

    def for_keys(self) -> Format:
        """The same format for keys: a key of one field may be that value alone."""
        return self

    def alone(self) -> Format | None:
        """The same format for values that are the only field of a schema, and have no name. None: its values have fields."""
        return None
