"""A table in ClickHouse, as a pipeline file or a program describes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from landonce.config.model import Duration
from landonce.config.part import SecretUrl
from landonce.errors import ConfigError
from landonce.sinks.section import TableSection, from_program

if TYPE_CHECKING:
    from landonce.sinks.clickhouse.sink import ClickHouseSink


class ClickHouse(TableSection):
    """A table in ClickHouse."""

    url: SecretUrl
    """`http(s)://user:password@host:port/database`"""
    table: str = Field(min_length=1)
    """`table` or `database.table`"""
    create: bool = False
    order_by: str | None = None
    partition_by: str | None = None
    deadline: Duration = Field(default=15.0, ge=1, le=3600)
    """Seconds. ClickHouse refuses an insert that begins later."""
    cluster: str = ""
    """On which running inserts are looked for and killed. A replicated table behind one URL needs it."""
    settings: dict[str, str | int | float | bool] = Field(default_factory=dict, repr=False)
    compression: Literal["lz4", "zstd"] | None = None
    ca_cert: Path | None = None
    """The certificate of the authority that signed the server's, if the system does not know it."""

    def to_sink(self, pipeline: str) -> ClickHouseSink:
        from landonce.sinks.clickhouse.sink import ClickHouseSink, read_authority

        return ClickHouseSink(self, pipeline, read_authority(self.ca_cert))

    def beside(self, folder: Path) -> ClickHouse:
        return self.model_copy(update={"ca_cert": folder / self.ca_cert}) if self.ca_cert is not None else self


def clickhouse(
    url: str,
    table: str,
    *,
    create: bool = False,
    order_by: str | None = None,
    partition_by: str | None = None,
    deadline: float = 15.0,
    cluster: str = "",
    settings: Mapping[str, object] | None = None,
    compression: Literal["lz4", "zstd"] | None = None,
    ca_cert: str | Path | None = None,
) -> ClickHouse:
    """A table in ClickHouse, for `exactly_once`. `deadline`: how many seconds an insert has before ClickHouse refuses it. `ca_cert`: the
    certificate of the authority that signed the server's, if the system does not know it."""
    options = dict(locals())
    if not 1 <= deadline <= 3600:
        raise ConfigError(f"deadline: between 1 and 3600 seconds, not {deadline}.")
    made = from_program(ClickHouse, "clickhouse", **{**options, "settings": dict(settings or {})})
    made.to_sink("check")
    return made
