"""What the store of a pipeline file knows, for people: one event (`find`), and the copies that were found. Reads only."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cached_property, wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
import pyarrow as pa

from landonce.config.dedup import OTHERS, Dedup
from landonce.dedup.chunks import VALUE, accepted_records, columns_of, decode_records
from landonce.dedup.ids import Coordinates, compute
from landonce.dedup.rule import (
    HEADER,
    KAFKA_KEY,
    KeyColumn,
    KeyRule,
    key_rule,
    known_types,
    source_schema,
    with_doubles,
    with_type,
)
from landonce.dedup.runs import look_up, place_of, shard_of
from landonce.dedup.store import Scope, Store, StorePlace
from landonce.errors import ConfigError, Halt, NothingToDo, RunGone, TargetUnavailable, Transient
from landonce.protocol.ranges import Partition, Range
from landonce.read.formats.json.decode import JsonDecoder
from landonce.read.record_columns import BYTES
from landonce.read.schema.fields import ANY_RECORD, Schema
from landonce.sinks.declared import declared_schema
from landonce.sinks.parts import Parts

Answer = TypeVar("Answer")
Given = ParamSpec("Given")
_UNCHANGED = "Nothing was changed."
_LOOKS = 10
"""How often to read runs and chunks that others remove meanwhile."""


@dataclass(frozen=True)
class Kept:
    """The store of one pipeline file, opened."""

    parts: Parts
    dedup: Dedup
    store: Store

    @staticmethod
    def of(parts: Parts) -> Kept:
        if parts.config.dedup is None:
            raise NothingToDo(
                "the file has no section `dedup`: its events have no keys.",
                safe=_UNCHANGED,
                command="write `dedup: {key: [FIELD, …]}` in {file}",
            )
        return Kept(parts, parts.config.dedup, StorePlace.of(parts.config).open())

    @property
    def pipeline(self) -> str:
        return self.parts.config.pipeline

    def scope(self) -> Scope:
        """The scope, or an error: there is none."""
        found = self.store.look()
        if found is None:
            raise NothingToDo(
                f"the store {self.store.database.place} has no scope {self.store.scope!r} yet.",
                safe=_UNCHANGED,
                command="`landonce run {file}` makes it; if it was lost: landonce dedup rebuild {file}",
            )
        return found

    @cached_property
    def columns(self) -> Schema:
        """What records are decoded to, in the types of the target's columns."""
        return with_type(record_schema(self.parts), self.dedup)

    @cached_property
    def source(self) -> Schema:
        """What records are decoded to, to be accepted."""
        return with_doubles(self.columns, self.rule)

    @cached_property
    def rule(self) -> KeyRule:
        return key_rule(self.dedup, self.columns, self.parts.decoding, known_types(self.parts))

    def sent(self, pipeline: str) -> Mapping[Partition, int]:
        """How far a pipeline has sent its events: by its ledger, where that is known here; else as it said last."""
        if pipeline == self.pipeline:
            try:
                state = self.parts.ledger.load()
            except (Transient, Halt):
                state = None
            if state is not None:
                return state.committed()
        return self.store.sent_up_to(pipeline)


def record_schema(parts: Parts) -> Schema:
    """What records are decoded to, as the target says it; what the file declares, if the target cannot be asked."""
    try:
        tables = parts.sink.held(parts, None)
        try:
            return source_schema(tables.recipe)
        finally:
            tables.close()
    except (Transient, Halt) as error:
        declared = declared_schema(parts.config)
        if declared is None:
            raise ConfigError(
                f"the types of the key's fields are not known: {error.what}",
                safe=_UNCHANGED,
                command="make the target reachable, or declare `source.kafka.schema` in {file}",
            ) from None
        return declared


def key_fields(source: Schema, rule: KeyRule) -> Schema:
    """The fields that the key needs, all optional: other fields of a record do not matter to it."""
    named = {column.path[0] for column in rule.columns if column.kind not in (KAFKA_KEY, HEADER)}
    fields = tuple(replace(each, required=False) for each in source.fields if each.name in named)
    return replace(source, fields=fields or ANY_RECORD.fields)


# One event.


class FoundEvent(NamedTuple):
    """Where and when an event was accepted."""

    at: int
    partition: Partition | None
    """None: no pipeline of the scope knows the partition any more."""
    offset: int
    pipeline: str = ""
    payload: bytes | None = None
    """None: the store does not keep it any more."""
    batch: int | None = None
    status: str = ""
    """Of the stored block that holds it, if there is one."""
    sent: bool | None = None
    """None: nobody knows."""


