"""The rule that makes the key of an event: which parts of a record it has, by which rule of several.

A rule is plain data. `key_rule` makes it from a pipeline file; other sources of rules need only make the same data.
`ids` computes with it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.types as pt

from landonce.config.dedup import RECORD_TYPE, Dedup, KeyPart
from landonce.errors import ConfigError, KeyRuleChanged
from landonce.protocol.reasons import Code, Reason
from landonce.read.decoding import Decoding
from landonce.read.formats import RecordType
from landonce.read.record_columns import record_fields
from landonce.read.sample import first_records
from landonce.read.schema.fields import (
    ANY_RECORD,
    ConversionRule,
    Path,
    Place,
    Schema,
    by_record_name,
    folded,
    is_uuid,
    spelled,
)
from landonce.sinks.audit import RowRecipe

if TYPE_CHECKING:
    from landonce.sinks.parts import Parts

FORMAT = 1
"""Increased whenever the same key gets another id."""
KAFKA_KEY, HEADER = "kafka key", "header"
LATE = Reason("late: its key may be older than the window", Code.LATE)
"""Why a record is a dead letter whose first copy may be forgotten."""
PUSHED = "pushed"
"""The folder, below that of dead letters, of events that were accepted and could not land."""
_CLASSES: dict[str, Callable[[pa.DataType], bool]] = {
    "boolean": pt.is_boolean,
    "integer": pt.is_integer,
    "float": pt.is_floating,
    "decimal": pt.is_decimal,
    "string": lambda type_: pt.is_string(type_) or pt.is_large_string(type_) or pt.is_string_view(type_),
    "binary": lambda type_: any(
        check(type_) for check in (pt.is_binary, pt.is_large_binary, pt.is_binary_view, pt.is_fixed_size_binary)
    ),
    "uuid": is_uuid,
    "timestamp": pt.is_timestamp,
    "date": pt.is_date,
    "time": pt.is_time,
}
_CHOOSING = ("string", "integer", "boolean")
"""The classes of a field that may choose the rule: its text is the name of the rule."""


def type_class(type_: pa.DataType) -> str | None:
    """The class of types whose equal values have equal ids; None if a value of this type cannot be in a key."""
    plain = type_.value_type if pt.is_dictionary(type_) else type_
    return next((name for name, holds in _CLASSES.items() if holds(plain)), None)


def source_schema(recipe: RowRecipe) -> Schema:
    """What records are decoded to for their keys. The columns of a target that evolves may be wider by the time that an event gets there."""
    if recipe.describes_records:
        return recipe.source
    fields = tuple(replace(each, type=_widest(each.type)) for each in recipe.source.fields)
    return replace(recipe.source, fields=fields)


def _widest(type_: pa.DataType) -> pa.DataType:
    if pt.is_struct(type_):
        return pa.struct([each.with_type(_widest(each.type)) for each in type_])
    if pt.is_decimal128(type_):
        return pa.decimal128(38, type_.scale)
    wide = {"integer": pa.int64(), "float": pa.float64()}.get(type_class(type_) or "", type_)
    return type_ if pt.is_uint64(type_) else wide


def with_doubles(schema: Schema, rule: KeyRule) -> Schema:
    """The schema with doubles for the floats of the key, whatever the columns of the target are: 0.1 is another number at each width, and an id
    must not change when a column is widened."""
    paths = [column.path for column in rule.columns if column.kind == "float"]
    return replace(
        schema, fields=tuple(replace(each, type=_doubled(each.type, (each.name,), paths)) for each in schema.fields)
    )


def _doubled(type_: pa.DataType, path: Path, paths: Sequence[Path]) -> pa.DataType:
    if pt.is_struct(type_):
        return pa.struct([each.with_type(_doubled(each.type, (*path, each.name), paths)) for each in type_])
    return pa.float64() if path in paths else type_


@dataclass(frozen=True)
class KeyColumn:
    """One part of a key. `kind` is the class of a field's type, or `kafka key`, or `header`."""

    kind: str
    path: tuple[str, ...] = ()
    """Of a field, its names from the outside in; of a header, its name."""

    def __str__(self) -> str:
        if self.kind == KAFKA_KEY:
            return "the Kafka key"
        return f"header {self.path[0]!r}" if self.kind == HEADER else f"field {'.'.join(self.path)!r}"


