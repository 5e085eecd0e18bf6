"""`landonce demo`, and `landonce up` and `down`: real servers on this machine, to try landonce and a pipeline."""

from __future__ import annotations

import shutil
import tempfile
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from landonce.cli.command import Json, out, print_json
from landonce.packages import require

if TYPE_CHECKING:
    from landonce.local import StackInfo


class SinkName(str, Enum):
    """Where the demo lands its records."""

    CLICKHOUSE = "clickhouse"
    ICEBERG = "iceberg"
    POSTGRES = "postgres"
    SQLITE = "sqlite"
    WRAPPED = "wrapped"


def demo(
    sink: Annotated[SinkName, typer.Option(help="Where to land the records.")] = SinkName.CLICKHOUSE,
    dedup: Annotated[
        bool, typer.Option("--dedup", help="Land each event once, from a producer that sends some of them again.")
    ] = False,
    records: Annotated[int, typer.Option(help="How many records or events to land.", min=10_000)] = 1_000_000,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the data and the logs.")] = False,
) -> None:
    """Land a million records exactly once while the driver and the server are killed with -9.

    It starts a real Kafka and a real ClickHouse on free ports, kills the driver twice and the server once, each time with a
    plan pending and a block in flight, and then counts the rows of the table. Exit code 1 if they are not exact.

    `--sink iceberg` uses an Iceberg table, which needs no server. It kills the driver three times, each time with files that
    are written and not committed, and shows the table's snapshots at the end. `--sink postgres` kills the driver twice and a
    real PostgreSQL once, `--sink sqlite` the driver three times, each time with the transaction of a block open.
    `--sink wrapped` lands in a function that writes files.

    `--dedup` shows content deduplication, with any of these sinks. The producer sends a million events and 300,000 copies: at
    once, later, to other partitions, and after restarts. The driver is killed while it accepts events, then while it pushes
    them to the target, and then the server is killed (or the driver again). At the end, every event must be there once.

    Example: `landonce demo --sink iceberg`

    Example: `landonce demo --dedup`
    """
    require("local", "landonce demo")
    if sink in (SinkName.ICEBERG, SinkName.POSTGRES):
        require(sink.value, f"landonce demo --sink {sink.value}")
    from landonce.demo.scenario import DedupDemo, Demo
    from landonce.demo.stage import STAGES

    folder = Path(tempfile.mkdtemp(prefix="landonce-demo-"))
    try:
        proof = (DedupDemo if dedup else Demo)(out, folder, records, STAGES[sink.value](folder)).play()
    finally:
        if keep:
            out.print(f"kept in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    out.print(proof.sentence(), style="bold green" if proof.exact else "bold red")
    if not proof.exact or proof.kills != 3:
        raise typer.Exit(1)


_FOLDER = Path(".landonce")
Folder = Annotated[Path, typer.Option("--folder", help="Where the servers keep their data.", file_okay=False)]

_SNIPPET = """\
pipeline: clicks
source:
  kafka: {{bootstrap_servers: "{kafka}", topics: [clicks], format: json}}
sink:
  clickhouse: {{url: "{clickhouse}", table: clicks, create: true}}
ledger: {{sqlite: clicks.ledger}}
dead_letters: {{path: dead/}}
"""


def up(folder: Folder = _FOLDER, as_json: Json = False) -> None:
    """Start a real Kafka and a real ClickHouse, and leave them running.

    A server that already runs is left alone; one that died is started again on the same data and ports. Both listen on
    this machine only. `landonce down` stops them and keeps the data.

    Example: `landonce up --json`
    """
    require("local", "landonce up")
    from landonce.local import up as work

    info = work(folder)
    if as_json:
        print_json(_document(info))
        return
    out.print(f"Kafka       {info.kafka_bootstrap}", markup=False)
    out.print(f"ClickHouse  {info.clickhouse_url}   (native protocol: port {info.clickhouse_tcp_port})", markup=False)
    out.print(f"data in     {info.folder}\n", markup=False)
    out.print("Send records to the topic `clicks`, and save this pipeline file as clicks.yaml:\n", markup=False)
    out.print(_SNIPPET.format(kafka=info.kafka_bootstrap, clickhouse=info.clickhouse_url), markup=False)
    out.print("Next:  landonce check clicks.yaml", markup=False)


def down(folder: Folder = _FOLDER) -> None:
    """Stop the servers that `landonce up` started. Their data stays.

    Example: `landonce down`
    """
    from landonce.local import down as work

    work(folder)
    out.print(f"stopped; the data is still in {Path(folder).absolute()}", markup=False)


def _document(info: StackInfo) -> dict[str, Any]:
    return {
        "folder": str(info.folder),
        "kafka": {"bootstrap_servers": info.kafka_bootstrap, "pid": info.kafka_pid},
        "clickhouse": {
            "url": info.clickhouse_url,
            "http_port": info.clickhouse_http_port,
            "tcp_port": info.clickhouse_tcp_port,
            "pid": info.clickhouse_pid,
        },
    }
