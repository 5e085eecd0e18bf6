"""A table in ClickHouse, as a pipeline file or a program describes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from landonce.config.model import Duration
from landonce.config.part import SecretUrl
from landonce.errors import ConfigError
from landonce.sinks.clickhouse.address import quoted
from landonce.sinks.section import KeyedSection, RoutedSection, from_program

if TYPE_CHECKING:
    from landonce.sinks.clickhouse.shards import ShardMap
    from landonce.sinks.clickhouse.sink import ClickHouseSink
    from landonce.sinks.clickhouse.table import Layout


class ClickHouse(KeyedSection, RoutedSection):
    """Tables in ClickHouse, each `table` or `database.table`: one, several, or one per topic and value of a field."""

    url: SecretUrl | None = None
    """`http(s)://user:password@host:port/database`"""
    endpoints: tuple[SecretUrl, ...] = ()
    """Instead of `url`: one of each shard, in the order in which the cluster of the Distributed table lists the shards."""
    weights: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Of the shards. Default: 1 each."""
    shard_by: str | tuple[str, ...] | None = Field(default=None, min_length=1)
    """An expression, or a list of columns, of which `hash` is taken."""
    hash: Literal["cityHash64", "xxHash64", "sipHash64", "murmurHash3_64", "intHash64", "none"] | None = None
    create: bool = False
    engine: str = Field(default="MergeTree", pattern=r"(?s)^\w*MergeTree(\s*\(.*\))?$")
    """Of a table that landonce creates; so are the next six."""
    order_by: str | None = None
    primary_key: str | None = None
    partition_by: str | None = None
    ttl: str | None = None
    table_settings: dict[str, str | int | float | bool] = Field(default_factory=dict)
    comment: str = ""
    deadline: Duration = Field(default=15.0, ge=1, le=3600)
    """Seconds. ClickHouse refuses an insert that begins later."""
    cluster: str = ""
    """On which running inserts are looked for and killed, and tables are created and altered. A replicated table behind one URL needs it."""
    settings: dict[str, str | int | float | bool] = Field(default_factory=dict, repr=False)
    compression: Literal["lz4", "zstd"] | None = None
    ca_cert: Path | None = None
    """The certificate of the authority that signed the server's, if the system does not know it."""
    client_cert: Path | None = None
    """The client's own, if the server asks for one."""
    client_key: Path | None = None
    """None: the key is in the file of the certificate."""

    @property
    def layout(self) -> Layout:
        """Of a table that landonce creates."""
        from landonce.sinks.clickhouse.table import Layout

        return Layout(
            self.engine,
            self.order_by,
            self.primary_key,
            self.partition_by,
            self.ttl,
            tuple(sorted(self.table_settings.items())),
            self.comment,
            self.cluster,
            self.key,
        )

    @model_validator(mode="after")
    def _sound(self) -> ClickHouse:
        if self.client_key is not None and self.client_cert is None:
            raise ValueError("client_key: its certificate is missing; name it in client_cert")
        if self.collapses and (self.meaning is None or self.meaning.mode not in ("debezium", "dms")):
            raise ValueError(
                "engine: a CollapsingMergeTree takes rows away by the row before each change, which only envelopes of Debezium and AWS "
                "DMS hold: it needs `mode: upsert` and `changes: {mode: debezium}` or `changes: {mode: dms}`; use the default engine for "
                "other changes"
            )
        if self.key and (self.evolve or not self.one_table):
            raise ValueError("mode: upsert goes with one table, which does not evolve")
        self._refuse_shards()
        return self

    def _refuse_shards(self) -> None:
        """Raises `ValueError` for a shard map that is not whole, and for what goes with one server only."""
        if (self.url is None) != bool(self.endpoints):
            raise ValueError("name one server by `url`, or the shards by `endpoints`")
        if not self.endpoints:
            if self.weights or self.shard_by is not None or self.hash is not None:
                raise ValueError("weights, shard_by and hash: go with `endpoints`")
            return
        if self.shard_by is None:
            raise ValueError("endpoints: say by `shard_by` which rows go to which shard")
        if len(set(self.endpoints)) < len(self.endpoints):
            raise ValueError("endpoints: names one of them twice")
        if self.weights and len(self.weights) != len(self.endpoints):
            raise ValueError(f"weights: one for each of the {len(self.endpoints)} endpoints")
        if self.hash in ("intHash64", "none") and isinstance(self.shard_by, tuple) and len(self.shard_by) > 1:
            raise ValueError(f"shard_by: `hash: {self.hash}` takes one column, or an expression")
        if self.key or self.evolve:
            raise ValueError("endpoints: go with neither `mode: upsert` nor `evolve`, which take one server")

    @property
    def shard_map(self) -> ShardMap | None:
        """Which rows go to which shard; None if there is one server."""
        from landonce.sinks.clickhouse.shards import ShardMap

        if self.shard_by is None:
            return None
        named = self.shard_by if isinstance(self.shard_by, str) else ", ".join(map(quoted, self.shard_by))
        expression = named if self.hash == "none" else f"{self.hash or 'cityHash64'}({named})"
        return ShardMap(expression, self.weights or (1,) * len(self.endpoints))

    @property
    def collapses(self) -> bool:
        """Whether later rows take earlier ones away."""
        name = self.engine.partition("(")[0].strip()
        return name.removeprefix("Replicated").removeprefix("Shared") == "CollapsingMergeTree"

    @property
    def no_dedup(self) -> str:
        if self.endpoints:
            return "in ClickHouse, takes one server, and does not go with `endpoints`"
        return super().no_dedup

    def to_sink(self, pipeline: str) -> ClickHouseSink:
        from landonce.sinks.clickhouse.sink import ClickHouseSink, read_certificates

        return ClickHouseSink(self, pipeline, *read_certificates(self))

    def beside(self, folder: Path) -> ClickHouse:
        files = {"ca_cert": self.ca_cert, "client_cert": self.client_cert, "client_key": self.client_key}
        return self.model_copy(update={name: folder / path for name, path in files.items() if path is not None})


