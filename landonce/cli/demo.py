"""`landonce demo`: see it work."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from landonce.cli.output import out
from landonce.demo.scenario import Demo


def demo(
    records: Annotated[int, typer.Option(help="How many records to land.", min=10_000)] = 1_000_000,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the data and the logs for a look.")] = False,
) -> None:
    """Land a million records exactly once while the driver and the server are killed with -9.

    Starts a real Kafka and a real ClickHouse on free ports, kills the driver twice and the server once, each time with a
    plan pending and a block in flight, and counts what is in the table. Exit code 1 if it is not exactly once.
    """
    folder = Path(tempfile.mkdtemp(prefix="landonce-demo-"))
    try:
        proof = Demo(out, folder, records).play()
    finally:
        if keep:
            out.print(f"kept in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    out.print(proof.sentence(), style="bold green" if proof.exact else "bold red")
    if not proof.exact or proof.kills != 3:
        raise typer.Exit(1)
