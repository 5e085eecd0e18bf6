"""The schema of records: the fields that a pipeline lands, as plain values.

A schema does not say how records are encoded or where they go; a decoder uses it, a sink declares it. Fields for which a table has no
column type become text (`with_text`): times and UUIDs as strings, since their text is theirs alone, everything else as JSON text.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import Any, ClassVar, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

ELEMENT, KEY, VALUE = "element", "key", "value"
"""The names of list elements and map values in a path."""
JSON = pa.json_(pa.string())
"""Any JSON value, kept as its own text: the bytes of the value as the record writes them. Columns hold it as a string."""
MOST_DIGITS = 76
"""Of a decimal, in Arrow and in ClickHouse. Other targets hold fewer."""
Unit = Literal["s", "ms", "us", "ns", "d"]
"""What a number for a time counts."""
Path = tuple[str, ...]
Names = tuple[str, ...]


class UnsupportedType(Exception):
    """Records cannot become a type of the target exactly, or a type of records has none there. The message names it."""


@dataclass(frozen=True)
class ConversionRule:
    """How the values of a field are converted."""

    epoch: Unit | None = None
    """What a number for a time counts since 1970, or since midnight."""
    empty_is_null: bool = False


class Judge(ABC):
    """Says which texts a target cannot hold. Equal judges are interchangeable."""

    any_type: ClassVar[bool] = False
    """Whether the target takes values of several types, each as it is."""
    unquoted: ClassVar[bool] = False
    """Whether a JSON text is judged, and lands, without the quotes of a string."""

    @abstractmethod
    def __call__(self, texts: pa.StringArray) -> pa.StringArray:
        """For each text what is wrong with it, as a predicate of the field, or NULL."""

    @abstractmethod
    def decisive(self) -> object:
        """What decides, as JSON."""


@dataclass(frozen=True)
class NeverFilled(Judge):
    """Refuses every value: no record becomes the type of this column exactly. A record without the field lands."""

    why: str
    """A predicate of the field."""

    def __call__(self, texts: pa.StringArray) -> pa.StringArray:
        return pc.if_else(texts.is_valid(), pa.scalar(self.why), pa.scalar(None, pa.string()))

    def decisive(self) -> object:
        return "nothing"


@dataclass(frozen=True)
class Unquoted(Judge):
    """Takes every text, without the quotes of a string."""

    unquoted: ClassVar[bool] = True

    def __call__(self, texts: pa.StringArray) -> pa.StringArray:
        return pa.nulls(len(texts), pa.string())

    def decisive(self) -> object:
        return "unquoted"


NUMBER = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
"""How a decimal number is written."""
_MOST_REPEATED, _MOST_ZEROS = 100, 10_000
_TOO_MANY = "has too many digits"


@dataclass(frozen=True)
class Digits(Judge):
    """Takes decimal numbers with so many digits before and after the point: more than a decimal of Arrow holds, each with its own."""

    before: int
    after: int
    unquoted: ClassVar[bool] = True

    def __call__(self, texts: pa.StringArray) -> pa.StringArray:
        before, after = (min(each, _MOST_REPEATED) for each in (self.before, self.after))
        whole = f"[0-9]{{1,{before}}}" if before else "0"
        fine = pc.match_substring_regex(texts, pattern=rf"\A[+-]?{whole}(?:\.[0-9]{{0,{after}}})?\z")
        if pc.all(fine, min_count=0).as_py():
            return pa.nulls(len(texts), pa.string())
        return pa.array([None if each is None else self.problem(each) for each in texts.to_pylist()], pa.string())

    def decisive(self) -> object:
        return ["digits", self.before, self.after]

    def problem(self, text: str) -> str | None:
        if not re.fullmatch(NUMBER, text):
            return "is not a number"
        try:
            number = Decimal(text)
        except InvalidOperation:
            return _TOO_MANY
        _, digits, exponent = number.as_tuple()
        if not number or not isinstance(exponent, int):
            return _TOO_MANY if abs(number.adjusted()) > _MOST_ZEROS else None
        zeros = len(digits) - len("".join(map(str, digits)).rstrip("0"))
        return _TOO_MANY if number.adjusted() >= self.before or -exponent - zeros > self.after else None


@dataclass(frozen=True)
class Field:
    """One field of a record, matched by its exact, case-sensitive name unless ``aliases`` or the schema differ.

    ``type`` is what the decoder produces. ``allowed`` and ``pattern`` apply to every string in the field, so they also
    work for a list of strings; ``pattern`` is RE2 and must match the whole string. ``scale`` lets a temporal field
    accept JSON integers as ticks of ``10**-scale`` seconds since the epoch; without it integers are rejected. These are
    limits of the target: ``bounds`` are the lowest and highest value of an integer, of a temporal field, in units of
    ``type``, or of the integers that a string holds as text; ``digits`` is the number of digits after the second, if it is lower than
    that of ``type``; ``longest`` is the maximum number of characters of a string, and ``most_bytes`` of its bytes;
    ``without_nul`` means that a string must not contain a zero byte; ``finite`` means no infinity and no NaN: JSON has
    neither, but an expression may return them; ``bits`` are the significant bits of a float, if they are fewer than
    those of ``type``; ``items`` is the exact number of items of a list; ``judge`` decides about strings where no other
    limit can; ``rule`` converts values, for a format whose schemas say their types; JSON text may then hold a number of any size.
    ``called`` names the target's type in reasons.

    ``aliases`` are the names of the field in records. Without aliases it is ``name``; with aliases, ``name`` counts
    only if it is one of them. ``inner_aliases`` are the aliases of what is inside, by its path from here: names of
    struct fields, `element` in a list, `value` in a map.
    """

    name: str
    type: pa.DataType
    required: bool = False
    allowed: frozenset[str] | None = None
    pattern: str | None = None
    scale: int | None = None
    bounds: tuple[int, int] | None = None
    digits: int | None = None
    aliases: Names = ()
    inner_aliases: tuple[tuple[Path, Names], ...] = ()
    longest: int | None = None
    without_nul: bool = False
    finite: bool = False
    most_bytes: int | None = None
    bits: int | None = None
    items: int | None = None
    called: str = ""
    judge: Judge | None = None
    rule: ConversionRule | None = None
    inner: tuple[Field, ...] = ()
    """Limits of the parts of a struct, or of the key and value of a map, in the field itself or in its lists, by name:
    of all parts or of none."""

    @staticmethod
    def unfilled(name: str, type_: object) -> Field:
        """A column of the target that records must leave out: a value for it is a dead letter, and no row holds the column."""
        return Field(
            name, JSON, judge=NeverFilled(f"has a value, and its column is {type_}, which no record can fill exactly")
        )

    @property
    def is_filled(self) -> bool:
        return not isinstance(self.judge, NeverFilled)

    @property
    def unquoted(self) -> bool:
        """Whether its JSON text is one number or the like, which a record may also hold as a string, and lands without quotes."""
        return bool(_innermost(self.type) == JSON) and (
            self.bounds is not None or (self.judge is not None and self.judge.unquoted)
        )

    def inside(self, name: str) -> Field:
        """The limits of a part of a struct, or of the key or value of a map."""
        return next((each for each in self.inner if each.name == name), self)

    def __post_init__(self) -> None:
        if self.scale is not None:
            if not (pt.is_timestamp(self.type) or pt.is_date32(self.type)):
                raise ValueError(f"field {self.name!r}: scale needs a timestamp or date32, not {self.type}")
            if not 0 <= self.scale <= 9:
                raise ValueError(f"field {self.name!r}: scale must be between 0 and 9, not {self.scale}")
        innermost = landed(_innermost(self.type))
        bounded = pt.is_temporal(innermost) or pt.is_string(innermost) or pt.is_integer(innermost)
        if self.bounds is not None and not bounded:
            raise ValueError(
                f"field {self.name!r}: bounds need a temporal type, an integer or a string, not {self.type}"
            )
        if (self.allowed is not None or self.pattern is not None) and not pt.is_string(innermost):
            raise ValueError(f"field {self.name!r}: allowed and pattern need strings, not {self.type}")

    def canonical(self) -> list[Any]:
        """What decides which values it takes, as JSON."""
        names = [self.aliases, self.inner_aliases] if self.aliases or self.inner_aliases else []
        strings = [["strings", self.longest, self.without_nul]] if self.longest is not None or self.without_nul else []
        numbers = ["finite"] if self.finite else []
        sizes = [self.most_bytes, self.bits, self.items]
        return [
            self.name,
            _spell(self.type),
            self.required,
            None if self.allowed is None else sorted(self.allowed),
            self.pattern,
            self.scale,
            self.bounds,
            self.digits,
            *names,
            *strings,
            *numbers,
            *([["sizes", *sizes]] if sizes != [None] * 3 else []),
            *([["judge", self.judge.decisive()]] if self.judge is not None else []),
            *(["inner", *(each.canonical() for each in self.inner)] if self.inner else []),
        ]

    def place(self) -> Place:
        """The field and everything inside it."""
        return _place(self.name, self.type, not self.required, self.aliases, (), dict(self.inner_aliases))


@dataclass(frozen=True)
class Place:
    """One place in a record: a field of it or of a struct, the element of a list, the value of a map."""

    name: str
    type: pa.DataType
    nullable: bool
    names: Names
    """Its names in records. Not used for a list element or a map value."""
    inside: tuple[Place, ...] = ()

    @property
    def renamed(self) -> bool:
        """Whether it, or something inside, may have another name in records."""
        return self.names != (self.name,) or any(each.renamed for each in self.inside)

    @property
    def holds_map(self) -> bool:
        return bool(pt.is_map(self.type)) or any(each.holds_map for each in self.inside)

    @property
    def positional(self) -> bool:
        """Whether its parts have numbers instead of names. Then a record may hold it as an array, too."""
        names = [each.name for each in self.type] if pt.is_struct(self.type) else []
        return bool(names) and names == [str(at) for at in range(1, len(names) + 1)]

    @property
    def holds_positional(self) -> bool:
        return self.positional or any(each.holds_positional for each in self.inside)

    @property
    def holds_json(self) -> bool:
        return bool(self.type == JSON) or any(each.holds_json for each in self.inside)


@dataclass(frozen=True)
class Schema:
    """The fields of a record, in the order of the table they land in.

    With ``fold_case``, names in records match regardless of case, nested ones too.
    """

    fields: tuple[Field, ...]
    fold_case: bool = False

    def __post_init__(self) -> None:
        if not self.fields:
            raise ValueError("a schema needs at least one field")
        twice = _twice(field.name for field in self.fields)
        if twice:
            raise ValueError(f"field names must be unique; these occur twice: {', '.join(map(repr, twice))}")
        if self.fold_case or any(field.aliases or field.inner_aliases for field in self.fields):
            _no_name_twice(self.places(), self.fold_case, "")

    @property
    def arrow(self) -> pa.Schema:
        """The columns that a decoder makes."""
        return pa.schema(
            [pa.field(field.name, landed(field.type), nullable=not field.required) for field in self.fields]
        )

    def by_name(self) -> dict[str, Field]:
        return {field.name: field for field in self.fields}

    def without_unfilled(self, rows: pa.Table) -> pa.Table:
        """Rows without the columns that no record fills: the target puts NULL or a default there."""
        return rows.drop_columns(
            [each.name for each in self.fields if not each.is_filled and each.name in rows.column_names]
        )

    def places(self) -> tuple[Place, ...]:
        return tuple(field.place() for field in self.fields)

    def fingerprint(self) -> str:
        """A SHA-256 over every property of every field: the same in any process."""
        canonical: list[Any] = [each.canonical() for each in self.fields]
        if self.fold_case:
            canonical.append("fold case")
        return hashlib.sha256(json.dumps(canonical, ensure_ascii=True).encode()).hexdigest()


def folded(name: str, fold_case: bool) -> str:
    """A name in the form in which names are compared."""
    return name.lower() if fold_case else name


def by_record_name(places: Iterable[Place], fold_case: bool) -> dict[str, Place]:
    """The places of one level by the names that records use, as `folded` writes them."""
    return {folded(name, fold_case): place for place in places for name in place.names}


_WORDS = {
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.string(): "STRING",
    pa.large_string(): "STRING",
    pa.binary(): "BINARY",
    pa.large_binary(): "BINARY",
    pa.date32(): "DATE",
    pa.uuid(): "UUID",
    JSON: "JSON",
}


def children(type_: pa.DataType) -> list[pa.Field]:
    """What is directly inside a type: the fields of a struct, the element of a list, the value of a map."""
    if pt.is_list(type_):
        return [type_.value_field.with_name(ELEMENT)]
    if pt.is_map(type_):
        return [type_.item_field.with_name(VALUE)]
    return list(type_) if pt.is_struct(type_) else []


def with_children(type_: pa.DataType, change: Callable[[str, pa.DataType], pa.DataType]) -> pa.DataType:
    """The type with other types inside. `change` gets the name of each child and its type."""
    if pt.is_list(type_):
        return pa.list_(type_.value_field.with_type(change(ELEMENT, type_.value_type)))
    if pt.is_map(type_):
        return pa.map_(type_.key_type, type_.item_field.with_type(change(VALUE, type_.item_type)))
    if pt.is_struct(type_):
        return pa.struct([each.with_type(change(each.name, each.type)) for each in type_])
    return type_


def parts(type_: pa.DataType, path: str, *, of_map: str = ".*") -> Iterator[tuple[str, pa.DataType]]:
    """The field and every part of it, by its path: `a.b` in an object, `a[]` in an array, `a.*` in a map."""
    yield path, type_
    for each in children(type_):
        yield from parts(each.type, inside_path(type_, path, each.name, of_map), of_map=of_map)


def inside_path(type_: pa.DataType, path: str, name: str, of_map: str = ".*") -> str:
    """The path of a child of the type that is at `path`."""
    if pt.is_struct(type_):
        return f"{path}.{name}"
    return path + (of_map if pt.is_map(type_) else "[]")


def landed(type_: pa.DataType) -> pa.DataType:
    """The type of the column for a field of this type: `JSON` is a string there, at every depth."""
    return pa.string() if type_ == JSON else with_children(type_, lambda _, each: landed(each))


_NOTE = "landonce: JSON text"


def json_note(type_: pa.DataType, *, into_structs: bool = True) -> str:
    """What the comment of a column says if its field holds `JSON`: the types of a table do not show it. Empty if it does not."""
    paths = list(_json_paths(type_, into_structs))
    return "" if not paths else _NOTE if paths == [()] else f"{_NOTE} in {json.dumps(paths)}"


def with_note(type_: pa.DataType, note: str | None) -> pa.DataType:
    """The type of the field for a column of this type with such a comment."""
    if note == _NOTE:
        paths: list[list[str]] = [[]]
    elif note is not None and note.startswith(f"{_NOTE} in "):
        paths = json.loads(note.removeprefix(f"{_NOTE} in "))
    else:
        return type_
    for path in paths:
        type_ = _put_json(type_, path)
    return type_


def as_declared(type_: pa.DataType, declared: pa.DataType, *, required: bool = False) -> pa.DataType:
    """A column's type, in which a declaration says which strings are JSON texts; and, with `required`, what is NOT NULL inside."""

    def inner(field: pa.Field, asked: pa.Field) -> pa.Field:
        nullable = field.nullable and (asked.nullable or not required)
        return field.with_type(as_declared(field.type, asked.type, required=required)).with_nullable(nullable)

    if landed(type_) == pa.string() and landed(declared) == pa.string():
        return declared
    if pt.is_struct(type_) and pt.is_struct(declared):
        children = {each.name: each for each in declared}
        return pa.struct([inner(each, children.get(each.name, each)) for each in type_])
    if pt.is_list(type_) and pt.is_list(declared):
        return pa.list_(inner(type_.value_field, declared.value_field))
    if pt.is_map(type_) and pt.is_map(declared):
        return pa.map_(type_.key_type, inner(type_.item_field, declared.item_field))
    return type_


