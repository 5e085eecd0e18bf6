"""The text of a report, for people."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from landonce.sinks.audit import Doubled
from landonce.verify.judge import Discrepancy, Whereabouts
from landonce.verify.report import Compared, EventsReport, KeyFault, PartitionReport, Report, TableReport

_HEADS = {"read": "read", "landed": "landed", "dead_lettered": "dead", "filtered": "filtered"}
_MOST = 50
"""How many tables are listed, those at fault first."""


WAY_ON = (
    "landonce does not write again what has landed once, so undo whatever removed, added or changed rows: restore the table, "
    "or land the topic in a new one, under another pipeline name."
)


def verdict(report: Report) -> str:
    return "exactly once" if report.exact else "NOT exactly once"


def counts(report: Report) -> str:
    """The summary in one sentence."""
    fates = (
        f"{report.total('read')} read, {report.total('landed')} landed, {report.total('dead_lettered')} dead-lettered, "
        f"{report.total('filtered')} filtered"
    )
    if report.events is not None:
        fates += f", {report.total('copies')} copies"
    ordered = sorted(report.faults, key=_ORDER.index)
    return f"{fates}, {', '.join(f'{report.count(fault)} {fault.value}' for fault in ordered)}"


_WHY = {
    Discrepancy.MISSING: "its last change is",
    Discrepancy.STALE: "its last change is",
    Discrepancy.DUPLICATED: "its last change is",
    Discrepancy.UNEXPECTED: "its row is of",
}
_ORDER = (
    Discrepancy.DUPLICATED,
    Discrepancy.TWICE,
    Discrepancy.MISSING,
    Discrepancy.UNEXPECTED,
    Discrepancy.STALE,
    Discrepancy.CHANGED,
)


def tables(report: Report) -> Iterator[Table]:
    """A line for each partition and, with several tables, one for each table."""
    heads = _HEADS | ({"copies": "copies"} if report.events is not None else {})
    table = _empty("partition", "judged", *heads.values(), *(fault.value for fault in report.faults), words=2)
    for each in report.partitions:
        numbers = [*(getattr(each, name) for name in heads), *(each.count(fault) for fault in report.faults)]
        table.add_row(str(each.partition), f"{each.first}..{each.end}", *map(str, numbers), style=_style(each.exact))
    yield table
    if len(report.tables) > 1:
        table = _empty("table", "expected", "landed", *(fault.value for fault in report.faults), words=1)
        for held in sorted(report.tables, key=lambda each: each.exact)[:_MOST]:
            numbers = [held.total("expected"), held.total("landed"), *(held.count(fault) for fault in report.faults)]
            table.add_row(held.table, *map(str, numbers), style=_style(held.exact))
        yield table


def _empty(*heads: str, words: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for at, name in enumerate(heads):
        table.add_column(name, justify="left" if at < words else "right", no_wrap=True)
    return table


def _style(exact: bool) -> str:
    return "" if exact else "red"


def lines(report: Report) -> Iterator[str]:
    """The faults, then other findings, then notes."""
    several = len(report.tables) > 1
    for each in report.topics:
        yield from _faults(each, "")
    if report.events is not None:
        yield from _events(report.events)
    for table in report.tables:
        name = f"{table.table}: " if several else ""
        for each in table.partitions:
            yield from _faults(each, name)
        for stray in table.strays:
            yield f"{name}{stray.partition}: {stray.rows} unexpected in the target: the topic has no such partition"
        yield from (_doubled(table, file) for file in table.doubled)
        yield from (_key(each) for each in table.keys)
        if table.compared is not None:
            yield from _values(table, table.compared, name)
    if len(report.tables) > _MOST:
        yield f"{len(report.tables) - _MOST} more tables are not listed."
    for each in report.partitions:
        yield from _asides(each)
    yield from (*report.notes, *(note for table in report.tables for note in table.notes))
    for table in report.tables:
        if table.as_of and not (several and table.exact):
            yield f"{table.table}: judged at {table.as_of}."


def _faults(report: PartitionReport, table: str) -> Iterator[str]:
    for fault, place, runs in report.listed():
        listed = ", ".join(f"[{run.first}, {run.end})" for run in runs.listed)
        more = f" and {runs.more} more" if runs.more else ""
        where = "the target and the dead letters" if place is Whereabouts.BOTH else f"the {place.value}"
        files = ""
        if (fault, place) == (Discrepancy.DUPLICATED, Whereabouts.TARGET) and report.doubled:
            files = f"; {len(report.doubled)} data files that hold such rows are registered more than once: see below"
        yield f"{table}{report.partition}: {runs.records} {fault.value} in {where}: {listed}{more}{files}"


_UNJUDGED = {
    "below": "may have landed from records that the topic no longer holds",
    "waiting": "have records above the judged range, which may be first",
    "elsewhere": "may have landed through another pipeline of the scope",
    "late": "may have come too late, and were dropped",
}
"""Why events are not called missing."""


def _events(found: EventsReport) -> Iterator[str]:
    """What became of events, the first ones at fault, and what was not judged."""
    yield (
        f"events: {found.events} in {found.records} records with a key: {found.landed} landed, {found.copies} copies, "
        f"{found.dead_lettered} dead-lettered, {found.filtered} filtered, {found.missing} missing, {found.twice} twice."
    )
    for each in found.faults:
        if each.other is None:
            yield f"{each.partition} at {each.offset}: missing: no record of the event is in the target ({each.key})"
        else:
            landed = f"{each.other} at {each.other_offset}"
            yield f"{each.partition} at {each.offset}: twice: the event landed from {landed} already ({each.key})"
    if found.again:
        yield f"{found.again} events landed again, farther apart than the window of {found.window}: their keys were forgotten."
    if found.below:
        yield f"{found.below} events landed from records that the topic no longer holds: the table has their keys."
    for name, count in sorted(found.unjudged.items()):
        if count:
            yield f"{count} events are not in the target and not judged: they {_UNJUDGED[name]}."


def _key(found: KeyFault) -> str:
    key = ", ".join(f"{name} = {value!r}" for name, value in found.key.items())
    where = f"{found.partition} at {found.offset}" if found.partition is not None else "no partition of the topic"
    return f"key {key}: {found.fault.value} ({_WHY[found.fault]} {where})"


def _values(table: TableReport, compared: Compared, name: str) -> Iterator[str]:
    """How much was compared, the first differences, and what was not compared."""
    landed = table.total("landed")
    of = "" if compared.rows >= landed else f" of {landed}"
    yield f"{name}values: {compared.values} values in {compared.rows}{of} rows were compared with their records."
    for each in compared.listed:
        yield f"{name}{each.partition} at {each.offset}: {each.column} should be {each.expected} and is {each.found}"
    more = compared.differing.total() - len(compared.listed)
    if more:
        listed = ", ".join(f"{column}: {count}" for column, count in sorted(compared.differing.items()))
        yield f"{name}{more} more values differ. By column: {listed}."
    for column, count in sorted(compared.differing.items()):
        if compared.empty[column] == count:
            yield (
                f"{name}{column} is NULL wherever it differs: if it was added to the table after these rows landed, that "
                "is the reason."
            )
    for column, count in sorted(compared.absent.items()):
        yield f"{name}{column}: {count} rows were written before the table had it, and were not compared in it."
    for column, count in sorted(compared.filled.items()):
        yield f"{name}{column}: {count} records hold nothing for it and got the table's own default: not compared."


def _doubled(table: TableReport, file: Doubled) -> str:
    held = ", ".join(f"{each.partition} [{each.first}, {each.end})" for each in file.spans) or "no rows"
    references = "; ".join(
        f"by snapshot {each.snapshot} ({each.at or 'expired since'}, manifest {each.manifest})"
        for each in file.references
    )
    return f"{table.table}: {file.path} is registered {len(file.references)} times: {references}. It holds {held}."


def _asides(each: PartitionReport) -> Iterator[str]:
    if each.in_flight:
        yield f"{each.partition}: {each.in_flight} rows at or above {each.end} are in flight and were not judged."
    if each.vanished:
        yield f"{each.partition}: {each.vanished} rows have no record any more: the topic is compacted. Not judged."
    gone = each.unprovable
    if gone is not None:
        repeated = "" if each.count(Discrepancy.DUPLICATED) else ", none of them twice"
        yield (
            f"{each.partition}: retention has deleted [{gone.first}, {gone.end}): that nothing is missing there "
            f"cannot be proved any more. The target holds {gone.rows} rows of it{repeated}."
        )
    elif each.before:
        yield f"{each.partition}: {each.before} rows below {each.first} were only looked at for duplicates."
