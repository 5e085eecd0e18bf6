"""Reads the consumer's configuration for an offset store, and refuses what it must not contain. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from landonce.errors import ConfigError

OffsetNotFound = Literal["use_kafka", "ignore_kafka"]
CommitToKafka = Literal["async", "sync", "off"]
Start = Literal["earliest", "latest"]

_STARTS: Mapping[str, Start] = {
    "smallest": "earliest",
    "earliest": "earliest",
    "beginning": "earliest",
    "largest": "latest",
    "latest": "latest",
    "end": "latest",
}
_OWN = (
    *("group.", "session.timeout.", "heartbeat.", "max.poll.", "partition.assignment.", "coordinator."),
    *("auto.", "offset.", "enable.auto.", "enable.partition.eof", "isolation.level", "consume.", "allow.auto.create."),
    *("fetch.", "max.partition.fetch.", "queued.", "check.crcs", "default.topic.config"),
    *("key.deserializer", "value.deserializer", "on_commit", "transaction", "enable.idempotence"),
    *("logger", "log_level", "log.", "debug", "statistics."),
)
"""How the options begin that are for the consumer alone: for its group and its reading, or for output that its user expects once. Other
clients of Kafka ignore most of them, so nothing is lost if a new one is missing here."""
_CALLBACK, _TOKEN_CALLBACK = "_cb", "oauth_cb"
_DEFAULT_POLL_MS = 300_000
_DEFAULT_SESSION_MS = 45_000
_METADATA_BYTES = 4096
_NOTHING = "Nothing was subscribed."


@dataclass(frozen=True)
class ConsumerSettings:
    """What the store needs to know of a consumer; the consumer does not expose it."""

    group: str
    poll_ms: int
    session_ms: int
    incremental: bool
    """True: partitions come and go one by one (cooperative, or the consumer protocol). False: all at once (eager)."""
    start: Start
    """The start of a partition that has no offset anywhere."""
    offset_not_found: OffsetNotFound
    commit_to_kafka: CommitToKafka
    timeout_check: bool


def settings(
    config: Mapping[str, Any],
    *,
    offset_not_found: str = "use_kafka",
    commit_to_kafka: str = "async",
    timeout_check: bool = True,
) -> ConsumerSettings:
    """Reads them, or raises what is wrong."""
    if not config.get("group.id"):
        raise _wrong("the consumer's configuration has no `group.id`.", "set `group.id`")
    reset = str(config.get("auto.offset.reset", "earliest")).lower()
    if reset not in (*_STARTS, "error"):
        raise _wrong(f"`auto.offset.reset` is {reset!r}.", "set it to earliest or latest")
    incremental = str(config.get("group.protocol", "classic")).lower() == "consumer" or "cooperative" in str(
        config.get("partition.assignment.strategy", "")
    )
    return ConsumerSettings(
        group=str(config["group.id"]),
        poll_ms=int(config.get("max.poll.interval.ms", _DEFAULT_POLL_MS)),
        session_ms=int(config.get("session.timeout.ms", _DEFAULT_SESSION_MS)),
        incremental=incremental,
        start=_STARTS.get(reset, "earliest"),
        offset_not_found=_one_of("offset_not_found", offset_not_found, ("use_kafka", "ignore_kafka")),
        commit_to_kafka=_one_of("commit_to_kafka", commit_to_kafka, ("async", "sync", "off")),
        timeout_check=timeout_check,
    )


def check_foreign(config: Mapping[str, Any]) -> None:
    """A consumer that the user created must not commit automatically, and must not skip records."""
    if _is_on(config.get("enable.auto.commit", True)):
        raise _wrong(
            "the consumer commits automatically: `enable.auto.commit` is on, which is the default.",
            "set `enable.auto.commit` to false, or use OffsetStore.connect",
        )
    if str(config.get("auto.offset.reset", "latest")).lower() != "error":
        raise _wrong(
            "the consumer would silently skip records that retention has deleted: `auto.offset.reset` is not `error`.",
            "set `auto.offset.reset` to error, or use OffsetStore.connect, which uses it as the start of a "
            "partition without an offset",
        )


def check_metadata(text: str) -> None:
    if len(text.encode()) > _METADATA_BYTES or "\0" in text:
        raise ConfigError(
            f"`metadata` has {len(text.encode())} bytes, or a zero byte in it.",
            safe="No offset was saved.",
            command=f"save at most {_METADATA_BYTES} bytes, which is also Kafka's default limit",
        )


def check_topics(topics: object) -> None:
    """A name alone would be taken for a list of letters."""
    if isinstance(topics, str):
        raise _wrong(f"`topics` is {topics!r}, and not a list.", f"pass [{topics!r}]")


def unsubscribed(topics: Iterable[str], why: str) -> ConfigError:
    return _wrong(
        f"Kafka's client cannot subscribe to {', '.join(map(repr, topics))}: {why}.",
        "name topics, or a pattern that begins with ^ and is a regular expression",
    )


def consumer_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """For a consumer that the store creates. Users cannot set options that the guarantee depends on."""
    if _is_on(config.get("enable.auto.commit", False)):
        raise _wrong("`enable.auto.commit` is on.", "leave it out")
    return {**config, "enable.auto.commit": False, "enable.auto.offset.store": False, "auto.offset.reset": "error"}


def client_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A consumer's configuration for another client of the same cluster. It keeps what it does not know: a login may need it."""
    return {
        name: value
        for name, value in config.items()
        if not name.startswith(_OWN) and (not name.endswith(_CALLBACK) or name == _TOKEN_CALLBACK)
    }


def _is_on(value: Any) -> bool:
    return str(value).lower() in ("true", "1", "t", "yes")


def _one_of(name: str, value: str, known: tuple[str, ...]) -> Any:
    if value not in known:
        raise _wrong(f"`{name}` is {value!r}.", f"set it to one of {', '.join(known)}")
    return value


def _wrong(what: str, command: str) -> ConfigError:
    return ConfigError(what, safe=_NOTHING, command=command)
