"""ClickHouse as a sink: the description that travels to the workers. Picklable; its repr hides the password."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from landonce.errors import ConfigError
from landonce.read.evolution import Evolution
from landonce.read.route import Routing
from landonce.read.schema.ddl import UnfitFields
from landonce.read.schema.fields import Schema, parts, text_at, with_text
from landonce.sinks.clickhouse import evolve
from landonce.sinks.clickhouse.address import parse_table, parse_url
from landonce.sinks.clickhouse.config import ClickHouse
from landonce.sinks.clickhouse.connection import Access, connect
from landonce.sinks.clickhouse.driver import ClickHouseTarget
from landonce.sinks.clickhouse.keeper_map import KeeperMapLedger
from landonce.sinks.clickhouse.nested import taking
from landonce.sinks.clickhouse.settings import as_text, refuse_conflicts
from landonce.sinks.clickhouse.shards import Shard, ShardedTarget, ShardedWriter
from landonce.sinks.clickhouse.table import create_statement
from landonce.sinks.clickhouse.worker import ClickHouseWriter
from landonce.sinks.contract import BlockWriter, DeduplicatingSink, Guarantee, Target
from landonce.sinks.deduplicating import Tables, recipe_of
from landonce.sinks.run import run_of
from landonce.tls import context, pem

if TYPE_CHECKING:
    from pydantic import SecretStr

    from landonce.config import model
    from landonce.protocol.ledger import Ledger, LedgerState
    from landonce.sinks.audit import HeldTables
    from landonce.sinks.operations import Operations, Sessions
    from landonce.sinks.parts import Parts


_NO_TIMES = "this ClickHouse has no Time64 (25.6 has it, with the setting enable_time_time64_type = 1)"


def times_in(type_: pa.DataType | None, path: str) -> list[str]:
    """The places of a field that hold times of day."""
    return [place for place, each in parts(type_, path) if pa.types.is_time(each)] if type_ is not None else []


def read_certificates(config: ClickHouse) -> tuple[str, str]:
    """The authority, and the client's certificate with its key, as text. Empty if no file is named."""
    authority = pem(config.ca_cert, "sink.clickhouse.ca_cert")
    certificate = pem(config.client_cert, "sink.clickhouse.client_cert")
    certificate += pem(config.client_key, "sink.clickhouse.client_key")
    try:
        context(authority, certificate)
    except ValueError as error:
        raise ConfigError(
            f"sink.clickhouse: one of ca_cert, client_cert and client_key is not valid, or they do not belong together ({error}).",
            command="name PEM files: a certificate, and its key without a passphrase",
        ) from None
    return authority, certificate