def look_again(look: Callable[Given, Answer]) -> Callable[Given, Answer]:
    """For what reads runs and chunks while pipelines run, which merge and remove them. If some are gone by the time that they are read: once
    more, as they are then."""

    @wraps(look)
    def looked(*args: Given.args, **kwargs: Given.kwargs) -> Answer:
        for _ in range(_LOOKS):
            try:
                return look(*args, **kwargs)
            except RunGone as gone:
                what = gone.what
        raise TargetUnavailable(f"{what} This happened {_LOOKS} times: stop the pipelines of the scope, or try again.")

    return looked


@look_again
def find(kept: Kept, given: Sequence[str]) -> FoundEvent | None:
    """The event with this key. None: it was not accepted in the window."""
    scope, rule = kept.scope(), kept.rule
    if scope.rule != rule.fingerprint():
        raise ConfigError(
            f"the keys in the store were made by another rule: {scope.described}. The file says: {rule.describe()}.",
            safe=_UNCHANGED,
            command="put the old rule back, or: landonce dedup rekey {file}",
        )
    hi, lo = key_id(rule, key_fields(kept.source, rule), key_values(rule, given))
    shard = kept.store.shards([int(shard_of(hi, scope.shards)[0])])
    if kept.scope().shards != scope.shards:
        raise RunGone("The shards of the scope changed: list the runs again.")
    runs = [run for each in shard.values() for run in each.runs]
    there, seen = look_up(map(kept.store.keys_of, runs), hi, lo)
    if not there.any():
        return None
    place, offset, at = (int(seen[name][0]) for name in ("place", "offset", "at"))
    return _located(kept, place, offset, at)


def key_values(rule: KeyRule, given: Sequence[str]) -> tuple[str, dict[KeyColumn, str]]:
    """The name of the rule, and the value of each part of its key, from words: VALUE… in order, or NAME=VALUE…"""
    by = {} if rule.by is None else {_name(rule.by): rule.by}
    names = {**by, **{_name(column): column for _, columns in rule.keys for column in columns}}
    pairs = [each.partition("=") for each in given]
    named = bool(given) and all(sign and name in names for name, sign, _ in pairs)
    values = {names[name]: value for name, _, value in pairs} if named else {}
    chosen, rest = "", list(given)
    if rule.by is not None:
        if not named and rest:
            values[rule.by] = rest.pop(0)
        if rule.by not in values:
            raise _wrong_key(rule, given)
        chosen = values[rule.by]
    columns = dict(rule.keys).get(chosen, dict(rule.keys).get(OTHERS))
    if columns is None:
        raise ConfigError(f"there is no rule for {chosen!r}: events with it are dead letters.", safe=_UNCHANGED)
    if not named and len(rest) == len(columns):
        values.update(zip(columns, rest, strict=True))
    needed = {*columns, *([rule.by] if rule.by is not None else [])}
    if values.keys() != needed:
        raise _wrong_key(rule, given)
    return chosen, values


def _name(column: KeyColumn) -> str:
    return "kafka_key" if column.kind == KAFKA_KEY else ".".join(column.path)


def _wrong_key(rule: KeyRule, given: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"{len(given)} values are not a key of this file: {rule.describe()}.",
        safe=_UNCHANGED,
        command="give the values of all parts in this order, or NAME=VALUE for each"
        + (f"; first the value of {_name(rule.by)}, which chooses the rule" if rule.by is not None else ""),
    )


def key_id(rule: KeyRule, schema: Schema, key: tuple[str, dict[KeyColumn, str]]) -> tuple[Any, Any]:
    """The id of a key, computed as for a record that holds it."""
    _, values = key
    record: dict[str, Any] = {}
    for column, text in values.items():
        if column.kind not in (KAFKA_KEY, HEADER):
            place = record
            for name in column.path[:-1]:
                place = place.setdefault(name, {})
            place[column.path[-1]] = _json_value(column, text)
    renamed = {(each.aliases or (each.name,))[0]: record[each.name] for each in schema.fields if each.name in record}
    rows = JsonDecoder(schema).decode(pa.array([json.dumps(renamed).encode()], pa.binary()))
    if rows.rejects:
        raise ConfigError(f"the key cannot be read: {rows.rejects[0].reason}.", safe=_UNCHANGED)
    given = {_name(column): text.encode() for column, text in values.items() if column.kind in (KAFKA_KEY, HEADER)}
    ids = compute(
        rule,
        rows.table,
        pa.array([given.get("kafka_key")], pa.binary()),
        {name: pa.array([given.get(name)], pa.binary()) for name in rule.headers},
        Coordinates("", 0, np.zeros(1, np.int64)),
    )
    if ids.rejects:
        raise ConfigError(f"the key cannot be used: {ids.rejects[0]}.", safe=_UNCHANGED)
    return ids.hi, ids.lo


