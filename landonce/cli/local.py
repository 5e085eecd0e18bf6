"""`landonce up` and `landonce down`: a real Kafka and a real ClickHouse on this machine, for trying a pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from landonce.cli.files import Json, print_json
from landonce.cli.output import out
from landonce.extras import require

if TYPE_CHECKING:
    from landonce.local import StackInfo

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

    What runs already is left alone; what died is started again on the same data and ports. Both listen on this machine
    only. `landonce down` ends them, and the data stays.

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
    out.print("A pipeline for them; save it as clicks.yaml once there is a topic `clicks`:\n", markup=False)
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