@dataclass
class ClickHouseSink(DeduplicatingSink):
    """A table in ClickHouse, as its section of the pipeline file describes it (`config`)."""

    config: ClickHouse
    pipeline: str
    authority: str = field(default="", repr=False)
    """The text of `ca_cert`: workers on other machines do not have the file."""
    certificate: str = field(default="", repr=False)
    """The texts of `client_cert` and `client_key`."""
    timeout: float = 300.0
    """Seconds that an insert may take."""
    guarantee = Guarantee.DEDUPLICATING

    def __post_init__(self) -> None:
        if not self.pipeline:
            raise ConfigError("a pipeline needs a name")
        refuse_conflicts(self.config.settings)
        url, *_ = (self.config.url, *self.config.endpoints) if self.config.url else self.config.endpoints
        self.address = parse_url(url.get_secret_value())
        """Of the server, or of the first shard."""
        named = [parse_table(each, self.address.database) for each in self.config.names]
        self.table_name = named[0]
        """Of the one table, where there is one."""
        self.shards = tuple(map(self._shard, self.config.endpoints))
        """Each as a sink of its own; none if there is one server."""
        self.shard_map = self.config.shard_map
        self.table, self.create = ", ".join(self.config.names), self.config.create
        self.deadline, self.evolve = self.config.deadline, self.config.evolve
        self.identity_words = ", ".join(map(str, named))
        self.key = self.config.key
        self.changes = self.config.meaning.decoding() if self.config.meaning is not None else None
        self.ordered = self.config.collapses
        if self.changes is not None and self.ordered:
            self.changes = replace(self.changes, before=True)

    def _shard(self, endpoint: SecretStr) -> ClickHouseSink:
        alone = {"url": endpoint, "endpoints": (), "weights": (), "shard_by": None, "hash": None}
        return replace(self, config=self.config.model_copy(update=alone))

    def __str__(self) -> str:
        return f"{self.identity_words} at {', '.join(str(each.address) for each in self.shards or (self,))}"

    def open_named_ledger(self, named: model.LedgerSection, name: str) -> Ledger:
        place = named.keeper_map
        if place is None:
            return super().open_named_ledger(named, name)
        table = parse_table(place.table, self.address.database)
        return KeeperMapLedger(self.access, table, place.path, name)

    def operations(self, parts: Parts, sessions: Sessions) -> Operations:
        from landonce.sinks.clickhouse.operations import ClickHouseOperations

        return ClickHouseOperations(parts, sessions, self)

    def held(self, parts: Parts, state: LedgerState | None) -> HeldTables:
        from landonce.sinks.clickhouse.held import ClickHouseTables

        return ClickHouseTables(self, run_of(parts), recipe_of(run_of(parts), self), state)

    @property
    def versioned(self) -> bool:
        return not self.ordered

    @property
    def identity(self) -> str:
        """With the shard map: a plan is written again by the one that it was made with."""
        if self.shard_map is None:
            return self.identity_words
        return f"{self.identity_words} on {', '.join(str(each.place) for each in self.shards)} by {self.shard_map}"

    @property
    def place(self) -> Shard:
        """The server and the one table there, where this is one of several shards."""
        return Shard(self.access, self.table_name)

    @cached_property
    def routing(self) -> Routing:
        return self.config.routing

    @property
    def no_query(self) -> str:
        many = self.routing.many
        return f"{self} stands for many tables, and a query is delivered to one." if many else super().no_query

    def one(self, table: str) -> ClickHouseSink:
        if self.config.one_table:
            return self
        config = self.config.model_copy(update={"table": table, "tables": (), "route_field": None})
        return replace(self, config=config)

    def existing(self) -> tuple[str, ...]:
        template = self.routing.template
        if template is None:
            return ()
        if self.shards:
            return tuple(sorted({name for each in self.shards for name in each.existing()}))
        database, _, _ = template.rpartition(".")
        sql = "SELECT DISTINCT table FROM system.columns WHERE database = {database:String} AND name = '_offset'"
        found = connect(self.access).ask(sql, {"database": self.table_name.database}).column(0).to_pylist()
        names = (f"{database}.{each}" if database else each for each in found)
        return tuple(sorted(filter(self.routing.could_make, names)))

    def taking(self, columns: Schema, records: Schema | None) -> Schema:
        """Keys are text: an audit finds rows by them."""
        return taking(columns, records, self.key)

    def can_change(self, columns: Schema, wanted: Evolution) -> Evolution:
        """A time of day is added as text if the server has no type for it."""
        timed = {path: places for path, shape in wanted.added if (places := times_in(shape.type(), path[0]))}
        if timed and not connect(self.access).has_times:
            added = (
                (path, replace(shape, known=text_at(shape.type(), path[0], timed[path])) if path in timed else shape)
                for path, shape in wanted.added
            )
            wanted = replace(wanted, added=tuple(added))
        return evolve.possible(columns, wanted)

    def change(self, table: str, wanted: Evolution) -> None:
        mine = self.one(table)
        evolve.apply(connect(self.access), mine.table_name, wanted, self.config.layout)

    @property
    def access(self) -> Access:
        extra = sorted((name, as_text(value)) for name, value in self.config.settings.items())
        return Access(self.address, self.authority, self.certificate, self.timeout, tuple(extra))

    def creation(self, columns: Schema) -> str:
        places = [place for each in columns.fields for place in times_in(each.type, each.name)]
        if places and not connect(self.access).has_times:
            raise UnfitFields([(place, _NO_TIMES) for place in places], with_text(columns, places))
        return create_statement(self.table_name, columns, self.config.layout)

    def target(self) -> Target:
        if self.routing.many:
            return Tables(self)
        if self.shard_map is not None:
            return ShardedTarget(self.shard_map, [(each.place, each.alone()) for each in self.shards])
        return self.alone()

    def alone(self) -> ClickHouseTarget:
        """The one table on the one server."""
        return ClickHouseTarget(self.access, self.table_name, self.pipeline, layout=self.config.layout)

    def writer(self) -> BlockWriter:
        if self.shard_map is not None:
            return ShardedWriter(self.shard_map, [each.writer_alone() for each in self.shards])
        return self.writer_alone()

    def writer_alone(self) -> ClickHouseWriter:
        """Of the one table on the one server."""
        return ClickHouseWriter(
            self.access, self.table_name, self.pipeline, compression=self.config.compression, key=self.key
        )