def _json_value(column: KeyColumn, text: str) -> Any:
    """A value as a producer would write it: numbers and booleans as such, everything else as text. Decimals, too: as numbers they would be
    rounded here."""
    if column.path[0] in BYTES and column.kind == "binary":
        return base64.b64encode(text.encode()).decode()
    if column.kind in ("integer", "float", "boolean"):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def partitions_of(store: Store) -> dict[int, tuple[str, Partition]]:
    """The partitions that the scope's pipelines know, by their hashes."""
    found = {}
    for pipeline in store.pipelines():
        mark = store.mark(pipeline)
        for partition, _ in mark.state.positions if mark is not None else ():
            for known in (partition, mark.state.labelled(partition) if mark is not None else partition):
                found[place_of(known.topic, known.number)] = pipeline, partition
    return found


def _located(kept: Kept, place: int, offset: int, at: int) -> FoundEvent:
    store, known = kept.store, partitions_of(kept.store).get(place)
    if known is None:
        return FoundEvent(at, None, offset)
    pipeline, partition = known
    here = Range(partition, offset, offset + 1)
    payload = None
    for chunk in store.chunks(pipeline, here):
        records = accepted_records(store, chunk, here)
        if records.num_rows and VALUE in records.column_names:
            payload = records.column(VALUE)[0].as_py()
        elif records.num_rows:  # a row of a query
            payload = json.dumps(columns_of(records).slice(0, 1).to_pylist()[0], default=str).encode()
    block = next((each for each in store.blocks(pipeline) if each.holds(partition, offset)), None)
    end = kept.sent(pipeline).get(partition)
    return FoundEvent(
        at,
        partition,
        offset,
        pipeline,
        payload,
        block.batch if block is not None else None,
        block.status if block is not None else "",
        offset < end if end is not None else None,
    )


def moment(seconds: float) -> str:
    """For people."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def words_of(found: FoundEvent | None, scope: Scope) -> list[str]:
    """The answer to `find`, as sentences."""
    if found is None:
        since = (
            f"which goes back to {moment(scope.horizon / 1000)}"
            if scope.horizon
            else "which holds all that was ever accepted"
        )
        return [f"not accepted in the window, {since}"]
    where = f"{found.partition}" if found.partition is not None else "a partition that no pipeline knows any more,"
    lines = [f"accepted at {moment(found.at)} from {where} offset {found.offset}"]
    if found.partition is None:
        return lines
    if found.sent:
        lines.append("it was sent" + (f" in batch {found.batch}" if found.batch is not None else ""))
    elif found.sent is False:
        lines.append(
            "it waits to be sent" + (f", in the stored batch {found.batch}" if found.batch is not None else "")
        )
    lines.append(
        "its payload is in the store" if found.payload is not None else "the store keeps its payload no longer"
    )
    return lines


def copies(kept: Kept) -> Iterator[dict[str, Any]]:
    """Where the pipeline found copies, and where their originals are, the oldest batch first."""
    known = {place: partition for place, (_, partition) in partitions_of(kept.store).items()}
    for content in kept.store.copies(kept.pipeline):
        for each in decode_records(content).to_pylist():
            accepted = datetime.fromtimestamp(each["accepted_at"], timezone.utc).isoformat()
            original = _coordinates(known.get(each["original_place"]), each["original_offset"])
            copy = _coordinates(known.get(each["place"]), each["offset"])
            yield {**copy, "original": {**original, "accepted_at": accepted}}


def _coordinates(partition: Partition | None, offset: int) -> dict[str, Any]:
    """Without a topic, if no pipeline of the scope knows it any more."""
    topic, number = (partition.topic, partition.number) if partition is not None else (None, None)
    return {"topic": topic, "partition": number, "offset": offset}
