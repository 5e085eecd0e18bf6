"""`landonce verify`: the audit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from landonce.cli.command import File, Json, err, opened, out, print_json

if TYPE_CHECKING:
    from landonce.sinks.parts import Parts
    from landonce.verify import Report

_NARROWEST = 120


def verify(
    file: File,
    as_json: Json = False,
    to_end: Annotated[
        bool,
        typer.Option("--to-end", help="Compare up to the last stable offset of the topic, not only what is committed."),
    ] = False,
    values: Annotated[
        bool,
        typer.Option("--values", help="Compare every value of every row with its record too. Reads the whole table."),
    ] = False,
) -> None:
    """Audit a pipeline: is every record once in the target or the dead letters, and, with --values, unchanged?

    It reads the topic again with a plain consumer, computes where each record should be, and compares this with the table
    and the dead letters: by coordinates, or by keys if records change rows. Of the run, it trusts only the offsets in the
    ledger. It changes nothing, and may run beside the pipeline.

    With --values, it compares every value that landonce wrote with the decoded and transformed record. A row with another
    value is `changed`; the first such values are shown with coordinates, column, expected and found value. Memory is
    bounded, and the time is that of reading topic and table once.

    If records change rows, the last change of every key counts. In Iceberg, it audits one snapshot of the branch, and names
    every data file that is registered more than once, with the snapshots that did so. It cannot audit a wrapped sink.

    With `dedup`, of the records with the same key exactly one must be in the target. The keys are computed from the topic, by
    the rule in the file; the store is not asked.

    Exit code 0 if it is exact, 1 if anything is missing, duplicated, unexpected, stale, changed or there twice.

    Example: `landonce verify clicks.yaml --values --json`
    """
    with opened(file) as parts:
        report = run_audit(parts, to_end=to_end, values=values, quiet=as_json)
    if as_json:
        print_json(report.to_dict())
    else:
        _show(report)
    raise typer.Exit(0 if report.exact else 1)


def run_audit(parts: Parts, *, to_end: bool = False, values: bool = False, quiet: bool = True) -> Report:
    """The audit of a pipeline, from its opened parts."""
    from landonce.verify.audit import opened_audit

    opened_ = opened_audit(parts, to_end=to_end, values=values)
    with opened_ as auditor, _progress(auditor.size(), quiet=quiet) as advance:
        return auditor.audit(advance)


@contextmanager
def _progress(size: int, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal, otherwise nothing."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    columns = (TextColumn("auditing"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("audit", total=max(size, 1))
        yield lambda offsets: bar.advance(task, offsets)


def _show(report: Report) -> None:
    from landonce.verify import words

    wide = Console(highlight=False, markup=False, emoji=False, width=max(out.width, _NARROWEST))
    for table in words.tables(report):
        wide.print(table)
    for line in words.lines(report):
        out.print(line, markup=False, soft_wrap=True)
    style = "bold green" if report.exact else "bold red"
    out.print(f"[{style}]{words.verdict(report)}:[/] {words.counts(report)}")
    if not report.exact:
        out.print(f"[bold]Next step:[/] {words.WAY_ON}")