def clickhouse(
    url: str | None = None,
    table: str | None = None,
    *,
    endpoints: Sequence[str] = (),
    weights: Sequence[int] = (),
    shard_by: str | Sequence[str] | None = None,
    hash: Literal["cityHash64", "xxHash64", "sipHash64", "murmurHash3_64", "intHash64", "none"] | None = None,
    create: bool = False,
    engine: str = "MergeTree",
    order_by: str | None = None,
    primary_key: str | None = None,
    partition_by: str | None = None,
    ttl: str | None = None,
    table_settings: Mapping[str, object] | None = None,
    comment: str = "",
    deadline: float = 15.0,
    cluster: str = "",
    settings: Mapping[str, object] | None = None,
    compression: Literal["lz4", "zstd"] | None = None,
    ca_cert: str | Path | None = None,
    client_cert: str | Path | None = None,
    client_key: str | Path | None = None,
) -> ClickHouse:
    """A table in ClickHouse, for `exactly_once` and pushes. `endpoints`, `weights`, `shard_by`, `hash`: instead of `url`, the shards, as in a
    pipeline file. `deadline`: how many seconds an insert has before ClickHouse refuses it. `ca_cert`: the
    certificate of the authority that signed the server's, if the system does not know it. `engine` to `comment` are for a table that landonce
    creates. `client_cert`, `client_key`: the client's certificate and its key, if the server asks for one."""
    options = dict(locals())
    if not 1 <= deadline <= 3600:
        raise ConfigError(f"deadline: between 1 and 3600 seconds, not {deadline}.")
    tables = {"settings": dict(settings or {}), "table_settings": dict(table_settings or {})}
    made = from_program(ClickHouse, "clickhouse", **{**options, **tables})
    if not made.one_table:
        raise ConfigError(
            f"table: a query is delivered to one table, and {table!r} names many.",
            command="name one table, or write a pipeline file, which routes records to tables",
        )
    made.to_sink("check")
    return made
