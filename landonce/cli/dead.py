"""`landonce dead`: look at dead letters, edit them, land them or drop them.

This module only declares the commands, and prints. `landonce.engine` does the work; it is loaded when a command runs.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from inspect import Parameter
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from landonce.cli.command import File, Json, Yes, err, out, print_json
from landonce.config.secrets import redact
from landonce.errors import ConfigError

if TYPE_CHECKING:
    from landonce.engine.letter_choice import Filters, Letter

_LOOK, _CHANGE = "Look", "Change"
Place = Annotated[
    str | None,
    typer.Argument(help="One letter: TOPIC:PARTITION:OFFSET.", metavar="[PLACE]", show_default=False),
]
Options = dict[str, Any]
"""What was given for the options that choose letters."""


def _option(name: str, metavar: str, help_: str, kind: Any = str, default: Any = "") -> Parameter:
    option = typer.Option(f"--{name}", metavar=metavar, help=help_, show_default=False)
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


_CHOICE = (
    _option("code", "CODE", "Letters with this code."),
    _option("field", "FIELD", "Letters about this field."),
    _option("topic", "TOPIC", "Letters of this topic."),
    _option("partition", "N", "Letters of this partition.", int | None, None),
    _option(
        "since",
        "TIME",
        "Letters whose record has this timestamp or a later one: `2026-11-18T15:00` (UTC), or `2h` for two hours ago.",
    ),
    _option("reason", "TEXT", "Letters whose reason holds this text."),
)


def _choosing(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options that choose letters. What a user gives for them comes as one argument, `options`."""
    signature = inspect.signature(command, eval_str=True)
    parameters: list[Parameter] = []
    for each in signature.parameters.values():
        parameters += _CHOICE if each.name == "options" else [each.replace(kind=Parameter.KEYWORD_ONLY)]

    @wraps(command)
    def called(**given: Any) -> None:
        command(options={each.name: given.pop(each.name) for each in _CHOICE}, **given)

    called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # Typer reads it
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called


