"""A declared schema, in the syntax of Spark SQL: `event STRING NOT NULL, at TIMESTAMP(3), tags ARRAY<STRING>`.

These types are not in Spark SQL: `TIMESTAMP(p)` has p digits after the second, and reads JSON integers as ticks of that
size since the epoch (3 is milliseconds); `TIME`, `UUID` and `FIXED(n)` are for targets that have them. A plain
`TIMESTAMP` has microseconds and accepts no integers, because their unit is unknown. `BINARY` and `FIXED` are base64 in
JSON. `JSON` takes a value of any kind and keeps its JSON text. `NOT NULL` may also be inside: `STRUCT<a: INT NOT NULL>`,
`ARRAY<INT NOT NULL>`, `MAP<STRING, INT NOT NULL>`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

import pyarrow as pa

from landonce.errors import ConfigError
from landonce.read.schema.fields import JSON, MOST_DIGITS, Field, Schema, spelled

_WORDS = re.compile(r"\s*(`(?:[^`]|``)+`|[A-Za-z_][A-Za-z0-9_]*|\d+|[<>(),:])")
_PLAIN = {
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "binary": pa.binary(),
    "uuid": pa.uuid(),
    "json": JSON,
}
_NAMES = {type_: name.upper() for name, type_ in reversed(_PLAIN.items())}
"""The first name of each type."""
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNITS = {0: "s", 3: "ms", 6: "us", 9: "ns"}
_DIGITS = {unit: digits for digits, unit in _UNITS.items() if unit != "us"}


def parse_schema(declared: str | Mapping[str, str]) -> Schema:
    """The schema that a pipeline file declares, as one line of DDL or as a mapping of names to types."""
    text = declared if isinstance(declared, str) else ", ".join(f"{quoted(n)} {t}" for n, t in declared.items())
    words = _Words(text)
    fields = [_field(words)]
    while words.take_if(","):
        fields.append(_field(words))
    words.end()
    try:
        return Schema(tuple(fields))
    except ValueError as error:
        raise ConfigError(f"source.kafka.schema: {error}") from None


class UnfitFields(ConfigError):
    """Fields that cannot become columns, each with the reason; and a schema that works instead."""

    def __init__(self, faults: Sequence[tuple[str, str]], instead: Schema | None) -> None:
        listed = "\n".join(f"  {path}: {why}" for path, why in faults)
        super().__init__(
            f"the table cannot be made of these fields:\n{listed}",
            safe="Nothing was created.",
            command=paste(instead, "Records that lack what is NOT NULL become dead letters."),
        )
        self.faults, self.instead = tuple(faults), instead

    def __reduce__(self) -> tuple[object, ...]:
        return UnfitFields, (self.faults, self.instead)


def paste(schema: Schema | None, what_follows: str) -> str:
    """The next step for a person, with a schema for the pipeline file."""
    if schema is None:
        return "declare `source.kafka.schema` in {file}, of the fields that are to land"
    return (
        f"declare under `source: kafka:` in {{file}}, without what is not to land:\n"
        f"  schema: {json.dumps(spelled_schema(schema), ensure_ascii=False)}\n"
        f"{what_follows} To land fields of nested objects as columns, add `transform: {{select: [customer.name AS name, …]}}`."
    )


def spelled_schema(schema: Schema) -> str:
    """The schema as text that `parse_schema` can read."""
    return ", ".join(
        f"{quoted_if_needed(each.name)} {_typed(each.type, each.scale, each.required)}" for each in schema.fields
    )


def _typed(type_: pa.DataType, scale: int | None, required: bool) -> str:
    return _spelled(type_, scale) + (" NOT NULL" if required else "")


def _spelled(type_: pa.DataType, scale: int | None = None) -> str:
    if pa.types.is_list(type_):
        return f"ARRAY<{_typed(type_.value_type, None, not type_.value_field.nullable)}>"
    if pa.types.is_struct(type_):
        inside = (f"{quoted_if_needed(each.name)}: {_typed(each.type, None, not each.nullable)}" for each in type_)
        return f"STRUCT<{', '.join(inside)}>"
    if pa.types.is_map(type_):
        return f"MAP<{_spelled(type_.key_type)}, {_typed(type_.item_type, None, not type_.item_field.nullable)}>"
    if pa.types.is_timestamp(type_):
        digits = scale if scale is not None else _DIGITS.get(type_.unit)
        return ("TIMESTAMP" if type_.tz else "TIMESTAMP_NTZ") + (f"({digits})" if digits is not None else "")
    if pa.types.is_decimal(type_):
        return f"DECIMAL({type_.precision}, {type_.scale})"
    if pa.types.is_fixed_size_binary(type_) and type_ != pa.uuid():
        return f"FIXED({type_.byte_width})"
    return _NAMES.get(type_) or spelled(type_)


class _Words:
    """The declaration, word by word."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def peek(self) -> str:
        found = _WORDS.match(self._text, self._at)
        return found[1] if found else ""

    def take(self) -> str:
        found = _WORDS.match(self._text, self._at)
        if found is None:
            raise self.error("ends too early" if not self._text[self._at :].strip() else "cannot be read")
        self._at = found.end()
        return found[1]

    def take_if(self, word: str) -> bool:
        if self.peek().lower() == word:
            self.take()
            return True
        return False

    def expect(self, word: str) -> None:
        if not self.take_if(word):
            raise self.error(f"wants {word!r}")

    def end(self) -> None:
        if self._text[self._at :].strip():
            raise self.error("cannot be read")

    def error(self, what: str) -> ConfigError:
        rest = self._text[self._at :].strip() or "the end"
        return ConfigError(f"source.kafka.schema: {what} at {rest!r}; write for example `id BIGINT NOT NULL, at DATE`.")


