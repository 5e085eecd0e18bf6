"""From a sink and a ledger, as a program names them, to a driver whose ranges come from outside: a query of Spark brings them, or a push.

The sink is opened as for a pipeline (`sinks.run.OpenSink`), and gets the performer of its kind. Only the workers differ: rows are brought to
them instead of being read from Kafka, and they say which ranges there are.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from landonce.config import model, secrets
from landonce.config.model import Batch, pipeline_name
from landonce.config.secrets import redact
from landonce.engine.driver import Driver, Topics
from landonce.engine.observe import Observer, Silent
from landonce.engine.perform import Workers
from landonce.engine.pipeline import Choices, performer_of
from landonce.engine.publish import NoLetters
from landonce.engine.waiting import Waiting
from landonce.errors import ConfigError
from landonce.ledger.memory import MemoryLedger, MemoryStore
from landonce.protocol.cases import OnRewind
from landonce.protocol.ledger import Ledger
from landonce.protocol.packing import Pace
from landonce.read.decoding import Decoding
from landonce.read.kafka.records import NoRecords
from landonce.sinks.contract import Sink
from landonce.sinks.run import OpenSink, Run
from landonce.sinks.section import SinkSection
from landonce.sinks.worker import Basics

NamedSink = SinkSection | Sink
"""What `landonce.clickhouse`, `sql`, `iceberg` and `wrap` give, or another package's description of its sink."""
LedgerChoice = str | Path | Mapping[str, Any] | None
_MOST_ROWS = 1_000_000
_DATABASES, _OTHERS = {"sqlite", "postgres"}, {"keeper_map", "plugin", "memory"}
"""The keys of a ledger, as in a pipeline file."""
_POSTGRES = re.compile(r"postgres(?:ql)?(?:\+\w+)?://")
_log = logging.getLogger("landonce")


class Logged(Silent):
    """Trouble that landonce deals with by itself goes to Python's log."""

    def trouble(self, what: str) -> None:
        _log.warning("%s", redact(what))


@dataclass(frozen=True)
class Outside:
    """What a program says of a sink that it brings rows to."""

    sink: NamedSink
    ledger: LedgerChoice
    on_rewind: OnRewind
    block_rows: int
    stall: float
    observer: Observer

    memory: MemoryStore = field(default_factory=MemoryStore, repr=False)
    """Holds the position where the program names no other place for it."""

    @property
    def ledger_where(self) -> str | Path | None:
        """The database of the ledger that is named; None if it is none."""
        named = _database(self.ledger) if isinstance(self.ledger, Mapping) else self.ledger
        return named if isinstance(named, Path) or named is None else str(named)

    @property
    def place(self) -> str:
        """Where the position is kept, as it was named."""
        kept = self.sink.position_place if isinstance(self.sink, SinkSection) else ""
        named = "" if self.ledger is None else str(self.ledger_where or self.ledger)
        return kept or named or named_sink(self.sink, "query").identity

    def open_ledger(self, sink: Sink, name: str) -> Ledger:
        """Nothing is asked yet."""
        other = _other_ledger(self.ledger)
        if other is not None:
            return MemoryLedger(name, self.memory) if other.memory else sink.open_named_ledger(other, name)
        where = self.ledger_where
        if isinstance(where, str):
            secrets.remember_url(where)
        return sink.open_query_ledger(where, name)

    def opened(self, sink: Sink, run: Run, stack: ExitStack) -> OpenSink:
        """The sink, ready: the table is there and fit, and the rows fit into it."""
        waiting = Waiting(self.stall, self.observer.trouble)
        opened = stack.enter_context(closing(waiting.until(lambda: sink.open(run))))
        waiting.until(opened.start)
        columns = waiting.until(opened.columns_to_make)
        waiting.until(lambda: opened.make_ready(columns))
        return opened

    def driver(
        self,
        sink: Sink,
        opened: OpenSink,
        workers: Workers,
        parallelism: int,
        topics: Topics | None = None,
        observer: Observer | None = None,
    ) -> Driver:
        """`topics`: who says which ranges there are, where they do not come from outside."""
        choices = Choices(once=True, on_rewind=self.on_rewind, block_rows=self.block_rows)
        return Driver(
            pipeline=opened.run.name,
            topics=(),
            broker=topics,
            ledger=opened.run.ledger,
            performer=performer_of(sink, opened, workers, NoLetters(), choices),
            pace=Pace(Batch(), sink.deadline, parallelism),
            stall=self.stall,
            observer=observer or self.observer,
        )


