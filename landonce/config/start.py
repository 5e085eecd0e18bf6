"""The key `source.kafka.start`: `earliest`, `latest`, or a place that Kafka is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from pydantic import Field, model_validator

from landonce.config.part import Part

_FORMS = "earliest, latest, {timestamp: 2026-11-01T00:00:00Z}, {offsets: {topic: {0: 100}}} or {group: name}"


class KafkaStart(Part):
    """Where a pipeline without a position begins: at an edge of the topics, or at one of the three places."""

    edge: Literal["earliest", "latest"] = "earliest"
    """If no place is named. In a file it stands alone."""
    timestamp: datetime | None = None
    offsets: dict[str, dict[int, int]] | None = None
    group: str | None = Field(default=None, min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _one_form(cls, value: Any) -> Any:
        if isinstance(value, str) and value in ("earliest", "latest"):
            return {"edge": value}
        if isinstance(value, Mapping) and (not value or set(value) in ({"timestamp"}, {"offsets"}, {"group"})):
            return value
        raise ValueError(f"must be {_FORMS}")

    @model_validator(mode="after")
    def _sound(self) -> KafkaStart:
        if self.timestamp is not None and self.timestamp.tzinfo is None:
            raise ValueError("timestamp: has no time zone; write for example 2026-11-01T00:00:00Z")
        for each in (self.offsets or {}).values():
            if any(number < 0 or at < 0 for number, at in each.items()):
                raise ValueError("offsets: partitions and offsets are 0 or more")
        return self
