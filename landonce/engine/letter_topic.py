"""Dead letters in a Kafka topic too, each once. The files stay the account; a letter is sent before its file counts.

    note      the topic's id and ends, in the folder, made once    where to look after a crash
    fence     a producer with the plan's transactional id          what another driver left open is aborted; it can commit no more
    owner     ask the ledger                                       a driver that was superseded ends here
    look      from the note's ends to the end, if the note was     letters of the plan that are there are not sent again
              there already
    send      the others, in transactions                          each is short: brokers abort those that take a minute
    count     their files are renamed                              letters of the plan's files that count are never sent again

The look comes after the fence: what another driver committed was committed before, and is seen. A driver that wakes up later is fenced,
or hears from the ledger that it is not the owner. A missing answer is never guessed: the next attempt fences and looks. If the part
to look at is gone, the run halts. Headers are those of Kafka Connect's dead letter queues.
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from landonce.engine.dead_letters import Place, as_bytes, place_of, reason_of, sync
from landonce.engine.retention import Retention
from landonce.errors import (
    ConfigError,
    DeadLettersUnsure,
    DeadLettersUnwritable,
    LandonceError,
    SourceRefused,
    SourceUnavailable,
    TopicMissing,
)
from landonce.failpoints import reach
from landonce.protocol.ranges import Range
from landonce.protocol.reasons import Code
from landonce.protocol.source import SourceView
from landonce.read.kafka.broker import QUIET, REFUSALS, Broker, certificate_refusal, consumer_options
from landonce.read.kafka.records import header_pairs, read, read_headers
from landonce.sinks.contract import Finding, Level
from landonce.sinks.pipeline_file import Pipeline

_CONNECT = "__connect.errors."
_PLAN = "landonce.plan"
_PATIENCE = 60.0
_LARGEST = 1_000_000_000
"""Bytes of a record that the client lets pass: the topic decides."""
_TOGETHER, _BYTES = 20_000, 32 * 2**20
"""Letters of one transaction, at most; about."""
_UNFIT = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_TIMESTAMP,
    KafkaError.POLICY_VIOLATION,
    KafkaError.INVALID_RECORD,
)
_NOTE = ".topic"
_SAFE = (
    "No letter is lost: the files in `dead_letters.path` hold all of them, also those that are not in the topic yet."
)
"""Says nothing of the position: a table that is its own ledger has the batch by then, and an operator may have given it up."""

Entry = Mapping[str, Any]


@dataclass(frozen=True)
class LetterTopic:
    """Where a pipeline's dead letters are sent."""

    pipeline: str
    topic: str
    bootstrap_servers: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @staticmethod
    def of(config: Pipeline) -> LetterTopic | None:
        """The one that the file names, with the source's brokers unless it names others."""
        letters, kafka = config.dead_letters, config.source.kafka
        if letters.topic is None:
            return None
        options = letters.options if letters.options is not None or letters.bootstrap_servers else kafka.options
        return LetterTopic(
            config.pipeline, letters.topic, letters.bootstrap_servers or kafka.bootstrap_servers, options or {}
        )

    def require(self) -> SourceView:
        """Before a start, and in a check: raises if the topic does not exist, or loses letters that have the same key."""
        try:
            view = self._broker().survey((self.topic,))
        except TopicMissing as error:
            raise TopicMissing(
                f"dead_letters: {error.what}",
                safe="Nothing was read or written.",
                command=f"kafka-topics.sh --bootstrap-server {self.bootstrap_servers} --create --topic {self.topic} "
                "--config retention.ms=-1; or correct `dead_letters.topic` in {file}",
            ) from None
        with suppress(SourceUnavailable):  # whoever may not ask for settings is not refused for that
            if Retention(self.bootstrap_servers, self.options).compacted(self.topic):
                raise ConfigError(
                    f"dead_letters.topic: {self.topic} is compacted: of letters with the same key it keeps the last.",
                    command=f"kafka-configs.sh --bootstrap-server {self.bootstrap_servers} --alter --topic {self.topic} "
                    "--add-config cleanup.policy=delete",
                )
        return view

    def findings(self) -> Iterator[Finding]:
        """Whether the topic keeps letters of old records, and the brokers allow transactions."""
        with suppress(SourceUnavailable):  # as in `require`
            yield from Retention(self.bootstrap_servers, self.options).letters(self.topic)
        yield from self._transactions()

    def _transactions(self) -> Iterator[Finding]:
        """Whether the brokers can have a log of transactions, by what they say of themselves. It is made with the first transaction."""
        try:
            brokers, needed = self._broker().transaction_log()
        except LandonceError as error:
            yield Finding(
                Level.WARNING,
                f"whether the brokers allow transactions cannot be asked: {error.what}",
                "allow DescribeConfigs on the cluster if you want this to be looked at",
            )
            return
        if brokers < needed:
            yield Finding(
                Level.REFUSED,
                f"the brokers allow no transactions: their log needs {needed} brokers, and there are {brokers}",
                f"start more brokers, or set `transaction.state.log.replication.factor` to {brokers}, and "
                "`transaction.state.log.min.isr` to no more",
            )

    def send(self, folder: Path, plan: str, letters: Iterable[Entry], owner: Callable[[], None]) -> None:
        """Sends letters of a plan to the topic, except those that are there. `owner` raises if another driver has the pipeline. Raises
        `SourceUnavailable` if the outcome is unknown: call it again."""
        rest = iter(letters)
        first = next(rest, None)
        if first is None:
            return
        try:
            self._send(folder, plan, chain((first,), rest), owner)
        except TopicMissing as error:  # a broker that was just started may not know it yet
            raise SourceUnavailable(error.what) from None
        except KafkaException as failure:
            raise self._named(failure.args[0]) from None

    def _send(self, folder: Path, plan: str, letters: Iterator[Entry], owner: Callable[[], None]) -> None:
        broker, note = self._broker(), folder / f".{plan}{_NOTE}"
        made = _make(note, lambda: self._ends(broker.survey((self.topic,))))
        reach("topic.noted")
        producer = self._producer(plan)
        producer.init_transactions(_PATIENCE)
        reach("topic.fenced")
        owner()
        known = _content(note)
        if known is None:
            return
        there = set() if made else self._there(broker, note, known, plan)
        missing = (each for each in letters if place_of(each) not in there)
        for some in _chunks(missing):
            owner()
            self._in_one_transaction(producer, plan, some)
        owner()
        _remove_older(note, self.pipeline)

    def _in_one_transaction(self, producer: Producer, plan: str, letters: Iterable[Entry]) -> None:
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            failed.extend([error] if error is not None else [])

        producer.begin_transaction()
        try:
            for letter in letters:
                self._produce(producer, plan, letter, delivered)
            left = producer.flush(_PATIENCE)
            if failed or left:
                raise KafkaException(failed[0] if failed else KafkaError(KafkaError._TIMED_OUT))
            reach("topic.sending")
            producer.commit_transaction(_PATIENCE)
        except BaseException:
            with suppress(KafkaException):  # otherwise readers wait for its end until it times out
                producer.abort_transaction(5)
            raise
        reach("topic.sent")

    def _produce(
        self, producer: Producer, plan: str, letter: Entry, delivered: Callable[[KafkaError | None, Message], None]
    ) -> None:
        headers: list[tuple[str, str | bytes | None]] = [
            (str(each["name"]), as_bytes(each, "value")) for each in letter.get("headers") or ()
        ]
        headers += self._headers(plan, letter)
        known = letter.get("timestamp")  # the client takes 0 for now: a record of that moment gets the next millisecond
        moment = 0 if known is None or known < 0 else max(int(known), 1)
        while True:
            try:
                producer.produce(
                    self.topic,
                    key=as_bytes(letter, "key"),
                    value=as_bytes(letter, "value"),
                    headers=headers,
                    timestamp=moment,
                    on_delivery=delivered,
                )
                break
            except BufferError:
                producer.poll(0.5)
        producer.poll(0)

    def _headers(self, plan: str, letter: Entry) -> Iterator[tuple[str, str]]:
        reason, (topic, partition, offset) = reason_of(dict(letter)), place_of(letter)
        refused = reason.code is Code.REFUSED_BY_TARGET
        yield f"{_CONNECT}topic", topic
        yield f"{_CONNECT}partition", str(partition)
        yield f"{_CONNECT}offset", str(offset)
        yield f"{_CONNECT}connector.name", self.pipeline
        yield f"{_CONNECT}task.id", "0"
        yield f"{_CONNECT}stage", "TASK_PUT" if refused else "VALUE_CONVERTER"
        yield f"{_CONNECT}class.name", "landonce"
        yield f"{_CONNECT}exception.class.name", reason.code.value
        yield f"{_CONNECT}exception.message", str(reason)
        yield f"{_CONNECT}exception.stacktrace", f"{reason.code.value}: {reason}"  # as Java prints one without frames
        yield "landonce.code", reason.code.value
        yield "landonce.field", reason.field
        yield "landonce.pipeline", self.pipeline
        yield _PLAN, plan

    def _there(self, broker: Broker, note: Path, known: Mapping[str, Any], plan: str) -> set[Place]:
        """The plan's letters that are in the topic, and count there."""
        view = self._settled(broker)
        if known["topic"] != self.topic or known["id"] != dict(view.topic_ids)[self.topic]:
            raise self._unsure(note, f"is not the topic {known['topic']} that they were first sent to")
        ranges = []
        for partition, extent in view.extents:
            first = known["ends"].get(str(partition.number), 0)
            if extent.start > first:
                raise self._unsure(
                    note, f"lost its records up to offset {extent.start} of partition {partition.number}"
                )
            if extent.stable_end < first:
                raise self._unsure(
                    note, f"lost its records from offset {extent.stable_end} of partition {partition.number}"
                )
            if extent.stable_end > first:
                ranges.append(Range(partition, first, extent.stable_end))
        options = consumer_options(self.bootstrap_servers, self.options, f"dead-{self.pipeline}")
        found: set[Place] = set()
        for records in read(tuple(ranges), options) if ranges else ():
            for message in records.messages:
                headers = {name: value or b"" for name, value in header_pairs(read_headers(message))}
                if headers.get(_PLAN) == plan.encode():
                    topic, number, at = (headers[f"{_CONNECT}{each}"] for each in ("topic", "partition", "offset"))
                    found.add((topic.decode(), int(number), int(at)))
        return found

    def _settled(self, broker: Broker) -> SourceView:
        """The topic, once the transactions of others have ended that were open: records behind an open one are not seen yet."""
        ends = broker.ends((self.topic,))
        until = time.monotonic() + _PATIENCE
        while True:
            view = broker.survey((self.topic,))
            if all(extent.stable_end >= ends.get(partition, 0) for partition, extent in view.extents):
                return view
            if time.monotonic() > until:
                raise SourceUnavailable(f"a transaction of another producer is open in the topic {self.topic}.")
            time.sleep(0.2)

    def _ends(self, view: SourceView) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "id": dict(view.topic_ids)[self.topic],
            "ends": {str(partition.number): extent.stable_end for partition, extent in view.extents},
        }

    def _broker(self) -> Broker:
        return Broker(self.bootstrap_servers, self.options)

    def _producer(self, plan: str) -> Producer:
        """All drivers that may send this plan have the same id: that of the one which made it (`LedgerState.lineage`)."""
        try:
            return Producer(
                {
                    **QUIET,
                    "message.max.bytes": _LARGEST,
                    "linger.ms": 5,
                    **self.options,
                    "bootstrap.servers": self.bootstrap_servers,
                    "transactional.id": f"landonce-dead-{self.pipeline}-{plan.rpartition('-')[2]}",
                },
                logger=None,
            )
        except KafkaException as error:
            raise ConfigError(
                f"Kafka's client refuses its options: {error.args[0].str()}.",
                command="correct `dead_letters.options` in {file}",
            ) from None

    def _named(self, error: KafkaError) -> LandonceError:
        who = f"Kafka, about the topic of dead letters {self.topic}"
        certificate = certificate_refusal(error, who, self.options)
        if certificate is not None:
            return certificate
        if error.code() in (*REFUSALS, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED):
            return SourceRefused(
                f"{who}, refused: {error.str()}",
                safe=_SAFE,
                command=f"give the user READ, WRITE and DESCRIBE on {self.topic}, and WRITE on transactional ids that begin with "
                "`landonce-dead-`, or correct `dead_letters.options` in {file}",
            )
        if error.code() in _UNFIT:
            return DeadLettersUnwritable(
                f"{who}, refused a dead letter: {error.str()}.",
                safe=_SAFE,
                command="change the topic so that it takes what the source takes (`max.message.bytes`, "
                "`message.timestamp.type=LogAppendTime`), then start again: landonce run {file}",
            )
        return SourceUnavailable(f"{who}: {error.str()}")

    def _unsure(self, note: Path, what: str) -> DeadLettersUnsure:
        return DeadLettersUnsure(
            f"the topic of dead letters {self.topic} {what}, so nobody can see which letters of the batch are in it.",
            safe=_SAFE,
            command=f"to send all letters of the batch, some perhaps again: `rm {note}`. To send no more of them: "
            f"`truncate -s 0 {note}`. Then: landonce run {{file}}",
        )


