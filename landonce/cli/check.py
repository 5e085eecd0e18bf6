"""`landonce check`: finds problems before the pipeline starts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from landonce.cli.command import File, Json, next_step, opened, out, print_json
from landonce.config.secrets import redact

if TYPE_CHECKING:
    from landonce.check import Check
    from landonce.sinks.contract import Finding

_MARKS = {"ok": "[green]ok     [/]", "warning": "[yellow]warning[/]", "refused": "[bold red]refused[/]"}


def check(
    file: File,
    as_json: Json = False,
    spark: Annotated[
        bool, typer.Option("--spark", help="Start a Spark session to check `select` and `where` too.")
    ] = False,
) -> None:
    """Check everything that a pipeline needs before it starts, and print what is guaranteed and why.

    It checks the pipeline file, Kafka, the ledger, retention and position, Spark, the dead letters, and the target:
    ClickHouse (table, deduplication window, grants), Iceberg (catalog, and the columns, partitions, writers and marks of each
    table), SQL (columns, keys and engine of the table), or what a wrapped sink declares. If a table does not exist yet, it
    shows how it will be created. With `dedup`, it also checks the store, the key rule and the window, compares the store with the
    target, and says how much memory and disk the window will need at the present rate. Every problem comes with what to change. Nothing is created, changed or written.

    Exit code 0 if nothing is refused, 1 otherwise.

    Example: `landonce check clicks.yaml`
    """
    from landonce.check import check_pipeline

    with opened(file) as parts:
        found = check_pipeline(parts, spark=spark)
    if as_json:
        print_json(_document(found, file))
    else:
        _show(found, file)
    raise typer.Exit(1 if found.refused else 0)


def _show(found: Check, file: Path) -> None:
    for section in found.sections:
        out.print(f"[bold]{section.name}[/]")
        for finding in section.findings:
            out.print(f"  {_MARKS[finding.level.value]} ", end="")
            out.print(redact(finding.what).replace("\n", "\n          "), markup=False)
            if change := _change(finding, file):
                out.print(f"          → {change}", markup=False)
    if found.refused:
        out.print("\n[bold red]refused:[/] the pipeline does not start until that is changed.")
        return
    out.print("\n[bold green]guaranteed:[/] ", end="")
    out.print(found.promise.what, markup=False)
    for heading, lines in (("because", found.promise.why), ("as long as", found.promise.conditions)):
        out.print(f"[bold]{heading}[/]")
        for line in lines:
            out.print(f"  - {redact(line)}", markup=False)


def _change(finding: Finding, file: Path) -> str:
    return next_step(finding.change, str(file), "check")


def _document(found: Check, file: Path) -> dict[str, Any]:
    return {
        "pipeline": found.pipeline,
        "refused": found.refused,
        "sections": [
            {
                "name": section.name,
                "findings": [
                    {"level": each.level.value, "what": each.what, "change": _change(each, file)}
                    for each in section.findings
                ],
            }
            for section in found.sections
        ],
        "guarantee": None
        if found.refused
        else {
            "what": found.promise.what,
            "because": list(found.promise.why),
            "as_long_as": list(found.promise.conditions),
        },
    }
