"""CSV and TSV: one value is one line, and its values become fields by the names that the file gives them.

Arrow reads many records at once, as lines of one text, each behind its number. They count as read only if the numbers of the
rows are exactly 0, 1, 2, … n-1. A record whose quotes or line breaks could reach into its neighbours is taken out before; a piece with a
wrong number of values is split until the bad records are alone. So the result of a record never depends on its neighbours.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.types as pt

from landonce.protocol.reasons import Code, Reason, of_field
from landonce.read.formats import Collected, Decoded, Format, Indexes
from landonce.read.formats.json.decode import BYTE_ORDER_MARK, JsonDecoder, blocks
from landonce.read.schema.fields import JSON, Field, Schema, folded, landed
from landonce.read.schema.texts import cast_or_null, mask_of
from landonce.read.schema.values import MISSING, Fault, add_reasons, check_plain, from_plain

_VERSION = 4
_KEYED = 2
"""Increased whenever equal bytes make other values of keys: what lands in rows may change without that."""
_WAYS = 8
_NUMBER = "\0number"
_LARGEST_VALUE = 2**30
"""What a record's size does not limit is the same value with a name before it."""
_MARK = "\ufeff"
_NO_JSON = Reason("is not valid JSON", Code.INVALID_VALUE)


@dataclass(frozen=True)
class Csv(Format):
    """Values in the order of `columns`."""

    columns: tuple[str, ...]
    delimiter: str = ","
    quote: str = '"'
    null: str = ""

    def decoder(self, schema: Schema, *, max_record_bytes: int) -> CsvDecoder:
        return CsvDecoder(self, schema, max_record_bytes)

    def decisive(self) -> tuple[object, ...]:
        return "csv", _VERSION, *self._written()

    def keyed_by(self) -> tuple[object, ...]:
        return "csv", _KEYED, *self._written()

    def _written(self) -> tuple[object, ...]:
        return self.columns, self.delimiter, self.quote, self.null

    @property
    def written(self) -> pa.DataType:
        return pa.string()

    def fields(self, values: object) -> Schema:
        """Text: what else the values are, only `source.kafka.schema` says."""
        del values
        return Schema(tuple(Field(name, pa.string()) for name in self.columns))


