"""Pipelines with the sinks of the example packages, killed everywhere: in their transactions, and around their commits.

The packages are installed, and landonce finds them by their entry points alone. Judges read the targets with duckdb and deltalake.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from chain import Chain, Kill
from deltalake import DeltaTable
from example_scene import (
    Example,
    delta_rows,
    duckdb_rows,
    example,
    install,
    install_shelf,
    jsonl_rows,
    shelf_rows,
)
from harness import SCHEMA, Drivers
from plain_driver import PlainDrivers

from landonce.local import LocalKafka
from landonce.read.schema.ddl import parse_schema
from landonce.testing.reference_sinks import SqliteSink

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(900)]

STARTS = [Kill("acquire.before"), Kill("acquire.after"), Kill("bind.before"), Kill("bind.after")]
IN_TRANSACTIONS = [
    *STARTS,
    Kill("prepare.after"),
    Kill("flip.before", replay=True),
    Kill("flip.after", replay=True),
    Kill("rows.after", replay=True),
    Kill("landed.after", replay=True),
    Kill("rows.after", replay=True, skip=1),
    Kill("write.after", replay=True),
    Kill("record.before"),
    Kill("record.after"),
    Kill("landed.after", skip=1, grow=3),
]
_BATCH = 1
"""Taking the table is a commit of its own."""
AROUND_COMMITS = [
    *STARTS,
    Kill("attempt.before"),
    Kill("attempt.after"),
    Kill("files.after"),
    Kill("write.after"),
    Kill("commit.before"),
    Kill("attempt.before", skip=_BATCH),
    Kill("attempt.after", skip=_BATCH),
    Kill("attempt.after", skip=_BATCH + 1),
    Kill("record.before"),
    Kill("record.after"),
    Kill("attempt.after", skip=_BATCH, grow=3),
]
IN_INSERTS = [
    *STARTS,
    Kill("prepare.after"),
    Kill("write.before"),
    Kill("send.before", replay=True),
    Kill("send.after", replay=True),
    Kill("probe.after", replay=True),
    Kill("await.after"),
    Kill("rearm.before"),
    Kill("rearm.after"),
    Kill("send.after"),
    Kill("record.before"),
    Kill("record.after"),
    Kill("send.after", skip=1, grow=3),
]
IN_PUSHES = [
    *STARTS,
    Kill("prepare.after"),
    Kill("claim.after", replay=True),
    Kill("push.after", replay=True),
    Kill("settle.after", replay=True),
    Kill("push.after", skip=1),
    Kill("record.before"),
    Kill("record.after"),
    Kill("push.after", skip=1, grow=3),
]
DUCKDB = "duckdb: {path: events.duckdb, table: events, create: true}"
DELTA = "delta: {table: events, create: true}"
EACH = {
    "landonce-duckdb": (DUCKDB, duckdb_rows, IN_TRANSACTIONS),
    "landonce-delta": (DELTA, delta_rows, AROUND_COMMITS),
}


@pytest.fixture
def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a package one that is installed, for this process and for those that it starts."""

    def offer(package: str) -> None:
        site = str(install(package, tmp_path / "package"))
        monkeypatch.syspath_prepend(site)
        monkeypatch.setenv("PYTHONPATH", site)

    return offer


@pytest.mark.parametrize("package", EACH)
def test_killed_everywhere(
    package: str,
    offered: Callable[[str], None],
    tmp_path: Path,
    kafka: LocalKafka,
    new_topic: Callable[..., str],
) -> None:
    offered(package)
    sink, judge, kills = EACH[package]
    with example(tmp_path, kafka, new_topic(partitions=2), sink, judge, PlainDrivers) as pipeline:
        chain = Chain(pipeline)
        chain.suffer(kills)
        chain.settled()


@pytest.mark.parametrize(
    ("package", "kills"),
    [
        pytest.param("landonce-duckdb", [Kill("rows.after"), Kill("landed.after", replay=True)], id="duckdb"),
        pytest.param("landonce-delta", [Kill("files.after"), Kill("attempt.after", skip=_BATCH)], id="delta"),
    ],
)
@pytest.mark.long
def test_killed_with_spark(
    package: str,
    kills: list[Kill],
    offered: Callable[[str], None],
    tmp_path: Path,
    kafka: LocalKafka,
    new_topic: Callable[..., str],
) -> None:
    offered(package)
    sink, judge, _ = EACH[package]
    with example(tmp_path, kafka, new_topic(partitions=2), sink, judge, Drivers) as pipeline:
        chain = Chain(pipeline)
        chain.suffer(kills)
        chain.settled()


def test_a_deduplicating_sink_of_another_package_is_killed_everywhere(
    tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kit's reference sink, which a pipeline file names through an entry point."""
    site = str(install_shelf(tmp_path / "site"))
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", site)
    SqliteSink(tmp_path / "events.db").target().create(parse_schema(SCHEMA))
    places = ("shelf: {path: events.db}", shelf_rows, PlainDrivers, "sqlite: ledger")
    with example(tmp_path, kafka, new_topic(partitions=2), *places) as pipeline:
        chain = Chain(pipeline)
        chain.suffer(IN_INSERTS)
        chain.settled()


def test_lines_of_json_are_killed_everywhere(
    offered: Callable[[str], None], tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str]
) -> None:
    offered("landonce-jsonl")
    (tmp_path / "landed").mkdir()
    sink = f'wrapped: {{sink: jsonl, options: {{path: "{tmp_path / "landed"}"}}}}'
    with example(
        tmp_path, kafka, new_topic(partitions=2), sink, jsonl_rows, PlainDrivers, "sqlite: ledger"
    ) as pipeline:
        chain = Chain(pipeline)
        chain.suffer(IN_PUSHES)
        chain.settled()


def test_a_restored_delta_table_gets_its_records_again(
    offered: Callable[[str], None], tmp_path: Path, kafka: LocalKafka, new_topic: Callable[..., str]
) -> None:
    offered("landonce-delta")
    with example(tmp_path, kafka, new_topic(partitions=2), DELTA, delta_rows, PlainDrivers) as pipeline:
        _run(pipeline)
        before = DeltaTable(tmp_path / "events").version()
        _run(pipeline)
        DeltaTable(tmp_path / "events").restore(before)
        _run(pipeline)


def _run(pipeline: Example) -> None:
    pipeline.feed.more(30)
    pipeline.drivers.drain()
    pipeline.exact()
