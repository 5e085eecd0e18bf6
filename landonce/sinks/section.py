"""The section of a pipeline file that says where records land. Every sink has a subclass of it, in its `config.py`."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from pydantic import Field, ValidationError, model_validator

from landonce.config import secrets
from landonce.config.model import LedgerSection, TopicMatch, Topics, Transform, takes_topic
from landonce.config.part import Part
from landonce.errors import ConfigError

if TYPE_CHECKING:
    from landonce.read import changes
    from landonce.read.route import Routing
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
    def change_mode(self) -> str:
        """How records change rows: the mode of `changes`. Empty if each record is a row."""
        return ""

    @property
    def reads_names(self) -> str:
        """The key of this section for which a record, or its schema, must name its fields. Empty: none is set."""
        return ""

    def refuse(self, transform: Transform, ledger: LedgerSection | None) -> None:
        """Raises `ValueError` for sections of the file that this sink does not go with."""

    @property
    def no_dedup(self) -> str:
        """Why `dedup` does not go with this section. Empty: it does."""
        return ""

    def refuse_topics(self, topics: tuple[str, ...] | TopicMatch) -> None:
        """Raises `ValueError` for topics that this sink does not go with."""

    @abstractmethod
    def to_sink(self, pipeline: str) -> Sink:
        """The sink of a pipeline of this name. Connects to nothing yet."""

    def given(self, sink: Sink) -> Sink:
        """The sink that a program hands over, if the file leaves it to the program."""
        del sink
        raise ConfigError("sink: a program passes the sink, so the pipeline file must say `sink: {wrapped: {}}`.")


class ChangesSection(Part):
    """Records that change rows: which field holds the operation, and what it is called."""

    mode: Literal["upsert", "operation", "debezium", "dms"]
    field: str = "op"
    insert: tuple[str, ...] = ("c", "r", "i", "I", "insert", "INSERT")
    update: tuple[str, ...] = ("u", "U", "update", "UPDATE")
    delete: tuple[str, ...] = ("d", "D", "delete", "DELETE")

    @model_validator(mode="after")
    def _sound(self) -> ChangesSection:
        names = [*self.insert, *self.update, *self.delete]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{', '.join(map(repr, twice))} can only stand for one operation")
        return self

    def decoding(self) -> changes.Changes:
        """As decoders take it."""
        from landonce.read import changes

        return changes.Changes(self.mode, self.field, self.insert, self.update, self.delete)


class TableSection(SinkSection):
    """What sinks with a table have in common."""

    @property
    def change_mode(self) -> str:
        changes: ChangesSection | None = getattr(self, "meaning", None) or getattr(self, "changes", None)
        return changes.mode if changes is not None else ""

    @property
    def reads_names(self) -> str:
        if getattr(self, "evolve", False):
            return "evolve"
        return "changes" if self.change_mode in ("debezium", "dms") else ""

    @model_validator(mode="before")
    @classmethod
    def _always_kept(cls, given: Any) -> Any:
        if isinstance(given, dict) and "coordinates" in given:
            raise ValueError("coordinates: landonce always keeps the coordinates of rows; delete this key")
        return given


def one_column(given: Any) -> Any:
    """A `key` of one column may be written without brackets."""
    if isinstance(given, dict) and isinstance(given.get("key"), str):
        return {**given, "key": (given["key"],)}
    return given


class KeyedSection(TableSection):
    """What sinks have in common whose records add rows, or change them by a key."""

    mode: Literal["insert", "upsert"] = "insert"
    key: tuple[str, ...] = ()
    """The columns that identify a row, if records change rows."""
    changes: ChangesSection | None = None
    """How records say what happened. Default: each record is the new row of its key, and a tombstone deletes the row."""
    evolve: bool = False

    @model_validator(mode="before")
    @classmethod
    def _one_column(cls, given: Any) -> Any:
        return one_column(given)

    @model_validator(mode="after")
    def _keyed(self) -> KeyedSection:
        if (self.mode == "upsert") != bool(self.key):
            raise ValueError("`mode: upsert` and `key`, the columns that name one row, go together")
        if self.changes is not None and self.mode != "upsert":
            raise ValueError("changes: needs `mode: upsert` and a `key`")
        return self

    @property
    def meaning(self) -> ChangesSection | None:
        """How records change rows; None if each record is a row."""
        return self.changes or ChangesSection(mode="upsert") if self.mode == "upsert" else None

    def refuse(self, transform: Transform, ledger: LedgerSection | None) -> None:
        del ledger
        if not transform.empty and (self.key or self.evolve):
            raise ValueError("transform: goes with neither `mode: upsert` nor `evolve`, which take records as they are")


class RoutedTable(Part):
    """One table of several. It takes records of its topics whose routing field meets its condition; without either, every record."""

    table: str = Field(min_length=1)
    topics: Topics | None = None
    equals: tuple[str, ...] = ()
    match: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_value(cls, given: Any) -> Any:
        if isinstance(given, dict) and isinstance(given.get("equals"), str):
            return {**given, "equals": (given["equals"],)}
        return given


_FIELD = re.compile(r"\{([^{}]+)\}")


class RoutedSection(TableSection):
    """What sinks have in common that take one table, several, or one per topic and value of a field."""

    table: str | None = Field(default=None, min_length=1)
    """One; or one for each topic, `{_topic}`; or for each value of a field, `events_{kind}`; or for both, `{_topic}_{kind}`."""
    tables: tuple[RoutedTable, ...] = ()
    route_field: str | None = None

    @model_validator(mode="after")
    def _routable(self) -> RoutedSection:
        if (self.table is None) == (not self.tables):
            raise ValueError("name one `table`, or a list of `tables`")
        if any(each.equals or each.match for each in self.tables) and self.route_field is None:
            raise ValueError("tables: `equals` and `match` need a `route_field`")
        if self.route_field is not None and not self.tables:
            raise ValueError(
                "route_field: goes with a list of `tables`; for one table per value write `table: db.{field}`"
            )
        if self.route_field == "_topic":
            raise ValueError("route_field: to route by topic, give each of the `tables` its `topics`")
        if len(self.fields_of_name) > 1:
            raise ValueError(f"table: {self.table!r} names two fields; one may choose the table, beside `_topic`")
        return self

    @property
    def fields_of_name(self) -> tuple[str, ...]:
        """The fields of records that the table's name is made of."""
        return tuple(dict.fromkeys(each for each in _FIELD.findall(self.table or "") if each != "_topic"))

    @property
    def one_table(self) -> bool:
        """Whether the file names exactly one table."""
        return self.table is not None and _FIELD.search(self.table) is None

    @property
    def no_dedup(self) -> str:
        """Columns of one name may have other types in each table, so that ids would differ; and of tables that hold events which a restored
        store has forgotten, only a single one tells."""
        return "" if self.one_table else "takes one table, and the sink writes to several"

    @property
    def names(self) -> tuple[str, ...]:
        """The tables, as the file names them."""
        return (self.table,) if self.table is not None else tuple(each.table for each in self.tables)

    @property
    def routing(self) -> Routing:
        """Which records go where."""
        from landonce.read.route import Routing, Rule

        if self.table is None:
            rules = tuple(Rule(each.table, each.equals, each.match, each.topics) for each in self.tables)
            return Routing(self.route_field, rules)
        if self.one_table:
            return Routing(None, (Rule(self.table),))
        by = next(iter(self.fields_of_name), None)
        return Routing(by, (), self.table.replace(f"{{{by}}}", "{value}") if by else self.table)

    def refuse_topics(self, topics: tuple[str, ...] | TopicMatch) -> None:
        """Every topic that the file reads has a table, and every topic that a table takes is read."""
        named = [each.topics for each in self.tables]
        if not isinstance(topics, tuple) or not named:
            return
        lost = [each for each in topics if not any(some is None or takes_topic(some, each) for some in named)]
        if lost:
            raise ValueError(f"tables: no table takes the topic {', '.join(lost)}")
        unread = [each for some in named if isinstance(some, tuple) for each in some if each not in topics]
        if unread:
            raise ValueError(f"tables: {', '.join(unread)} is not one of source.kafka.topics")


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
