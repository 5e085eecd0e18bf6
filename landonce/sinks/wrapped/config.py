"""A user's own sink, as a pipeline file names it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, PrivateAttr, model_validator

from landonce.config.model import LedgerSection, Transform, by_place, remember_secrets
from landonce.errors import ConfigError
from landonce.sinks.section import ChangesSection, SinkSection, one_column

if TYPE_CHECKING:
    from landonce.sinks.contract import Sink
    from landonce.sinks.wrapped.sink import WrappedSink


def no_claims(ledger: LedgerSection) -> str:
    """Why workers cannot claim blocks in this ledger. Empty: they can."""
    if ledger.memory:
        return "ledger.memory: workers of a wrapped sink claim blocks in the ledger, and no other process sees this one's memory"
    if ledger.keeper_map is not None:
        return "ledger.keeper_map: is a table of ClickHouse, and this sink is none"
    return ""


class Wrapped(SinkSection):
    """A sink of the user's own, made by `landonce.wrap`."""

    sink: str | None = None
    """`module:name`, or the name of a plug-in. None if a program passes the sink itself."""
    options: dict[str, Any] = Field(default_factory=dict, repr=False)
    """If the name is a function that makes the sink: its arguments."""
    key: tuple[str, ...] = ()
    """The fields that identify a row, if records change rows."""
    changes: ChangesSection | None = None
    """How records say what happened. Each row of a block then says it in `_change`."""
    _folder: Path = PrivateAttr(default=Path())

    @model_validator(mode="before")
    @classmethod
    def _one_field(cls, given: Any) -> Any:
        return one_column(given)

    @model_validator(mode="after")
    def _sound(self) -> Wrapped:
        if (self.changes is None) != (not self.key):
            raise ValueError("`changes` and `key`, the fields that name one row, go together")
        remember_secrets(by_place(self.options))
        return self

    @property
    def change_mode(self) -> str:
        return self.changes.mode if self.changes is not None else ""

    @property
    def reads_names(self) -> str:
        return "changes" if self.change_mode in ("debezium", "dms") else ""

    @property
    def no_dedup(self) -> str:
        return "with a wrapped sink, does not go with `changes`" if self.changes is not None else ""

    @property
    def folder(self) -> Path:
        """Modules are searched here first."""
        return self._folder

    def refuse(self, transform: Transform, ledger: LedgerSection | None) -> None:
        if self.changes is not None and not transform.empty:
            raise ValueError("transform: does not go with `changes`, which takes records as they are")
        if ledger is not None and (reason := no_claims(ledger)):
            raise ValueError(reason)

    def to_sink(self, pipeline: str) -> WrappedSink:
        del pipeline
        from landonce.sinks.wrapped.sink import HANDED_OVER, find_sink

        return HANDED_OVER if self.sink is None else find_sink(self.sink, self.options, self.folder)

    def given(self, sink: Sink) -> Sink:
        if self.sink is not None:
            raise ConfigError(
                f"sink.wrapped.sink: names {self.sink}, but a program passes another sink. Use one of them."
            )
        return sink

    def beside(self, folder: Path) -> Wrapped:
        made = self.model_copy()
        made._folder = folder
        return made