class CsvDecoder:
    """Decodes lines to the fields of one schema. A field that no column names is missing."""

    def __init__(self, format_: Csv, schema: Schema, max_record_bytes: int) -> None:
        self._format, self._schema, self._limit = format_, schema, max_record_bytes
        quote, delimiter = re.escape(format_.quote), re.escape(format_.delimiter)
        value = rf"(?:{quote}(?:[^{quote}]|{quote}{quote})*{quote}|(?:[^{quote}{delimiter}\r\n][^{delimiter}\r\n]*)?)"
        self._zeros = b"0" * len(format_.null) if format_.null.isdigit() else b""
        """Before the number of each row, so that no number is the text that means null."""
        self._special = rf"[{quote}\r\n]"
        self._line = rf"(?s)\A{value}(?:{delimiter}{value})*[\r\n]*\z"
        by_name = {folded(name, schema.fold_case): name for name in format_.columns}
        names = {each.name: [folded(name, schema.fold_case) for name in each.place().names] for each in schema.fields}
        self._columns = {
            field: next((by_name[name] for name in mine if name in by_name), None) for field, mine in names.items()
        }
        self._written_as_json: dict[str, JsonDecoder] = {}
        for each in schema.fields:
            if self._columns[each.name] is None:
                continue
            # A number of any size is not written as JSON, and no value is one of a column that is never filled.
            if pt.is_nested(each.type) or (each.type == JSON and not each.unquoted and each.is_filled):
                alone = replace(schema, fields=(replace(each, aliases=(), required=False),))
                self._written_as_json[each.name] = JsonDecoder(alone, max_record_bytes=_LARGEST_VALUE)
            else:
                check_plain(each)

    def decode(self, values: pa.BinaryArray) -> Decoded:
        found = Collected(self._schema.arrow)
        rows, records = found.screen(values, self._limit, text=True)
        # Quotes or line breaks may reach into the neighbours of a record, or forge their numbers: only what is one line is joined with others.
        special = np.flatnonzero(mask_of(pc.match_substring_regex(records, pattern=self._special)))
        lines = mask_of(pc.match_substring_regex(records.take(pa.array(special)), pattern=self._line))
        if not lines.all():
            for at in special[~lines].tolist():
                found.reject(rows[at], self._reason(records.slice(at, 1)))
            good = np.ones(len(rows), np.bool_)
            good[special[~lines]] = False
            rows, records = rows[good], records.filter(pa.array(good))
        for start, stop in blocks(records):
            self._read(found, rows[start:stop], records.slice(start, stop - start))
        return found.result()

    def _read(self, found: Collected, rows: Indexes, records: pa.BinaryArray) -> None:
        table = self._table(records)
        if table is not None:
            self._keep(found, rows, table)
        elif len(rows) == 1:
            found.reject(int(rows[0]), self._reason(records))
        else:
            step = -(-len(rows) // _WAYS)
            for start in range(0, len(rows), step):
                self._read(found, rows[start : start + step], records.slice(start, step))

    def _table(self, records: pa.BinaryArray) -> pa.Table | None:
        """The text of the values; None unless each record is exactly one row."""
        wrong: list[pcsv.InvalidRow] = []
        table = self._lines(records, wrong)
        if table is None or wrong or table.num_rows != len(records) + 1:
            return None
        numbers = cast_or_null(table.column(0).combine_chunks(), pa.int64())
        in_order = not numbers.null_count and np.array_equal(numbers.to_numpy(), np.arange(len(numbers)))
        return table.remove_column(0).slice(0, len(records)) if in_order else None

    def _lines(self, records: pa.BinaryArray, wrong: list[pcsv.InvalidRow]) -> pa.Table | None:
        """One more line follows, so that a quote which is left open in the last record is noticed, too."""
        count, delimiter = len(records), self._format.delimiter.encode()
        numbers = pa.array(np.arange(count)).cast(pa.string()).cast(pa.binary())
        numbers = pc.binary_join_element_wise(self._zeros, numbers, b"")
        lines = pc.binary_join_element_wise(numbers, delimiter, records, b"\n", b"")
        length = int(np.frombuffer(lines.buffers()[1], np.int32, count + 1)[-1])
        text = lines.buffers()[2].slice(0, length).to_pybytes() + b"%s%d%s\n" % (
            self._zeros,
            count,
            delimiter * len(self._format.columns),
        )

        def refuse(row: pcsv.InvalidRow) -> str:
            wrong.append(row)
            return "skip"

        names = [_NUMBER, *self._format.columns]
        try:
            return pcsv.read_csv(
                pa.py_buffer(text),
                read_options=pcsv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=names),
                parse_options=pcsv.ParseOptions(
                    delimiter=self._format.delimiter,
                    quote_char=self._format.quote,
                    double_quote=True,
                    newlines_in_values=True,
                    invalid_row_handler=refuse,
                ),
                convert_options=pcsv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()),
                    null_values=[self._format.null],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid:
            return None

    def _reason(self, record: pa.BinaryArray) -> Reason:
        if record[0].as_py().startswith(_MARK.encode()):
            return BYTE_ORDER_MARK
        wrong: list[pcsv.InvalidRow] = []
        table = self._lines(record, wrong)
        if table is not None and table.num_rows + len(wrong) > 2:
            return Reason("is more than one line", Code.MALFORMED)
        if table is not None and table.num_rows == 2:
            return Reason("has text beside a quoted value", Code.MALFORMED)
        if wrong:
            count = wrong[0].actual_columns - 1
            said = f"has {count} value{'s' if count != 1 else ''}, not {wrong[0].expected_columns - 1}"
            return Reason(said, Code.MALFORMED)
        return Reason("leaves a quote open", Code.MALFORMED)

    def _keep(self, found: Collected, rows: Indexes, table: pa.Table) -> None:
        columns, reasons = [], dict[int, Reason]()
        for each in self._schema.fields:
            name = self._columns[each.name]
            if name is None:
                values = pa.nulls(len(rows), landed(each.type))
                faults = [Fault(np.ones(len(rows), np.bool_), MISSING)] if each.required else []
            elif each.name in self._written_as_json:
                values, unfit = self._from_json(table.column(name).combine_chunks(), each)
                reasons = unfit | reasons
                faults = [Fault(mask_of(values.is_null()), MISSING)] if each.required else []
            else:
                values, faults = from_plain(table.column(name).combine_chunks(), each)
            columns.append(values)
            own: dict[int, Reason] = {}
            add_reasons(own, faults, each.name)
            if name == self._format.columns[0]:
                own |= {at: BYTE_ORDER_MARK for at in own if (table.column(name)[at].as_py() or "").startswith(_MARK)}
            reasons = own | reasons
        found.settle(rows, columns, reasons)

    def _from_json(self, text: pa.StringArray, field: Field) -> tuple[pa.Array, dict[int, Reason]]:
        """Each text as the field of a JSON record. Only what is one whole value may become a part of a record."""
        there = np.flatnonzero(mask_of(text.is_valid()))
        whole = np.array([_is_one_value(each) for each in text.take(pa.array(there)).to_pylist()], np.bool_)
        some, no_json = there[whole], there[~whole]
        name = json.dumps({field.name: 0})[:-2].encode()
        records = pc.binary_join_element_wise(name, text.take(pa.array(some)).cast(pa.binary()), b"}", b"")
        decoded = self._written_as_json[field.name].decode(records)
        at = np.full(len(text), -1, np.int64)
        at[some[decoded.kept]] = np.arange(len(decoded.kept))
        values = decoded.table.column(0).combine_chunks().take(pa.array(at, mask=at < 0))
        reasons = {int(row): of_field(field.name, _NO_JSON) for row in no_json}
        return values, reasons | {int(some[row]): reason for row, reason in decoded.rejects}


def _is_one_value(text: str) -> bool:
    try:
        json.loads(text)
    except (RecursionError, ValueError):
        return False
    return True