dead = typer.Typer(
    help="Look at dead letters, edit them, land them in place, or drop them.\n\n"
    "A dead letter is a record that cannot land. It is in the folder of `dead_letters.path`, with the reason.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@dead.command("list", rich_help_panel=_LOOK)
@_choosing
def list_(
    file: File,
    *,
    options: Options,
    as_json: Json = False,
) -> None:
    """Count dead letters by code, field, reason and topic, with the times of the first and the last one, and an example.

    Reasons that differ only in numbers are counted together.

    Example: `landonce dead list clicks.yaml --since 2h`
    """
    from landonce.engine.letter_choice import groups, moment_text, printable

    found = groups(_letters(file, _filters(options)))
    total = sum(each.letters for each in found)
    if as_json:
        print_json({"letters": total, "groups": [each.to_dict() for each in found]})
        return
    out.print(f"{total:,} dead letters", markup=False)
    width = len(f"{max((each.letters for each in found), default=0):,}")
    for each in found:
        about = f", field {each.field}" if each.field else ""
        out.print(printable(redact(f"{each.letters:>{width},} × {each.code}{about}: {each.cause}")), markup=False)
        times = f"{moment_text(each.first) or '-'} to {moment_text(each.last) or '-'}"
        example = printable(f"{'':>{width}}   {each.topic}, {times}; one of them: {each.example}")
        out.print(example, style="dim", markup=False)


@dead.command(rich_help_panel=_LOOK)
@_choosing
def show(
    file: File,
    place: Place = None,
    *,
    options: Options,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many letters.")] = 10,
    as_json: Json = False,
) -> None:
    """Show letters whole: place, time, reason, key, headers and value.

    JSON is indented. A value that is not text is shown as bytes, and control characters in a text as `\\x1b`.

    Example: `landonce dead show clicks.yaml clicks:0:4711`

    Example: `landonce dead show clicks.yaml --code wrong_type --limit 3`
    """
    from landonce.engine.letter_choice import lines_of, printable
    from landonce.protocol.operate import no_such_letter

    found = _letters(file, _filters(options, place))
    some = list(islice(found, limit))
    if not some:
        raise no_such_letter()
    if as_json:
        print_json({"letters": [dict(each) for each in some]})
        return
    for number, each in enumerate(some):
        out.print("\n" * bool(number) + printable(redact("\n".join(lines_of(each)))), markup=False)
    if next(found, None) is not None:
        err.print(f"There are more: these are the first {limit} (--limit).", markup=False)


@dead.command(rich_help_panel=_LOOK)
@_choosing
def export(
    file: File,
    to: Annotated[
        str, typer.Option("--to", metavar="PATH", help="The file to write. `-` is standard output.", show_default=False)
    ],
    place: Place = None,
    *,
    options: Options,
) -> None:
    """Write letters to a file, one line each, whose `value` a person or a program edits.

    The letters stay where they are.

    Example: `landonce dead export clicks.yaml --code wrong_type --to fixed.jsonl`
    """
    from landonce.engine.letter_choice import to_edit

    letters = _letters(file, _filters(options, place))
    count = 0
    with _writing(to) as write:
        for letter in letters:
            write(json.dumps(to_edit(letter), ensure_ascii=False) + "\n")
            count += 1
    err.print(f"{count:,} letters written to {to}. They are still dead letters.", markup=False)


@dead.command(rich_help_panel=_CHANGE)
@_choosing
def replay(
    file: File,
    place: Place = None,
    *,
    options: Options,
    with_: Annotated[
        Path | None,
        typer.Option(
            "--with",
            metavar="PATH",
            help="Land the values of this file, which `landonce dead export` wrote and a person edited, and no other letters.",
            show_default=False,
            dir_okay=False,
            exists=True,
        ),
    ] = None,
    again: Annotated[
        bool,
        typer.Option(
            "--again",
            help="Land letters that landed in an earlier replay, and whose rows are gone since the target was rolled back or restored.",
        ),
    ] = False,
    yes: Yes = False,
) -> None:
    """Land dead letters in place, under their own coordinates.

    Without --with, the stored bytes are decoded again by the present pipeline file: use it after you corrected the schema, the
    table or the file. With --with, the values come from the file; keys, headers, coordinates and timestamps are the letter's. What
    cannot land even now stays a dead letter, with its new reason. No position moves, and Kafka is not read.

    The replay is a plan like any other: after a crash, the next `landonce dead replay` or `landonce run` finishes it, and no row lands
    twice. A driver of the pipeline that still runs ends with exit code 4: start it again afterwards.

    Example: `landonce dead replay clicks.yaml --code wrong_type`

    Example: `landonce dead replay clicks.yaml --with fixed.jsonl`

    Example: `landonce dead replay clicks.yaml --again`
    """
    from landonce.cli.letters import replay as work

    work(file, _filters(options, place), with_, again=again, yes=yes)


@dead.command(rich_help_panel=_CHANGE)
@_choosing
def drop(
    file: File,
    place: Place = None,
    *,
    options: Options,
    yes: Yes = False,
) -> None:
    """Remove dead letters for good.

    Their records count as filtered from then on, and `landonce verify` says that an operator dropped them. The ledger's journal
    records it. Letters whose records a run reads again are left alone. A driver of the pipeline that still runs ends with exit code 4.

    Example: `landonce dead drop clicks.yaml --code no_value`
    """
    from landonce.cli.letters import drop as work

    work(file, _filters(options, place), yes=yes)


@contextmanager
def _writing(to: str) -> Iterator[Callable[[str], object]]:
    """Writes a new file, whole or not at all. An existing one is never overwritten: a person may have edited it."""
    if to == "-":
        yield sys.stdout.write
        return
    with _written(to):
        stream = Path(to).open("x", encoding="utf-8")  # noqa: SIM115

    def write(text: str) -> None:
        with _written(to):
            stream.write(text)

    try:
        yield write
        with _written(to):
            stream.close()
    except BaseException:
        Path(to).unlink(missing_ok=True)
        with suppress(OSError):
            stream.close()
        raise


@contextmanager
def _written(to: str) -> Iterator[None]:
    try:
        yield
    except FileExistsError:
        raise ConfigError(f"--to: {to} exists already.", safe="Nothing was written.") from None
    except OSError as error:
        raise ConfigError(f"--to: {to} cannot be written: {error.strerror}.", safe="Nothing was changed.") from None


def _filters(options: Options, place: str | None = None) -> Filters:
    from landonce.engine.letter_choice import Filters, parse_place, parse_since

    since = parse_since(options["since"]) if options["since"] else None
    return Filters(**{**options, "since": since}, place=parse_place(place) if place else None)


def _letters(file: Path, filters: Filters) -> Iterator[Letter]:
    """The chosen letters. With `dedup`, events that were accepted and could not land have a folder of their own. First, a replay that was
    killed is settled: letters that landed in it are removed."""
    from landonce.cli.letters import settle_left
    from landonce.dedup.rule import PUSHED
    from landonce.engine.letter_choice import chosen
    from landonce.sinks.pipeline_file import load

    config = load(file)
    folder = config.dead_letters.path
    folders = (folder, folder / PUSHED) if config.dedup is not None else (folder,)
    settle_left(file, folders[-1])
    return chosen(folders, config.pipeline, filters)
