"""Copies a pipeline's position to a consumer group, so that Kafka's own tools show its lag. Nothing is ever read back from it.

The group is for dashboards: a copy that fails or comes late changes nothing, and nobody waits for one but a run that ends, for a moment.
A group that somebody else uses is not touched. Two things tell: Kafka refuses offsets from outside while a group has members, and every
offset of landonce's carries metadata that says so. A group that holds other offsets of these topics is a consumer's that was stopped:
with offsets of landonce's it would skip records.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from landonce.protocol.ranges import Partition
from landonce.read.kafka.broker import REFUSALS, committed_with

MINE = "landonce"
"""How the metadata of landonce's own offsets begins."""
_PATIENCE = 10.0
_AGAIN = 5.0
"""Seconds after which a copy that failed is tried again, if no later position came."""
AT_THE_END = 2.0
"""Seconds that a run which ends waits for its last copy."""
_TAKEN = (
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.GROUP_ID_NOT_FOUND,
)


def foreign(metadata: Mapping[Partition, str]) -> tuple[Partition, ...]:
    """Partitions with an offset that landonce did not commit."""
    return tuple(sorted(each for each, text in metadata.items() if not text.startswith(MINE)))


class Mirror:
    """The consumer group of one pipeline. `moved` returns at once: a thread of its own does the rest."""

    def __init__(self, group: str, pipeline: str, options: Mapping[str, Any]) -> None:
        self.group = group
        self._options = {**options, "group.id": group, "session.timeout.ms": 6000}
        self._metadata = f"{MINE}: pipeline {pipeline}"
        self._changed = threading.Condition()
        self._next: dict[Partition, int] = {}
        self._failed: dict[Partition, int] = {}
        """What could not be copied, while no later position is known."""
        self._busy = self._ending = self._given_up = self._reported = self._working = False
        self._news: list[str] = []

    def moved(self, positions: Mapping[Partition, int]) -> None:
        """The pipeline is here now. What was not copied yet is skipped."""
        with self._changed:
            if self._given_up or not positions:
                return
            self._next, self._ending = dict(positions), False
            if not self._working:
                self._working = True
                threading.Thread(target=self._work, name="landonce-mirror", daemon=True).start()
            self._changed.notify_all()

    def news(self) -> tuple[str, ...]:
        """What people should hear of, since it was last asked. A failure is reported once."""
        with self._changed:
            news, self._news = tuple(self._news), []
        return news

    def close(self, seconds: float | None = None) -> None:
        """Waits for the last copy, and not for long: `AT_THE_END` if no limit is given. 0: it is left out."""
        seconds = AT_THE_END if seconds is None else seconds
        with self._changed:
            if not seconds:
                self._next = self._failed = {}
            elif self._failed:
                self._next = self._next or self._failed
                self._changed.notify_all()
            self._changed.wait_for(lambda: not self._next and not self._busy, timeout=seconds)
            self._next, self._failed, self._ending = {}, {}, True
            self._changed.notify_all()

    def _work(self) -> None:
        try:
            consumer = Consumer(self._options, logger=None)
        except KafkaException as error:
            self._report(error.args[0].str(), lasting=False)
            self._ended()
            return
        checked = False
        while (positions := self._taken()) is not None:
            try:
                held = {} if checked else committed_with(self.group, positions, self._options, timeout=_PATIENCE)
                if others := foreign({partition: text for partition, (_, text) in held.items()}):
                    self._give_up(f"it holds offsets of {others[0]} that landonce did not commit: a consumer uses it")
                    break
                checked = True
                offsets = [TopicPartition(p.topic, p.number, at, self._metadata) for p, at in sorted(positions.items())]
                for each in consumer.commit(offsets=offsets, asynchronous=False) or ():
                    if each.error is not None:
                        raise KafkaException(each.error)
                with self._changed:
                    self._reported = False
            except KafkaException as error:
                code = error.args[0].code()
                if code in _TAKEN:
                    self._give_up("it has active members")
                    break
                self._report(error.args[0].str(), lasting=code in REFUSALS)
                if code in REFUSALS:
                    break
                with self._changed:
                    self._failed = positions
        consumer.close()

    def _ended(self) -> None:
        """The next position starts another thread."""
        with self._changed:
            self._next, self._failed, self._busy, self._working = {}, {}, False, False
            self._changed.notify_all()

    def _taken(self) -> dict[Partition, int] | None:
        """What is to be copied next; None at the end."""
        with self._changed:
            self._busy = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: bool(self._next) or self._ending, _AGAIN if self._failed else None)
            if not self._next and self._ending:
                self._ended()
                return None
            positions, self._next, self._failed, self._busy = self._next or self._failed, {}, {}, True
            return positions

    def _give_up(self, why: str) -> None:
        with self._changed:
            self._given_up = True
            self._ended()
            self._news.append(
                f"the position is not copied to the consumer group {self.group!r}: {why}. The pipeline does not need it. "
                "Name another group in `source.kafka.mirror_group`, or turn it off: false."
            )

    def _report(self, why: str, *, lasting: bool) -> None:
        with self._changed:
            if lasting:
                self._given_up = True
                self._ended()
            if not self._reported:
                self._reported = True
                self._news.append(
                    f"the position was not copied to the consumer group {self.group!r}: {why}. The pipeline does not need it."
                )
