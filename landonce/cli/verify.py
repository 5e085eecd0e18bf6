"""`landonce verify`: the audit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from landonce.check.retention import Retention
from landonce.cli.files import File, Json, opened, print_json
from landonce.cli.output import err, out
from landonce.errors import TableUnfit
from landonce.record.ledger import LedgerState
from landonce.run.assemble import Parts, make_recipe
from landonce.verify import Auditor, Report
from landonce.verify.expect import Decoded, Expectation, Transformed
from landonce.verify.held.clickhouse import ClickHouseRows
from landonce.verify.judge import Fault
from landonce.verify.letters import Letters
from landonce.verify.topic import PlainReader
from landonce.write.recipe import Recipe

_NARROWEST = 120
_HEADS = {"read": "read", "landed": "landed", "dead_lettered": "dead", "filtered": "filtered"}
_COLUMNS = tuple(_HEADS)


def verify(
    file: File,
    as_json: Json = False,
    to_end: Annotated[
        bool, typer.Option("--to-end", help="Judge up to the stable end of the topic, not only what is committed.")
    ] = False,
) -> None:
    """Audit a pipeline: is every record in the target or the dead letters, once?

    Reads the topic again with a plain consumer, decides what should have become of each record, and compares that with
    what the table and the dead letters hold. Trusts nothing of the run but the ledger's bounds. Changes nothing, and
    may run beside the pipeline.

    Exit code 0 if it is exact, 1 if anything is missing, duplicated or unexpected.

    Example: `landonce verify clicks.yaml --json`
    """
    with opened(file) as parts:
        report = run_audit(parts, to_end=to_end, quiet=as_json)
    if as_json:
        print_json(report.to_dict())
    else:
        _show(report)
    raise typer.Exit(0 if report.exact else 1)


def run_audit(parts: Parts, *, to_end: bool = False, quiet: bool = True) -> Report:
    """The audit of a pipeline, from its opened parts."""
    config = parts.config
    if not config.sink.clickhouse.coordinates:
        raise TableUnfit(
            "the table keeps no coordinates (`coordinates: false`), so its rows cannot be told apart.",
            safe="An audit changes nothing.",
            command="compare row counts yourself, or land into a table with coordinates",
        )
    state = parts.ledger.load()
    view = parts.broker.survey(config.source.kafka.topics)
    target = parts.sink.target()
    recipe = make_recipe(parts, target)
    labels = {_label(state, topic) for topic in config.source.kafka.topics}
    reader = PlainReader(config.source.kafka.bootstrap_servers, config.source.kafka.options)
    try:
        with _expectation(parts, recipe) as expectation:
            auditor = Auditor(
                pipeline=config.pipeline,
                state=state,
                view=view,
                reader=reader,
                expectation=expectation,
                held=ClickHouseRows(parts.sink),
                letters=Letters(config.dead_letters.path, config.pipeline, labels),
                to_end=to_end,
                compacted=_compacted(parts),
                from_start=config.source.kafka.start == "earliest",
            )
            with _progress(auditor.size(), quiet=quiet) as advance:
                return auditor.audit(advance)
    finally:
        reader.close()
        target.close()


def _label(state: LedgerState | None, topic: str) -> str:
    return state.label(topic) if state is not None else topic


def _compacted(parts: Parts) -> frozenset[str]:
    kafka = parts.config.source.kafka
    retention = Retention(kafka.bootstrap_servers, kafka.options)
    return frozenset(topic for topic in kafka.topics if retention.compacted(topic))


@contextmanager
def _expectation(parts: Parts, recipe: Recipe) -> Iterator[Expectation]:
    """Spark is started only if there is something for it to evaluate."""
    if not recipe.transforms:
        yield Decoded(recipe)
        return
    from landonce.run.session import open_session

    session = open_session(parts.config.pipeline, parts.config.spark)
    try:
        yield Transformed(recipe, session)
    finally:
        session.stop()


@contextmanager
def _progress(size: int, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A bar for people, nothing for pipes."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    columns = (TextColumn("auditing"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("audit", total=max(size, 1))
        yield lambda offsets: bar.advance(task, offsets)


def _show(report: Report) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("partition", "judged"):
        table.add_column(name, no_wrap=True)
    for name in (*(_HEADS[each] for each in _COLUMNS), *(fault.value for fault in Fault)):
        table.add_column(name, justify="right", no_wrap=True)
    for each in report.partitions:
        counts = [*(getattr(each, name) for name in _COLUMNS), *(each.count(fault) for fault in Fault)]
        table.add_row(str(each.partition), f"{each.first}..{each.end}", *map(str, counts), style=_style(each.exact))
    Console(highlight=False, width=max(out.width, _NARROWEST)).print(table)
    for line in (*_faults(report), *_asides(report), *report.notes):
        out.print(line, markup=False)
    _verdict(report)


def _style(exact: bool) -> str:
    return "" if exact else "red"


def _faults(report: Report) -> Iterator[str]:
    for each in report.partitions:
        for fault, place, runs in each.listed():
            listed = ", ".join(f"[{run.first}, {run.end})" for run in runs.listed)
            more = f" and {runs.more} more" if runs.more else ""
            where = "the target and the dead letters" if place.value == "both" else f"the {place.value}"
            yield f"{each.partition}: {runs.records} {fault.value} in {where}: {listed}{more}"
    for label, number, rows in report.strays:
        yield f"{label}[{number}]: {rows} unexpected in the target: the topic has no such partition"


def _asides(report: Report) -> Iterator[str]:
    """What is true and is not at fault."""
    for each in report.partitions:
        if each.in_flight:
            yield f"{each.partition}: {each.in_flight} rows at or above {each.end} are in flight and were not judged."
        if each.vanished:
            yield f"{each.partition}: {each.vanished} rows have no record any more: the topic is compacted. Not judged."
        gone = each.unprovable
        if gone is not None:
            repeated = "" if each.count(Fault.DUPLICATED) else ", none of them twice"
            yield (
                f"{each.partition}: retention has deleted [{gone.first}, {gone.end}): that nothing is missing there "
                f"cannot be proved any more. The target holds {gone.rows} rows of it{repeated}."
            )
        elif each.before:
            yield f"{each.partition}: {each.before} rows below {each.first} were only looked at for duplicates."


def _verdict(report: Report) -> None:
    counts = (
        f"{report.total('read')} read, {report.total('landed')} landed, {report.total('dead_lettered')} dead-lettered, "
        f"{report.total('filtered')} filtered, {report.count(Fault.DUPLICATED)} duplicated, "
        f"{report.count(Fault.MISSING)} missing, {report.count(Fault.UNEXPECTED)} unexpected"
    )
    if report.exact:
        out.print(f"[bold green]exactly once:[/] {counts}")
    else:
        out.print(f"[bold red]NOT exactly once:[/] {counts}")
