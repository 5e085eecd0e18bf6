"""Where the cases of a wrapped sink run: its target, and a ledger of the kit's own through which landonce drives it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

from landonce.ledger.block_ledgers import PushLedger, PushPlace
from landonce.protocol.block_rows import Claim, Spot
from landonce.protocol.blocks import Block, Identity, Plan, block_key
from landonce.protocol.ledger import LedgerState, Position, prepared, taken
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.receipt import BlockResult, Fate, Receipt
from landonce.sinks.wrapped.block import PushedBlock
from landonce.sinks.wrapped.sink import WrappedSink
from landonce.sinks.wrapped.worker import Sending, push_block
from landonce.testing.case import Need, Suite
from landonce.testing.crashing import MOST_MOMENTS
from landonce.testing.sink_sites import TOPIC, Row, rows, span

_PATIENCE = 10


class WrappedSite(ABC):
    """An empty target for one case, and what is declared of it.

    What the sink declares (`idempotent`, a probe) decides which cases apply. Give a sink that is not idempotent a small
    `settles_within`, such as 2.0: recovery waits for it, twice.
    """

    secret = ""
    """A word of the sink's settings that nobody may read in a log: a password."""
    packages: tuple[str, ...] = ()
    """Where else the sink's own code is: packages of yours that its class or function calls. Crashes are tried there too."""
    moments = MOST_MOMENTS
    """At how many lines of its own, at most, a crash is tried."""
    large = 5_000
    """Rows of a large block, a hundred bytes each. More, please, if the sink sends so many in one portion."""

    @abstractmethod
    def sink(self) -> WrappedSink:
        """What `landonce.wrap` gives. Always of the same target."""

    @abstractmethod
    def held(self) -> list[Row]:
        """All that the target holds, in any order, read without the sink."""

    def unreachable(self) -> AbstractContextManager[None]:
        """While it is open, the target does not answer."""
        raise NotImplementedError


WRAPPED_CASES: Suite[WrappedSite] = Suite("wrapped sink")

IDEMPOTENT: Need[WrappedSite] = Need(lambda site: site.sink().idempotent, "the sink declares idempotent=False")
PROBED: Need[WrappedSite] = Need(
    lambda site: site.sink().can_probe, "the sink has no probe, and needs none if idempotent"
)
SETTLES: Need[WrappedSite] = Need(
    lambda site: site.sink().idempotent or site.sink().can_probe,
    "the sink is neither idempotent nor has it a probe: after a crash a person decides",
)
SECRET: Need[WrappedSite] = Need(lambda site: bool(site.secret), "the site names no secret")
LEAVES: Need[WrappedSite] = Need(
    lambda site: type(site).unreachable is not WrappedSite.unreachable,
    "the site has no way to make its target unreachable (unreachable)",
)


def block(table: pa.Table, first: int, end: int, *, attempt: int = 1) -> PushedBlock:
    """As landonce makes them: the key is a function of what is in it."""
    topic, partition = table.column("_topic")[0].as_py(), table.column("_partition")[0].as_py()
    key = _key(span(first, end, topic, partition))
    return PushedBlock(key, topic, partition, first, end, table, attempt, 2**62)


def _key(range: Range) -> str:
    identity = Identity("contract", "lineage", "cluster", ())
    return block_key(identity, Block((range,), "contract"), range.partition.topic)


def push(site: WrappedSite, *pushed: PushedBlock) -> None:
    """Straight to the sink. Whatever it raises is the case's."""
    for each in pushed:
        with site.sink().opened() as delivery:
            delivery.push(each)


def probe(site: WrappedSite, asked: PushedBlock) -> bool:
    with site.sink().opened() as delivery:
        assert delivery.probe is not None
        return bool(delivery.probe(asked))


def held(site: WrappedSite) -> list[Row]:
    return sorted(site.held(), key=str)


def expected(*tables: pa.Table) -> list[Row]:
    found = pa.concat_tables(tables).to_pydict()
    return sorted((Row(*each) for each in zip(*found.values(), strict=True)), key=str)


@dataclass(frozen=True)
class Driven:
    """A plan that is pending, with a block of so many records for each of so many partitions."""

    place: PushPlace
    state: LedgerState
    size: int
    folder: TemporaryDirectory[str]
    """Goes with the last that uses it."""

    @staticmethod
    def of(partitions: int, size: int = 4) -> Driven:
        folder = TemporaryDirectory(prefix="landonce-kit-")
        place = PushPlace(Path(folder.name) / "ledger.db", "contract")
        ledger = place.open()
        state = ledger.create(LedgerState("contract", "lineage"))
        state = ledger.change(state, taken(state, "first"))
        named = [Partition(TOPIC, number) for number in range(partitions)]
        bound = replace(
            state,
            version=state.version + 1,
            cluster_id="cluster",
            positions=tuple((each, Position(0, 0)) for each in named),
        )
        state = ledger.change(state, bound)
        blocks = tuple(Block((span(0, size, partition=at),), "contract", number=at) for at in range(partitions))
        state = ledger.change(state, prepared(state, Plan(1, blocks, "fingerprint", 0)))
        ledger.close()
        return Driven(place, state, size, folder)

    def taken_over(self) -> Driven:
        """As by the driver that comes after a crash."""
        ledger = self.place.open()
        state = ledger.change(self.state, taken(self.state, "second"))
        ledger.close()
        return Driven(self.place, state, self.size, self.folder)

    def ledger(self) -> PushLedger:
        return self.place.open()

    def rows(self, number: int) -> pa.Table:
        """Those of the block of this number."""
        return four(number) if self.size == 4 else large(number, self.size)

    def push(self, sink: WrappedSink, number: int) -> BlockResult:
        """What a worker does with the block of this number."""
        sending = Sending(
            index=number,
            spot=Spot(1, number),
            claim=Claim.of(self.state),
            key=_key(span(0, self.size, partition=number)),
            range=span(0, self.size, partition=number),
            rows=self.rows(number),
            receipt=Receipt(read=self.size, landed=self.size),
        )
        ledger = self.ledger()
        try:
            return push_block(sink, ledger, sending)
        finally:
            ledger.close()

    def land(self, sink: WrappedSink, number: int) -> BlockResult:
        """As the driver does it: what is doubtful is waited out, and given to a worker again."""
        for _ in range(_PATIENCE):
            result = self.push(sink, number)
            if result.fate is not Fate.DOUBTFUL:
                break
            time.sleep(0.05 if sink.idempotent else sink.wait / 1000 + 0.1)
        return result


def four(number: int) -> pa.Table:
    return rows(0, 1, 2, 3, partition=number)


def large(number: int, size: int) -> pa.Table:
    return rows(*range(size), partition=number, words=[f"{at:032}" for at in range(size)])