def _json_paths(type_: pa.DataType, into_structs: bool) -> Iterator[Path]:
    if type_ == JSON:
        yield ()
    elif into_structs or not pt.is_struct(type_):
        for each in children(type_):
            yield from ((each.name, *path) for path in _json_paths(each.type, into_structs))


def _put_json(type_: pa.DataType, path: Sequence[str]) -> pa.DataType:
    """The type with JSON at this path, if there is a string."""
    if not path:
        return JSON if pt.is_string(type_) else type_
    return with_children(type_, lambda name, each: _put_json(each, path[1:]) if name == path[0] else each)


def spelled(type_: pa.DataType) -> str:
    """A type as people declare it, in Spark's syntax. Types that Spark does not have keep their own names."""
    if type_ in _WORDS:
        return _WORDS[type_]
    if pt.is_decimal(type_):
        return f"DECIMAL({type_.precision},{type_.scale})"
    if pt.is_timestamp(type_):
        return "TIMESTAMP" if type_.tz else "TIMESTAMP_NTZ"
    if pt.is_time(type_):
        return "TIME"
    if pt.is_list(type_):
        return f"ARRAY<{spelled(type_.value_type)}>"
    if pt.is_map(type_):
        return f"MAP<{spelled(type_.key_type)}, {spelled(type_.item_type)}>"
    if pt.is_struct(type_):
        return f"STRUCT<{', '.join(f'{each.name}: {spelled(each.type)}' for each in type_)}>"
    return str(type_).upper()


