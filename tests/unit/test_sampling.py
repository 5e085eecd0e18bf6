"""A schema from a sample waits for a topic that has no leader yet, and not for ever."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from landonce.engine import assemble
from landonce.errors import SourceUnavailable


class Reluctant:
    """Answers after so many questions."""

    def __init__(self, after: int) -> None:
        self.left = after

    def survey(self, topics: tuple[str, ...]) -> str:
        if self.left:
            self.left -= 1
            raise SourceUnavailable("Broker: Not leader for partition")
        return f"a view of {', '.join(topics)}"


def sampled(monkeypatch: pytest.MonkeyPatch, broker: Reluctant) -> object:
    monkeypatch.setattr(assemble.time, "sleep", lambda _: None)
    monkeypatch.setattr(assemble, "take_sample", lambda view, _: SimpleNamespace(columns=lambda _: view))
    kafka = SimpleNamespace(topics=("t",), schema_=None)
    config = SimpleNamespace(transform=SimpleNamespace(select=()), source=SimpleNamespace(kafka=kafka))
    parts = SimpleNamespace(config=config, broker=broker, consumer={})
    return assemble.columns_to_make(parts, lambda _: None)(None)  # type: ignore[arg-type]


def test_a_topic_without_a_leader_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sampled(monkeypatch, Reluctant(3)) == "a view of t"


def test_brokers_that_stay_away_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceUnavailable):
        sampled(monkeypatch, Reluctant(100))
