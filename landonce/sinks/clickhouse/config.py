"""What a pipeline file says of a table in ClickHouse."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from landonce.config.model import Duration, SecretUrl
from landonce.errors import ConfigError
from landonce.sinks.section import TableSection, from_program

if TYPE_CHECKING:
    from landonce.sinks.clickhouse.sink import ClickHouseSink


class ClickHouse(TableSection):
    """A table in ClickHouse."""

    url: SecretUrl
    table: str = Field(min_length=1)
    create: bool = False
    order_by: str | None = None
    partition_by: str | None = None
    deadline: Duration = Field(default=15.0, ge=1, le=3600)
    cluster: str = ""
    settings: dict[str, str | int | float | bool] = Field(default_factory=dict, repr=False)
    compression: Literal["lz4", "zstd"] | None = None
    ca_cert: Path | None = None
    """The certificate of the authority that signed the server's, where the system does not know it."""

    def to_sink(self, pipeline: str) -> ClickHouseSink:
        from landonce.sinks.clickhouse.sink import ClickHouseSink, read_authority

        return ClickHouseSink(
            url=self.url.get_secret_value(),
            table=self.table,
            pipeline=pipeline,
            cluster=self.cluster,
            settings=self.settings,
            compression=self.compression,
            authority=read_authority(self.ca_cert),
            create=self.create,
            order_by=self.order_by,
            partition_by=self.partition_by,
            deadline=self.deadline,
        )

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
    certificate of the authority that signed the server's, where the system does not know it."""
    if not 1 <= deadline <= 3600:
        raise ConfigError(f"deadline: between 1 and 3600 seconds, not {deadline}.")
    made = from_program(
        ClickHouse,
        "clickhouse",
        url=url,
        table=table,
        create=create,
        order_by=order_by,
        partition_by=partition_by,
        deadline=deadline,
        cluster=cluster,
        settings=dict(settings or {}),
        compression=compression,
        ca_cert=ca_cert,
    )
    made.to_sink("check")
    return made
