"""A schema from a sample waits for a topic that has no leader yet, and not for ever."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from landonce.engine import pipeline
from landonce.engine.observe import Silent
from landonce.errors import SourceUnavailable
from landonce.read.sample import Inferred


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
    monkeypatch.setattr(pipeline.time, "sleep", lambda _: None)
    monkeypatch.setattr(pipeline, "sampled_schema", lambda _parts, view, _usable, _tidy: Inferred(view))
    parts = SimpleNamespace(source=lambda: broker.survey(("t",)))
    return pipeline.sampled_columns(parts, lambda _: None, lambda sampled: sampled, Silent())  # type: ignore[arg-type]


def test_a_topic_without_a_leader_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sampled(monkeypatch, Reluctant(3)) == "a view of t"


def test_brokers_that_stay_away_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceUnavailable):
        sampled(monkeypatch, Reluctant(100))
