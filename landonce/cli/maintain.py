"""`landonce maintain`: maintenance of Iceberg tables."""

from __future__ import annotations

import sys
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn

from landonce.cli.command import File, Json, err, operating, out, print_json
from landonce.config.model import byte_size, seconds
from landonce.config.secrets import redact

if TYPE_CHECKING:
    from landonce.sinks.operations import UpkeepReport


def _age(value: str) -> timedelta:
    try:
        return timedelta(seconds=seconds(value))
    except ValueError:
        raise typer.BadParameter("is not a duration; write for example 5d, 12h or 30m") from None


def _bytes(value: str) -> int:
    try:
        return byte_size(value)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def maintain(
    file: File,
    as_json: Json = False,
    table: Annotated[
        list[str] | None, typer.Option("--table", help="Only this table of the pipeline; may be repeated.")
    ] = None,
    compact: Annotated[bool, typer.Option(help="Rewrite small files as large ones.")] = True,
    target_size: Annotated[
        int | None,
        typer.Option(
            parser=_bytes, metavar="SIZE", help="The size of rewritten files. Default: the table's own, or 512MiB."
        ),
    ] = None,
    where: Annotated[
        str, typer.Option("--where", metavar="SQL", help="Compact only files that may hold rows of this condition.")
    ] = "",
    expire_older_than: Annotated[
        timedelta | None,
        typer.Option(parser=_age, metavar="AGE", help="Expire older snapshots. Default: the table's own, or 5d."),
    ] = None,
    keep_last: Annotated[
        int | None,
        typer.Option("--keep-last", min=1, help="Snapshots of a branch to keep. Default: the table's own, or 10."),
    ] = None,
    orphans_older_than: Annotated[
        timedelta,
        typer.Option(
            parser=_age,
            metavar="AGE",
            help="Delete uncommitted files of a superseded driver after this age: the driver may only be slow.",
        ),
    ] = "3d",  # type: ignore[assignment]
    retired: Annotated[
        list[str] | None,
        typer.Option(
            "--retired", help="A pipeline that will never run again, so its position need not be kept; may be repeated."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")] = False,
) -> None:
    """Maintain Iceberg tables: compact, expire snapshots, delete orphan files. Safe while the pipeline runs.

    It never expires a snapshot that holds a pipeline's position, nor those between it and the head of its branch. Of the files
    that no snapshot names, it deletes only those that this pipeline wrote and that no driver can commit any more. It never
    touches manifests, metadata files or files of other writers.

    Exit code 0 if all tables were maintained, otherwise that of the first error.

    Example: `landonce maintain clicks.yaml --dry-run`
    """
    from landonce.sinks.operations import Upkeep

    upkeep = Upkeep(
        compact=compact,
        target=target_size,
        where=where,
        expire_older_than=expire_older_than,
        keep_last=keep_last,
        retired=frozenset(retired or ()),
        orphans_older_than=orphans_older_than,
        dry=dry_run,
    )
    with operating(file) as target, _Shown(quiet=as_json) as shown:
        reports = target.maintain(upkeep, shown, tuple(table or ()))
    if as_json:
        tables = [each.to_dict() for each in reports]
        print_json({"pipeline": target.parts.config.pipeline, "dry_run": dry_run, "tables": tables})
    elif not reports:
        out.print("there is no catalog yet: the first `landonce run` creates it.", markup=False)
    raise typer.Exit(next((each.exit_code for each in reports if each.exit_code), 0))


class _Shown:
    """Prints each finished table, and a progress bar on a terminal. Prints nothing with --json."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.completed} of {task.total} tables"),
        )
        self._bar = Progress(*columns, console=err, transient=True, disable=quiet or not sys.stderr.isatty())
        self._task = self._bar.add_task("starting", total=None)

    def __enter__(self) -> _Shown:
        self._bar.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def step(self, table: str, what: str) -> None:
        self._bar.update(self._task, description=f"{table}: {what}")

    def done(self, report: UpkeepReport, number: int, of: int) -> None:
        self._bar.update(self._task, completed=number, total=of)
        if self._quiet:
            return
        out.print(report.table, style="bold", markup=False)
        for line in report.lines():
            out.print(f"  {redact(line)}", markup=False)
