"""Whether what a worker has read is of the topics that its plan is about.

A topic may be deleted and made anew after the driver looked, and then the same offsets are other records. A topic's id is never
used again, in no cluster: so if the brokers, asked after the last record was read, know the topics by the ids of the plan, all that
was read is of them, and of their cluster. Rows are written only after that. Brokers that give topics no ids cannot be asked; and one
that hears of new topics later than the one that was read from might still name the old id, for as long as it takes to tell it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from landonce.errors import SourceUnavailable, TopicMissing, TopicRecreated
from landonce.read.kafka.broker import Broker

_NONE = ("", "AAAAAAAAAAAAAAAAAAAAAA")
"""What stands for the id of a topic that has none: nothing, or all bits zero."""
_brokers: dict[tuple[object, ...], Broker] = {}
"""One per process and options, kept for the next block. A forked process cannot use the client of its parent."""


def require_same(topics: Mapping[str, str], options: Mapping[str, Any]) -> None:
    """Raises `TopicRecreated` unless the brokers know these topics by these ids."""
    told = {topic: topic_id for topic, topic_id in topics.items() if topic_id not in _NONE}
    if not told:
        return
    try:
        found = _broker(options).topic_ids(told)
    except TopicMissing as error:
        raise SourceUnavailable(error.what) from None
    for topic, topic_id in told.items():
        if found[topic] not in (topic_id, *_NONE):
            raise TopicRecreated(
                f"topic {topic!r} was deleted and made anew while a batch of it was read: the ledger knows id {topic_id}, "
                f"the broker has {found[topic]}.",
                safe="What was read was thrown away, and no row of it was written. The position did not move.",
                command="landonce state rebase {file} --drop-pending",
            )


def _broker(options: Mapping[str, Any]) -> Broker:
    key = (os.getpid(), *sorted((name, str(value)) for name, value in options.items()))
    if key not in _brokers:
        _brokers[key] = Broker(str(options["bootstrap.servers"]), options)
    return _brokers[key]
