"""A user's own sink, as a pipeline file names it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, PrivateAttr, model_validator

from landonce.config.model import Ledger, Transform, by_place, remember_secrets
from landonce.errors import ConfigError
from landonce.sinks.section import SinkSection

if TYPE_CHECKING:
    from landonce.sinks.contract import Sink
    from landonce.sinks.wrapped.sink import WrappedSink


class Wrapped(SinkSection):
    """A sink of the user's own, made by `landonce.wrap`."""

    sink: str | None = None
    """`module:name`, or the name of a plug-in. None if a program passes the sink itself."""
    options: dict[str, Any] = Field(default_factory=dict, repr=False)
    """If the name is a function that makes the sink: its arguments."""
    _folder: Path = PrivateAttr(default=Path())

    @model_validator(mode="after")
    def _sound(self) -> Wrapped:
        remember_secrets(by_place(self.options))
        return self

    @property
    def folder(self) -> Path:
        """Modules are searched here first."""
        return self._folder

    def refuse(self, transform: Transform, ledger: Ledger | None) -> None:
        del transform
        if ledger is not None and ledger.plugin is not None:
            raise ValueError(
                "ledger: with `sink.wrapped` every push is claimed in the ledger's database: sqlite or postgres"
            )

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
