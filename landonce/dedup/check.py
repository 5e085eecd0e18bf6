"""What `landonce check` says of a pipeline with `dedup`. Reads only: makes no table, no key, no file.

the store ─► the target, as the pipeline that pushes meets it ─► the key rule, the window, both compared, and what the window will need
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from landonce.config.dedup import Dedup
from landonce.config.model import duration_words
from landonce.dedup.accept import require_own_window, require_rule
from landonce.dedup.chunks import StoredTopics
from landonce.dedup.look import Kept, moment
from landonce.dedup.pipelines import pushing_parts, refuse_target
from landonce.dedup.rule import accepted_schema, key_rule, known_types, with_type
from landonce.dedup.run import refuse_behind
from landonce.dedup.stats import DAY, SPANS, Growth, grown, growth, growth_words, rate_of, size_words
from landonce.dedup.store import Scope, Store, StorePlace
from landonce.engine.spark.session import open_session, session_if_needed
from landonce.errors import LandonceError, SourceUnavailable
from landonce.ledger.database import SqliteDatabase
from landonce.protocol.dedup import bucket_seconds
from landonce.protocol.ledger import LedgerState
from landonce.protocol.source import everything
from landonce.read.formats import RecordType
from landonce.read.schema.fields import Schema
from landonce.sinks import checking
from landonce.sinks.checking import CheckRun, Findings, Sections
from landonce.sinks.contract import Finding, Level
from landonce.sinks.declared import declared_schema, sampled_schema
from landonce.sinks.promise import late_words

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NULLS = {
    "dead_letter": "is a dead letter",
    "unique": "is no copy of any other",
    "value": "has null as that part of its key: null equals null",
}


def sections(run: CheckRun, dedup: Dedup) -> Sections:
    """In the order in which a start would meet them."""
    check = _DedupCheck(run, dedup, Kept.of(run.parts).store)
    yield "store", check.in_store()
    pushing = check.pushing()
    yield from run.parts.sink.checks(pushing)
    run.recipe, run.statements = pushing.recipe, pushing.statements
    yield "deduplication", check.deduplication(pushing)


@dataclass
class _DedupCheck:
    """The sections, and what they tell each other of the store."""

    run: CheckRun
    dedup: Dedup
    store: Store
    answers: bool = False
    """The store was asked; `scope` is None if there is none yet."""
    scope: Scope | None = None
    accepted: LedgerState | None = None
    """Of the pipeline that accepts."""

    def in_store(self) -> Findings:
        """The database, the scope, and the position of the pipeline that accepts."""
        run, store = self.run, self.store
        refuse_target(run.parts)
        store.require_shared(remote=run.remote)
        self.scope = store.look()
        self.answers = True
        if self.scope is not None:
            mark = store.mark(run.parts.config.pipeline)
            self.accepted = mark.state if mark is not None else None
            yield from self._scope_words(self.scope)
        elif isinstance(store.database, SqliteDatabase):
            folder = store.database.path.parent
            fine = f"none yet: the first run makes the scope {store.scope!r} in {store.database.place}"
            yield from checking.writable(folder, fine, f"mkdir -p {folder}")
        else:
            yield Finding(
                Level.OK, f"{store.database.place} answers; the first run makes the scope {store.scope!r} in it"
            )
        bound = checking.bound_state(replace(run, ledger=True), self.accepted)
        if bound is not None:
            yield from checking.distances(run, bound)

    def _scope_words(self, scope: Scope) -> Findings:
        shared = [each for each in self.store.pipelines() if each != self.run.parts.config.pipeline]
        beside = f", shared with {', '.join(shared)}" if shared else ""
        yield Finding(
            Level.OK,
            f"scope {self.store.scope!r} in {self.store.database.place}{beside}: {scope.accepted:,} events accepted, {scope.copies:,} copies",
        )
        if scope.shards != self.dedup.shards:
            yield Finding(Level.OK, f"the next start makes {self.dedup.shards} shards of the {scope.shards}")

    def pushing(self) -> CheckRun:
        """The check of the pipeline that pushes: to it, the store looks like the topics, once it has accepted anything."""
        parts, place = self.run.parts, StorePlace.of(self.run.parts.config)
        source, kept_by = self.run.source, self.run.kept_by
        if self.accepted is not None and not self.accepted.fresh:
            source, kept_by = StoredTopics(place, parts.config.pipeline).survey(()), "the store"
        return replace(
            self.run,
            parts=pushing_parts(parts),
            source=source if self.answers else None,
            kept_by=kept_by,
            retention=lambda _: iter(()),
        )

    def deduplication(self, pushing: CheckRun) -> Findings:
        yield from _refusal(lambda: self._key(pushing))
        yield from _refusal(self._window)
        if self.answers:
            yield from _refusal(lambda: self._compared(pushing))
            yield from _refusal(self._forecast)

    def _key(self, pushing: CheckRun) -> Findings:
        """What makes an event, and whether the keys in the store were made by the same rule."""
        types = known_types(self.run.parts)
        rule = key_rule(self.dedup, self._schema(pushing, types), self.run.parts.decoding, types)
        if self.scope is not None:
            require_rule(self.scope, self.store, rule)
        yield Finding(
            Level.OK, f"records of scope {self.store.scope!r} with the same key are one event: {rule.words()}"
        )
        yield Finding(
            Level.OK, f"a record with a null in its key {_NULLS[self.dedup.on_null]} (on_null: {self.dedup.on_null})"
        )

    def _schema(self, pushing: CheckRun, types: Sequence[RecordType]) -> Schema:
        """The fields of records: as the target takes them, or as they will be once it is there."""
        if pushing.recipe is not None:
            return accepted_schema(pushing.recipe, self.dedup, types)
        declared = declared_schema(self.run.parts.config)
        if declared is None and self.run.source is None:
            raise SourceUnavailable(
                "the types of the key's fields are not known: neither the target nor the topics tell."
            )
        if declared is None and self.run.source is not None:
            return with_type(sampled_schema(self.run.parts, self.run.source, lambda _: None).schema, self.dedup)
        return with_type(declared or Schema(()), self.dedup)

    def _window(self) -> Findings:
        dedup, scope = self.dedup, self.scope
        if scope is not None and scope.ttl != int(dedup.ttl):
            require_own_window(scope, self.store, self.run.parts.config.pipeline)
            yield Finding(
                Level.OK,
                f"the next start changes the window of {duration_words(scope.ttl)} to {duration_words(dedup.ttl)}",
            )
        step = scope.bucket if scope is not None else bucket_seconds(int(dedup.ttl))
        yield Finding(
            Level.OK,
            f"an event lands once within {duration_words(dedup.ttl)} (ttl): its key is remembered that long, and up to {duration_words(step)} longer; "
            "a copy that comes later lands again",
        )
        gone = f"; they go back to {moment(scope.horizon / 1000)}" if scope is not None and scope.horizon else ""
        yield Finding(Level.OK, late_words(dedup) + gone)

    def _compared(self, pushing: CheckRun) -> Findings:
        """The target must not hold events that the store does not know. It is asked first: the store is ahead of it at any moment."""
        config, view = self.run.parts.config, self.run.source
        if view is None or not pushing.ledger:
            return
        known = pushing.state or LedgerState(config.pipeline, lineage="")

        def sessions(settings: Mapping[str, str]) -> AbstractContextManager[Callable[[], SparkSession]]:
            return session_if_needed(lambda: open_session(config.pipeline, config.spark, extra=settings))

        partitions = [partition for partition, _ in view.extents]
        held = pushing.parts.sink.operations(pushing.parts, sessions).ahead(known, (), partitions)
        mark = self.store.mark(config.pipeline) if self.scope is not None else None
        committed = mark.state.committed() if mark is not None else {}
        floors = {partition: committed.get(partition, 0) for partition in partitions}
        refuse_behind(self.store, known, committed, floors, dict(held.ends))
        yield Finding(Level.OK, "the store is not behind the target: it knows all events that are there")

    def _forecast(self) -> Findings:
        """At the rate of the store; at that of the topics, as long as the store has none."""
        found = self._by_store() or self._by_topics()
        if found is None:
            yield Finding(
                Level.OK,
                "nothing tells how fast the store will grow: no event was accepted in the last day, and the topics got none",
            )
            return
        words, needs = found
        yield Finding(Level.OK, f"{growth_words(needs)}; {words}")
        if needs.key_bytes > self.dedup.cache:
            yield Finding(
                Level.WARNING,
                f"a machine keeps at most {size_words(self.dedup.cache)} of keys in files (dedup.cache): with more, every batch fetches keys "
                "from the store again",
                "raise `dedup.cache` if its disk and memory have room, shorten `dedup.ttl`, or compare on more machines with a PostgreSQL store",
            )
        yield from self._room(needs)

    def _room(self, needs: Growth) -> Findings:
        if not isinstance(self.store.database, SqliteDatabase):
            return
        path = self.store.database.path
        free = shutil.disk_usage(checking.nearest(path)).free + (path.stat().st_size if path.exists() else 0)
        if needs.disk > free:
            yield Finding(
                Level.WARNING,
                f"the disk of {path} has room for {size_words(free)}, and the full window needs about {size_words(needs.disk)}",
                "shorten `dedup.ttl`, say `payloads: sent`, or name a store with more room",
            )

    def _by_store(self) -> tuple[str, Growth] | None:
        if self.scope is None:
            return None
        now = time.time()
        needs = growth(self.scope, self.store.runs(self.scope), self.store.recent(int(now) - DAY), self.dedup, now)
        return ("by what was accepted lately", needs) if needs is not None else None

    def _by_topics(self) -> tuple[str, Growth] | None:
        """All records count as new, and none is compressed: it is the most that will be needed."""
        view, broker = self.run.source, self.run.parts.broker
        if view is None:
            return None
        ends = {partition: extent.stable_end for partition, extent in view.extents}
        now, counts = int(time.time() * 1000), {}
        for span in SPANS:
            since = broker.since(ends, now - 1000 * span)
            counts[span] = sum(max(0, ends[partition] - first) for partition, first in since.items())
        rate = rate_of(counts)
        if rate is None:
            return None
        span, per_second = rate
        size = broker.record_bytes(tuple(everything(view)))
        bucket = self.scope.bucket if self.scope is not None else None
        words = f"at most: by all records that the topics got in the last {duration_words(span)}, copies included, before compression"
        return words, grown(self.dedup, bucket, per_second, size or 0.0)


def _refusal(findings: Callable[[], Findings]) -> Findings:
    """An error ends these findings, and not the section."""
    try:
        yield from findings()
    except LandonceError as error:
        yield Finding(Level.REFUSED, error.what, error.command)
