"""The section of a pipeline file that says where records land. Every sink has a subclass of it, in its `config.py`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from pydantic import ValidationError, model_validator

from landonce.config import secrets
from landonce.config.model import Ledger, Transform
from landonce.config.part import Part
from landonce.errors import ConfigError

if TYPE_CHECKING:
    from landonce.read import changes
    from landonce.sinks.contract import Sink


class LedgerPlace(Enum):
    """Where a pipeline's position is kept."""

    OUTSIDE = "outside"
    """In a ledger that the file names, or in the SQLite file `landonce.ledger`."""
    BESIDE_ROWS = "beside the rows"
    """In tables of the target database, which change in the transaction that writes the rows."""
    IN_COMMIT = "in the commit"
    """In the table itself: the commit that adds the rows holds the position."""


class SinkSection(Part, ABC):
    """One kind of sink, as a pipeline file describes it. Importing its module loads nothing heavy: a mistake in a file is answered at once."""

    keeps_position: ClassVar[str] = ""
    """Where a sink that needs no ledger keeps the position, as a query's user hears it. Empty: in the ledger that is named."""

    @property
    def position_place(self) -> str:
        """Which place that is: two queries of one name that keep their positions there are one."""
        return ""

    def beside(self, folder: Path) -> SinkSection:
        """The same, with relative paths taken from the file's own folder."""
        del folder
        return self

    def ledger_place(self, *, named: bool) -> LedgerPlace:
        """Where the position is kept. `named`: the file names a ledger."""
        del named
        return LedgerPlace.OUTSIDE

    @property
    def needs_json(self) -> str:
        """The key of this section that takes records as JSON only, if it is set."""
        return ""

    def refuse(self, transform: Transform, ledger: Ledger | None) -> None:
        """Raises `ValueError` for sections of the file that this sink does not go with."""

    @abstractmethod
    def to_sink(self, pipeline: str) -> Sink:
        """The sink of a pipeline of this name. Connects to nothing yet."""

    def given(self, sink: Sink) -> Sink:
        """The sink that a program hands over, if the file leaves it to the program."""
        del sink
        raise ConfigError("sink: a program passes the sink, so the pipeline file must say `sink: {wrapped: {}}`.")


class TableSection(SinkSection):
    """What sinks with a table have in common."""

    @model_validator(mode="before")
    @classmethod
    def _always_kept(cls, given: Any) -> Any:
        if isinstance(given, dict) and "coordinates" in given:
            raise ValueError("coordinates: landonce always keeps the coordinates of rows; delete this key")
        return given


Section = TypeVar("Section", bound=SinkSection)


def from_program(kind: type[Section], name: str, **given: Any) -> Section:
    """A section that a program writes instead of a file. Relative paths are taken from the current folder."""
    try:
        made = kind.model_validate(given)
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, found["loc"])) or name
        raise ConfigError(secrets.redact(f"{place}: {found['msg'].removeprefix('Value error, ')}.")) from None
    placed = made.beside(Path.cwd())
    return placed if isinstance(placed, kind) else made


class Changes(Part):
    """Records that change rows: which field holds the operation, and what it is called."""

    mode: Literal["upsert", "operation", "debezium", "dms"]
    field: str = "op"
    insert: tuple[str, ...] = ("c", "r", "i", "I", "insert", "INSERT")
    update: tuple[str, ...] = ("u", "U", "update", "UPDATE")
    delete: tuple[str, ...] = ("d", "D", "delete", "DELETE")

    @model_validator(mode="after")
    def _sound(self) -> Changes:
        names = [*self.insert, *self.update, *self.delete]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{', '.join(map(repr, twice))} can only stand for one operation")
        return self

    def decoding(self) -> changes.Changes:
        """As decoders take it."""
        from landonce.read import changes

        return changes.Changes(self.mode, self.field, self.insert, self.update, self.delete)