def is_uuid(type_: pa.DataType) -> bool:
    return bool(type_ == pa.uuid())


def _place(
    name: str, type_: pa.DataType, nullable: bool, aliases: Names, path: Path, inner: dict[Path, Names]
) -> Place:
    inside = [
        _place(each.name, each.type, each.nullable, inner.get((*path, each.name), ()), (*path, each.name), inner)
        for each in children(type_)
    ]
    return Place(name, type_, nullable, aliases or (name,), tuple(inside))


def _no_name_twice(places: tuple[Place, ...], fold_case: bool, path: str) -> None:
    twice = _twice(name for place in places for name in {folded(each, fold_case) for each in place.names})
    if twice:
        raise ValueError(
            f"a name in a record must mean one field; these mean several: {', '.join(repr(path + each) for each in twice)}"
        )
    for place in places:
        _no_name_twice(place.inside, fold_case, f"{path}{place.name}.")


def _twice(names: Iterable[str]) -> list[str]:
    listed = list(names)
    return sorted({name for name in listed if listed.count(name) > 1})


def _innermost(type_: pa.DataType) -> pa.DataType:
    while pt.is_list(type_):
        type_ = type_.value_type
    return type_


def _spell(type_: pa.DataType) -> object:
    # Not str(type_): Arrow has changed the default name of a list's child, which is irrelevant here.
    if pt.is_list(type_):
        return ["list", _spell(type_.value_type), type_.value_field.nullable]
    if pt.is_struct(type_):
        return ["struct", [[child.name, _spell(child.type), child.nullable] for child in type_]]
    if pt.is_map(type_):
        return ["map", _spell(type_.key_type), _spell(type_.item_type), type_.item_field.nullable]
    return str(type_)


ANY_RECORD = Schema((Field("__landonce_any", pa.string()),))
"""What every record can be decoded to: for tables of which nothing is known yet."""


def text_type(type_: pa.DataType) -> pa.DataType:
    """The type of the text that holds values of this type."""
    return pa.string() if pt.is_temporal(type_) or is_uuid(type_) else JSON


def with_text(schema: Schema, places: Collection[str]) -> Schema:
    """The schema with text at these places. A place that is not found is in a column that becomes text as a whole."""
    known = {path for each in schema.fields for path, _ in parts(each.type, each.name)}
    lost = set(places) - known
    whole = {
        each.name for each in schema.fields if any(re.match(rf"{re.escape(each.name)}[.\[]", path) for path in lost)
    }
    made = ((each, text_at(each.type, each.name, {*places, *whole})) for each in schema.fields)
    fields = (replace(each, type=type_, scale=each.scale if type_ == each.type else None) for each, type_ in made)
    return Schema(tuple(fields), schema.fold_case)


def text_at(type_: pa.DataType, path: str, places: Collection[str]) -> pa.DataType:
    """The type of what is at `path`, with text at these places."""
    if path in places:
        return text_type(type_)
    return with_children(type_, lambda name, each: text_at(each, inside_path(type_, path, name), places))
