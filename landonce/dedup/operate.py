"""The two pipelines of a file with `dedup`, for operators: accept (Kafka to the store) and push (the store to the target)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from landonce.dedup.accept import StoreTable
from landonce.dedup.chunks import StoredTopics
from landonce.dedup.comparing import Staged
from landonce.dedup.look import Kept
from landonce.dedup.run import pushing_config
from landonce.dedup.store import StorePlace
from landonce.errors import NothingToDo
from landonce.sinks.operations import UNCHANGED, Operations, Sessions
from landonce.sinks.operations import LedgerAddress as KeptIn
from landonce.sinks.parts import Parts
from landonce.sinks.snapshot import TableLedger


@dataclass
class AcceptOperations(Operations):
    """The pipeline that accepts. Its position is in the store, with the keys."""

    place: StorePlace
    no_fill = "there is nothing to fill: the store accepts a batch whole, or not at all."

    def kept(self) -> KeptIn:
        where = Kept.of(self.parts).store.database.place
        return KeptIn(f"the store of scope {self.place.scope}, {where}", {"store": where, "scope": self.place.scope})


def place_of_store(parts: Parts) -> StorePlace:
    config = parts.config
    scope = config.dedup.scope if config.dedup is not None else None
    return StorePlace(config.store_place, scope or config.pipeline)


def accepting(parts: Parts, sessions: Sessions) -> AcceptOperations:
    """What may be decided about the pipeline that accepts."""
    ledger = accepting_ledger(parts)
    return AcceptOperations(Parts(parts.config, parts.broker, ledger, parts.sink), sessions, place_of_store(parts))


def accepting_ledger(parts: Parts) -> TableLedger[Staged]:
    """The ledger of the pipeline that accepts."""
    return TableLedger(StoreTable(place_of_store(parts), parts.config.pipeline), parts.config.pipeline)


def pushing(parts: Parts) -> Parts:
    """The ends of the pipeline that pushes: to it, the store looks like the topics."""
    topics = StoredTopics(place_of_store(parts), parts.config.pipeline)
    return replace(parts, config=pushing_config(parts.config), broker=topics)  # type: ignore[arg-type]  # it is asked for the topics only


_REFUSED = {
    "rebase": (
        "a pipeline with `dedup` cannot be bound to other topics: the store holds events by the offsets of the old ones.",
        "let the producer use a topic with a new name, and write a new `pipeline` and `dedup.scope: {scope}` in {{file}}: the keys stay",
    ),
    "seek": (
        "a pipeline with `dedup` cannot go back or skip records: the store knows which events it has accepted, and would take them for "
        "copies.",
        "land the topic under a new `pipeline` name, in another table",
    ),
    "accept-change": (
        "nothing has to be accepted: a stored block is sent as it is, and one that is not stored was never sent.",
        "landonce run {{file}}",
    ),
    "import": (
        "the position of another writer says nothing about the keys of what it wrote.",
        "import the position without `dedup`, then add `dedup` and take the keys from the target: landonce dedup rebuild {{file}}",
    ),
}


def refuse(parts: Parts, command: str) -> None:
    """Raises if an operator's command does not suit a pipeline with `dedup`."""
    if parts.config.dedup is not None and command in _REFUSED:
        what, instead = _REFUSED[command]
        raise NothingToDo(what, safe=UNCHANGED, command=instead.format(scope=place_of_store(parts).scope))
