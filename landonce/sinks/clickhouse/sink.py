"""ClickHouse as a sink: the description that travels to the workers. Picklable; its repr hides the password."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from landonce.errors import ConfigError
from landonce.read.schema.fields import Schema
from landonce.sinks.clickhouse.address import parse_table, parse_url
from landonce.sinks.clickhouse.config import ClickHouse
from landonce.sinks.clickhouse.connection import Access
from landonce.sinks.clickhouse.driver import ClickHouseTarget
from landonce.sinks.clickhouse.settings import as_text, refuse_conflicts
from landonce.sinks.clickhouse.table import create_statement
from landonce.sinks.clickhouse.worker import ClickHouseWriter
from landonce.sinks.contract import DeduplicatingSink, Guarantee, Target

if TYPE_CHECKING:
    from landonce.protocol.ledger import LedgerState
    from landonce.sinks.audit import HeldTables
    from landonce.sinks.parts import Parts


def read_authority(path: Path | None) -> str:
    """The certificates in a file, as text. Empty if no file is named."""
    if path is None:
        return ""
    try:
        found = path.read_text(encoding="ascii")
        ssl.create_default_context(cadata=found or None)
    except (OSError, UnicodeDecodeError, ssl.SSLError) as error:
        raise ConfigError(
            f"ca_cert: {path} is not a certificate that can be read: {getattr(error, 'strerror', None) or error}.",
            command="name a PEM file, which begins with -----BEGIN CERTIFICATE-----",
        ) from None
    if not found.strip():
        raise ConfigError(f"ca_cert: {path} is empty.")
    return found


@dataclass
class ClickHouseSink(DeduplicatingSink):
    """A table in ClickHouse, as its section of the pipeline file describes it (`config`)."""

    config: ClickHouse
    pipeline: str
    authority: str = field(default="", repr=False)
    """The text of `ca_cert`: workers on other machines do not have the file."""
    timeout: float = 300.0
    """Seconds that an insert may take."""
    guarantee = Guarantee.DEDUPLICATING

    def __post_init__(self) -> None:
        if not self.pipeline:
            raise ConfigError("a pipeline needs a name")
        refuse_conflicts(self.config.settings)
        self.address = parse_url(self.config.url.get_secret_value())
        self.table_name = parse_table(self.config.table, self.address.database)
        self.table, self.create, self.deadline = self.config.table, self.config.create, self.config.deadline

    def __str__(self) -> str:
        return f"{self.table_name} at {self.address}"

    def held(self, parts: Parts, state: LedgerState | None) -> HeldTables:
        from landonce.sinks.clickhouse.held import held

        del state
        return held(parts, self)

    @property
    def identity(self) -> str:
        return str(self.table_name)

    @property
    def access(self) -> Access:
        extra = sorted((name, as_text(value)) for name, value in self.config.settings.items())
        return Access(self.address, self.authority, self.timeout, tuple(extra))

    def creation(self, columns: Schema) -> str:
        return create_statement(self.table_name, columns, self.config.order_by, self.config.partition_by)

    def make(self, target: Target, columns: Schema) -> None:
        target.create(columns, order_by=self.config.order_by, partition_by=self.config.partition_by)

    def target(self) -> ClickHouseTarget:
        return ClickHouseTarget(self.access, self.table_name, self.pipeline, cluster=self.config.cluster)

    def writer(self) -> ClickHouseWriter:
        return ClickHouseWriter(self.access, self.table_name, self.pipeline, compression=self.config.compression)