def _field(words: _Words) -> Field:
    name = _unquoted(words.take())
    type_, scale = _type(words)
    return Field(name, type_, required=_not_null(words), scale=scale)


def _not_null(words: _Words) -> bool:
    if not words.take_if("not"):
        return False
    words.expect("null")
    return True


def _type(words: _Words) -> tuple[pa.DataType, int | None]:
    word = words.take().lower()
    if word in _PLAIN:
        return _PLAIN[word], None
    if word in ("timestamp", "timestamp_ntz", "timestamp_ltz"):
        return _timestamp(words, None if word == "timestamp_ntz" else "UTC")
    if word in ("decimal", "numeric", "dec"):
        return _decimal(words), None
    if word in ("array", "struct", "map"):
        words.expect("<")
        made = (
            _struct(words) if word == "struct" else _map(words) if word == "map" else pa.list_(_inside(words, "item"))
        )
        words.expect(">")
        return made, None
    if word == "fixed":
        words.expect("(")
        length = _number(words)
        words.expect(")")
        if not length:
            raise words.error("fixed(0) holds nothing")
        return pa.binary(length), None
    more = ("timestamp", "timestamp(3)", "decimal(p, s)", "fixed(n)", "array<…>", "struct<…>", "map<string, …>")
    known = ", ".join(sorted({*_PLAIN, *more}))
    raise ConfigError(f"source.kafka.schema: {word!r} is not a type that landonce decodes; it knows {known}.")


def _inside(words: _Words, name: str) -> pa.Field:
    inner, _ = _type(words)
    return pa.field(name, inner, nullable=not _not_null(words))


def _timestamp(words: _Words, zone: str | None) -> tuple[pa.DataType, int | None]:
    if not words.take_if("("):
        return pa.timestamp("us", tz=zone), None
    digits = words.take()
    words.expect(")")
    if not digits.isdigit() or int(digits) not in _UNITS:
        raise words.error(f"timestamp takes 0, 3, 6 or 9 digits, not {digits}")
    return pa.timestamp(_UNITS[int(digits)], tz=zone), int(digits)


def _decimal(words: _Words) -> pa.DataType:
    precision, scale = 10, 0
    if words.take_if("("):
        precision = _number(words)
        if words.take_if(","):
            scale = _number(words)
        words.expect(")")
    if not 1 <= precision <= MOST_DIGITS or not 0 <= scale <= precision:
        raise words.error(f"decimal({precision}, {scale}) is not possible")
    return (pa.decimal128 if precision <= 38 else pa.decimal256)(precision, scale)


def _struct(words: _Words) -> pa.DataType:
    children = []
    while True:
        name = _unquoted(words.take())
        words.take_if(":")
        children.append(_inside(words, name))
        if not words.take_if(","):
            return pa.struct(children)


def _map(words: _Words) -> pa.DataType:
    key, _ = _type(words)
    words.expect(",")
    value = _inside(words, "value")
    if not pa.types.is_string(key):
        raise words.error("a map has STRING keys, as JSON has")
    return pa.map_(key, value)


def _number(words: _Words) -> int:
    word = words.take()
    if not word.isdigit():
        raise words.error("wants a number")
    return int(word)


def quoted_if_needed(name: str) -> str:
    """A name of a field in a type: in quotes, unless it is a plain word."""
    return name if _PLAIN_NAME.fullmatch(name) else quoted(name)


def quoted(*names: str) -> str:
    """Names as one identifier of Spark SQL, with any characters."""
    return ".".join("`{}`".format(name.replace("`", "``")) for name in names)


def literal(text: str) -> str:
    """A string of Spark SQL, whatever it holds."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _unquoted(word: str) -> str:
    return word[1:-1].replace("``", "`") if word.startswith("`") else word