def _chunks(letters: Iterable[Entry]) -> Iterator[list[Entry]]:
    """What is sent in one transaction each. A letter that several files hold is sent once."""
    sent: set[Place] = set()
    chunk: list[Entry] = []
    size = 0
    for letter in letters:
        if place_of(letter) in sent:
            continue
        sent.add(place_of(letter))
        chunk.append(letter)
        size += len(letter.get("value") or letter.get("value_base64") or "")
        if len(chunk) >= _TOGETHER or size >= _BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _make(note: Path, content: Callable[[], Mapping[str, Any]]) -> bool:
    """Makes the note unless it exists, and returns whether it made it. The note is complete and on the disk before anything is sent. It is
    never replaced: with later ends, a look would miss what was sent before."""
    if note.exists():
        return False
    temporary = note.with_name(f"{note.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(content(), file)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, note)
    except FileExistsError:
        return False
    except OSError as error:
        raise DeadLettersUnwritable(
            f"{note.parent} cannot be written to: {error.strerror}.", safe=_SAFE, command="make the folder writable"
        ) from None
    finally:
        temporary.unlink(missing_ok=True)
    sync(note.parent)
    return True


def _content(note: Path) -> dict[str, Any] | None:
    """None: a person emptied it, so that no more is sent."""
    try:
        text = note.read_text(encoding="utf-8")
    except FileNotFoundError:  # a newer driver is beyond this plan
        raise SourceUnavailable(f"{note} is gone.") from None
    return dict(json.loads(text)) if text else None


def _remove_older(note: Path, pipeline: str) -> None:
    """Notes of earlier plans, which are over. Only the owner may: a newer driver's plan may need its own."""
    name = re.compile(re.escape(f".{pipeline}.batch-") + r"(\d{9,})-\w*" + re.escape(_NOTE))
    mine = name.fullmatch(note.name)
    for path in note.parent.glob(f".*{_NOTE}"):
        found = name.fullmatch(path.name)
        if mine and found and int(found[1]) < int(mine[1]):
            path.unlink(missing_ok=True)