@dataclass(frozen=True)
class KeyRule:
    """The keys by the names of their rules; a key without `by` has the name ``""``."""

    keys: tuple[tuple[str, tuple[KeyColumn, ...]], ...]
    by: KeyColumn | None = None
    on_null: Literal["dead_letter", "unique", "value"] = "dead_letter"
    reading: str = ""
    """How the fields of the key are read, if not as strict JSON: other conversions make other ids of the same bytes."""
    marked: tuple[str, ...] = ()
    """The rules that schemas give. No id depends on where a rule is written, so this is not in the fingerprint."""

    @property
    def columns(self) -> tuple[KeyColumn, ...]:
        """All that is needed of a record, without repetition."""
        chosen = () if self.by is None else (self.by,)
        return tuple(dict.fromkeys([*chosen, *(column for _, columns in self.keys for column in columns)]))

    @property
    def needs_kafka_key(self) -> bool:
        return any(column.kind == KAFKA_KEY for column in self.columns)

    @property
    def headers(self) -> tuple[str, ...]:
        """The headers that are needed."""
        return tuple(column.path[0] for column in self.columns if column.kind == HEADER)

    def fingerprint(self) -> str:
        """A SHA-256 over all that an id depends on, apart from the record: the same in any process."""
        chosen = None if self.by is None else _canonical(self.by)
        keys = [[name, [_canonical(column) for column in columns]] for name, columns in sorted(self.keys)]
        reading = [self.reading] if self.reading else []
        canonical = json.dumps([FORMAT, self.on_null, chosen, keys, *reading], ensure_ascii=True)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def describe(self) -> str:
        """One line for people."""
        return f"{self.words()} (nulls: {self.on_null})"

    def words(self) -> str:
        """What the key is made of."""
        keys = {name: ", ".join(map(_described, columns)) for name, columns in self.keys}
        listed = "; ".join(f"{name}: {key}" for name, key in keys.items())
        return keys[""] if self.by is None else f"by {_described(self.by)}: {listed}"


def _canonical(column: KeyColumn) -> list[Any]:
    return [column.kind, list(column.path)]


def _described(column: KeyColumn) -> str:
    return f"{'.'.join(column.path)} ({column.kind})" if column.kind in _CLASSES else str(column)


def accepted_schema(recipe: RowRecipe, dedup: Dedup, types: Sequence[RecordType] = ()) -> Schema:
    """What a record must be to be accepted: all that the target asks for, or the fields of the key, if the target cannot say it beforehand.
    The key's floats are doubles."""
    source = with_type(source_schema(recipe), dedup)
    if recipe.describes_records:
        return with_doubles(source, key_rule(dedup, source, types=types))
    fields_of_key = with_marks(dedup, source, types).fields
    named = {name for part in fields_of_key for name in (part, part.split(".")[0])}
    fields = tuple(replace(each, required=False) for each in source.fields if each.name in named)
    return replace(source, fields=fields or ANY_RECORD.fields)


def with_type(schema: Schema, dedup: Dedup) -> Schema:
    """The schema, with the type of a record if that chooses the rule."""
    if dedup.by != RECORD_TYPE or RECORD_TYPE in schema.by_name():
        return schema
    return replace(schema, fields=(*schema.fields, *record_fields([RECORD_TYPE])))


def key_rule(
    config: Dedup, schema: Schema, decoding: Decoding | None = None, types: Sequence[RecordType] = ()
) -> KeyRule:
    """The rule of a pipeline file for records with this schema, or a `ConfigError` that names the field at fault. `types`: what schemas say of
    the types of records, if the file leaves the key to them."""
    parts_of = with_marks(config, schema, types).keys
    keys = tuple((name, tuple(_column(part, schema) for part in parts)) for name, parts in parts_of.items())
    by = _field(config.by, schema) if config.by is not None else None
    if by is not None and by.kind not in _CHOOSING:
        raise ConfigError(
            f"dedup: by names {config.by!r}, which is {'an' if by.kind[0] in 'aeio' else 'a'} {by.kind}. "
            f"The field that chooses the rule must be text, a whole number or a boolean."
        )
    rule = KeyRule(keys, by, config.on_null, marked=config.marked)
    return replace(rule, reading=_reading(rule, decoding)) if decoding is not None else rule


# Keys that schemas mark. Each version of a schema must say the same:
#
#     the schema of a record marks         a new record
#     the fields of the rule, in order     is judged by the rule, whatever else changed in the schema
#     other fields, or none                ends the run with `KeyRuleChanged`
#     (its type has no rule)               is a dead letter, or judged by the rule `*`


def known_types(parts: Parts) -> tuple[RecordType, ...]:
    """What schemas say of the key. Nothing, if the file says it itself.

    Schemas in files are all that there are. With a registry, the schemas of some records say it; if these are not enough, the newest ones of
    the subjects in which producers register the schemas of these topics.
    """
    dedup, format_ = parts.config.dedup, parts.decoding.format
    if dedup is None or not dedup.marked:
        return ()
    found = format_.types((), ())
    if not found:
        values = [each.value for each in first_records(parts.source(), parts.consumer)]
        found = format_.types(values, ())
        if lacking := [name for name in dedup.marked if not any(name in ("", each.name) for each in found)]:
            # By the ways in which producers name subjects: by the topic, by the topic and the type, by the type.
            topics = [topic for topic, _ in parts.source().topic_ids]
            named = [subject for name in lacking if name for topic in topics for subject in (f"{topic}-{name}", name)]
            found = format_.types(values, list(dict.fromkeys([*(f"{topic}-value" for topic in topics), *named])))
    return found