def outside_basics(name: str, *, shuffled: bool) -> Basics:
    """What recipes say where rows are brought: nothing is read, decoded or transformed, and there are no dead letters."""
    return Basics(
        pipeline=name,
        records=NoRecords(),
        dead_letters=Path(),
        halts=False,
        decoding=Decoding(),
        block_bytes=0,
        select=(),
        where=None,
        shuffled=shuffled,
    )


def named_sink(sink: NamedSink, name: str) -> Sink:
    """The sink of a query or a push of this name."""
    return sink.to_sink(name) if isinstance(sink, SinkSection) else sink


def refuse_mistakes(sink: NamedSink, ledger: LedgerChoice, on_rewind: str, block_rows: int) -> None:
    """Raises, in one sentence, where no row can be delivered so."""
    if not 0 < block_rows <= _MOST_ROWS:
        raise ConfigError(f"block_rows: between 1 and {_MOST_ROWS}, not {block_rows}.")
    if not isinstance(sink, SinkSection | Sink):
        raise ConfigError(
            f"sink: {type(sink).__name__} is not a sink for queries or pushes.",
            command="landonce.clickhouse(url, table), landonce.iceberg(table), landonce.sql(url, table), landonce.wrap(push, idempotent=…)",
        )
    if reason := named_sink(sink, "query").no_query:
        raise ConfigError(f"sink: {reason}", command="write a pipeline file for it, or name another sink")
    if on_rewind not in ("drop", "error"):
        raise ConfigError(f"on_rewind: drop or error, not {on_rewind!r}.")
    _check_ledger(sink, ledger)


def sound_name(name: str) -> str:
    """The name that a position is kept under."""
    try:
        return pipeline_name(name)
    except ValueError as error:
        raise ConfigError(f"name: {error}.") from None


def _check_ledger(sink: NamedSink, ledger: LedgerChoice) -> None:
    """Some sinks keep the position themselves; every other one needs a ledger."""
    if named_sink(sink, "query").keeps_position:
        if ledger is not None:
            kept = sink.keeps_position if isinstance(sink, SinkSection) else ""
            raise ConfigError(f"ledger: {kept or 'the position is kept in the target, with its rows'}.")
        return
    if not isinstance(ledger, str | Path | Mapping):
        what = "say where the position is kept" if ledger is None else f"{type(ledger).__name__} names no place"
        raise ConfigError(f"ledger: {what}.", command='ledger="sqlite:///path/to/file", or a PostgreSQL URL')
    if isinstance(ledger, Mapping):
        if len(ledger) != 1 or not set(ledger) <= {*_DATABASES, *_OTHERS}:
            raise ConfigError(f"ledger: name one of {', '.join(sorted({*_DATABASES, *_OTHERS}))}.")
        _database(ledger)
    other = _other_ledger(ledger)
    if other is not None:
        named_sink(sink, "query").open_named_ledger(other, "query").close()


def _database(ledger: Mapping[str, Any]) -> str | Path | None:
    """The place of a database that a mapping names; None if it names another ledger."""
    named = _validated(ledger)
    if named.postgres is not None:
        url = named.postgres.get_secret_value()
        if not _POSTGRES.match(url):
            raise ConfigError(
                "ledger.postgres: is not the URL of a PostgreSQL database.",
                command='ledger={"postgres": "postgresql://user@host/database"}',
            )
        return url
    given = str(ledger.get("sqlite", ""))
    if "://" in given and not given.startswith("sqlite:"):
        raise ConfigError("ledger.sqlite: is a URL, and not the path of a file.")
    return given if "://" in given else named.sqlite


def _other_ledger(ledger: LedgerChoice) -> model.LedgerSection | None:
    """What a mapping says of a ledger that is no database."""
    named = _validated(ledger) if isinstance(ledger, Mapping) else None
    if named is None or named.is_database:
        return None
    if named.plugin is None:
        return named
    return named.model_copy(update={"plugin": named.plugin.beside(Path.cwd())})


def _validated(ledger: Mapping[str, Any]) -> model.LedgerSection:
    try:
        return model.LedgerSection.model_validate(dict(ledger))
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, ("ledger", *found["loc"])))
        raise ConfigError(redact(f"{place}: {found['msg'].removeprefix('Value error, ')}.")) from None
