"""ClickHouse as a sink: the picklable description that travels to the workers. Its repr hides the password."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from landonce.errors import ConfigError
from landonce.read.schema.fields import Schema
from landonce.sinks.clickhouse.address import TableName, parse_table, parse_url
from landonce.sinks.clickhouse.connection import Access
from landonce.sinks.clickhouse.create import Creation, create_statement
from landonce.sinks.clickhouse.settings import as_text, refuse_conflicts
from landonce.sinks.clickhouse.target import ClickHouseTarget
from landonce.sinks.clickhouse.wire import Timeouts, Tls
from landonce.sinks.clickhouse.writer import ClickHouseWriter
from landonce.sinks.contract import DeduplicatingSink, Guarantee, Target

if TYPE_CHECKING:
    from landonce.protocol.ledger import LedgerState
    from landonce.sinks.audit import HeldTables
    from landonce.sinks.parts import Parts

_COMPRESSIONS = (None, "lz4", "zstd")


def read_authority(path: str | Path | None) -> str:
    """The certificates in a file, as text; empty where none is named."""
    if path is None:
        return ""
    try:
        found = Path(path).read_text(encoding="ascii")
        Tls(found).context()
    except (OSError, UnicodeDecodeError, ssl.SSLError) as error:
        raise ConfigError(
            f"ca_cert: {path} is not a certificate that can be read: {getattr(error, 'strerror', None) or error}.",
            command="name a PEM file, which begins with -----BEGIN CERTIFICATE-----",
        ) from None
    if not found.strip():
        raise ConfigError(f"ca_cert: {path} is empty.")
    return found


@dataclass(frozen=True)
class ClickHouseSink(DeduplicatingSink):
    """A table in ClickHouse.

    `url` is `http(s)://user:password@host:port/database`, `table` is `table` or `database.table`. `cluster` names the
    cluster on which running inserts are looked for and killed; a replicated table behind one URL needs it. `authority` is the
    certificate of who signed the server's (`read_authority`): its text, so that workers on other machines need no file.
    """

    url: str = field(repr=False)
    table: str
    pipeline: str
    cluster: str = ""
    settings: Mapping[str, object] = field(default_factory=dict, repr=False, hash=False)
    compression: str | None = None
    connect_timeout: float = 5.0
    timeout: float = 300.0
    authority: str = field(default="", repr=False)
    create: bool = field(default=False, repr=False, compare=False)
    """The table is made if it is not there, with these keys."""
    order_by: str | None = field(default=None, repr=False, compare=False)
    partition_by: str | None = field(default=None, repr=False, compare=False)
    deadline: float = field(default=15.0, repr=False, compare=False)
    guarantee = Guarantee.DEDUPLICATING

    def __post_init__(self) -> None:
        if not self.pipeline:
            raise ConfigError("a pipeline needs a name")
        if self.compression not in _COMPRESSIONS:
            raise ConfigError(f"compression is lz4, zstd or nothing, not {self.compression!r}")
        if min(self.connect_timeout, self.timeout) <= 0:
            raise ConfigError("timeouts are more than zero seconds")
        refuse_conflicts(self.settings)
        parse_table(self.table, parse_url(self.url).database)

    def __str__(self) -> str:
        return f"{self.table_name} at {parse_url(self.url)}"

    @property
    def table_name(self) -> TableName:
        return parse_table(self.table, parse_url(self.url).database)

    def held(self, parts: Parts, state: LedgerState | None) -> HeldTables:
        from landonce.sinks.clickhouse.held import held

        del state
        return held(parts, self)

    @property
    def identity(self) -> str:
        return str(self.table_name)

    @property
    def access(self) -> Access:
        return Access(
            address=parse_url(self.url),
            tls=Tls(self.authority),
            timeouts=Timeouts(self.connect_timeout, self.timeout),
            extra=tuple(sorted((name, as_text(value)) for name, value in self.settings.items())),
        )

    def creation(self, columns: Schema) -> str:
        keys = Creation(order_by=self.order_by or "", partition_by=self.partition_by or "")
        return create_statement(self.table_name, columns, keys)

    def make(self, target: Target, columns: Schema) -> None:
        target.create(columns, order_by=self.order_by, partition_by=self.partition_by)

    def target(self) -> ClickHouseTarget:
        return ClickHouseTarget(self.access, self.table_name, self.pipeline, cluster=self.cluster)

    def writer(self) -> ClickHouseWriter:
        return ClickHouseWriter(self.access, self.table_name, self.pipeline, compression=self.compression)