def with_marks(config: Dedup, schema: Schema, types: Sequence[RecordType]) -> Dedup:
    """The section with the fields that schemas mark, in place of the word `schema`."""
    if not config.marked:
        return config
    keys = {name: tuple(KeyPart(field=path) for path in _marked(name, schema, types)) for name in config.marked}
    changed = {"key": keys[""]} if config.key is not None else {"rules": {**(config.rules or {}), **keys}}
    return config.model_copy(update=changed)


def _marked(name: str, schema: Schema, types: Sequence[RecordType]) -> tuple[str, ...]:
    """The fields of the key that all versions of the type mark; of all types, if the rule has no name."""
    mine = [each for each in types if name in ("", each.name)]
    if not mine:
        what = f"no schema of {name} is" if name else "no schema of the records is"
        raise ConfigError(
            f"dedup: {what} known yet: no record has one, and the registry has no subject for it.",
            safe="Nothing was read or written.",
            command="produce a record or register its schema first, or name the fields of the key in {file}",
        )
    for each in mine:
        if not each.key:
            raise ConfigError(
                f"dedup: the schema of {each.name} marks no field as part of the key.",
                safe="Nothing was read or written.",
                command="mark fields with `landonce.dedup_key`, or name them in {file}",
            )
        if each.key != mine[0].key:
            raise KeyRuleChanged(
                f"schemas mark different keys: {mine[0].name} {_spelled(mine[0].key)}, {each.name} {_spelled(each.key)}.",
                safe="Nothing was read or written. By another key, a copy of an accepted event could count as new.",
                command="mark the same fields in each version; or name the fields of the key in {file}, for each type with "
                f"`by: {RECORD_TYPE}`",
            )
    return tuple(".".join(_column_path(path, schema)) for path in mine[0].key)


def require_marks(rule: KeyRule, schema: Schema, types: Iterable[RecordType]) -> None:
    """Raises if the schema of a record marks another key than the rule that ids are made by."""
    keys = dict(rule.keys)
    for each in types:
        name = each.name if rule.by is not None else ""
        if name not in rule.marked:
            continue
        wanted = tuple(column.path for column in keys[name])
        found = tuple(_column_path(path, schema) for path in each.key)
        if found != wanted:
            raise KeyRuleChanged(
                f"a schema of {each.name} marks {_spelled(found) if found else 'no field'} as the key of an event; the keys in the store were "
                f"made by {_spelled(wanted)}.",
                safe="No event of this batch was accepted. By another key, a copy of an accepted event could count as new.",
                command=f"name the fields of the key in {{file}} (now: {_spelled(wanted)}), then `landonce run {{file}}`; for another key, "
                "`landonce dedup rekey {file}` first. Later schemas should mark the same fields as before",
            )


def _spelled(paths: Iterable[Path]) -> str:
    return f"[{', '.join('.'.join(path) for path in paths)}]"


def _column_path(path: Path, schema: Schema) -> Path:
    """The names in the schema of a field with these names in records. A field that is not there keeps its name."""
    found: list[str] = []
    places: Sequence[Place] = schema.places()
    for name in path:
        place = by_record_name(places, schema.fold_case).get(folded(name, schema.fold_case))
        found.append(place.name if place is not None else name)
        places = place.inside if place is not None else ()
    return tuple(found)


def _reading(rule: KeyRule, decoding: Decoding) -> str:
    """The conversions of the key's fields, and how the format writes them. Empty for strict JSON."""
    format_, paths = decoding.format, sorted(".".join(each.path) for each in rule.columns if each.kind in _CLASSES)
    rules = [(path, decoding.convert.of(path)) for path in paths]
    converted = [
        [path, each.epoch, each.empty_is_null] for path, each in rules if each is not None and each != ConversionRule()
    ]
    written = list(format_.keyed_by())
    return json.dumps([written, converted]) if written or converted else ""


def _column(part: KeyPart, schema: Schema) -> KeyColumn:
    if part.field is not None:
        return _field(part.field, schema)
    return KeyColumn(KAFKA_KEY) if part.kafka_key else KeyColumn(HEADER, (part.header or "",))


def _field(name: str, schema: Schema) -> KeyColumn:
    """The field of this name; else, the nested field at this path."""
    names = [name] if name in schema.by_name() else name.split(".")
    type_ = pa.struct(list(schema.arrow))
    for at, each in enumerate(names):
        index = type_.get_field_index(each) if pt.is_struct(type_) else -1
        if index < 0:
            raise ConfigError(f"dedup: {name!r} is not a field of the records. {_there(names[:at], type_)}")
        type_ = type_.field(index).type
    kind = type_class(type_)
    if kind is None:
        hint = f" {_there(names, type_)}" if pt.is_struct(type_) else ""
        raise ConfigError(f"dedup: {name!r} cannot be in a key: its type is {spelled(type_)}.{hint}")
    return KeyColumn(kind, tuple(names))


def _there(above: Iterable[str], type_: pa.DataType) -> str:
    """What could have been named."""
    path = ".".join(above)
    if not pt.is_struct(type_):
        return f"{path!r} has no fields: its type is {spelled(type_)}."
    return f"There are: {', '.join('.'.join([*([path] if path else []), each.name]) for each in type_)}."
