"""`landonce dedup`: look at the store of a pipeline with `dedup`, change its key rule, and rebuild it.

This module only declares the commands, and prints. `landonce.dedup` does the work; it is loaded when a command runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from landonce.cli.command import File, Json, Yes, confirm, done, opened, operations_of, out, print_json
from landonce.config.secrets import redact

_LOOK, _CHANGE = "Look", "Change"
_FENCES = "A driver of this scope that still runs ends with exit code 4."
Forget = Annotated[
    bool,
    typer.Option(
        "--forget-unknown", help="Go on although some events get no id. A copy of one of them would land again."
    ),
]

dedup = typer.Typer(
    help="Look at the store of content deduplication: its events and its size. Change its key rule. Rebuild it.\n\n"
    "The store holds the keys of all events in the window, and the events that wait to be sent.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@dedup.command(rich_help_panel=_LOOK)
def find(
    file: File,
    key: Annotated[
        list[str],
        typer.Argument(
            help="The values of the key's parts in order, or NAME=VALUE for each. With `by`, its value comes first.",
            metavar="KEY...",
            show_default=False,
        ),
    ],
    as_json: Json = False,
) -> None:
    """Say whether an event was accepted, when and from where, and whether it was sent.

    Values are read as those of a record are: `7` is a number where the field is one. A part that is the Kafka key is named
    `kafka_key`, and a header has its own name.

    Example: `landonce dedup find clicks.yaml shop click 4711`

    Example: `landonce dedup find clicks.yaml project=shop event_type=click product_id=4711`
    """
    from landonce.dedup import look

    with opened(file) as parts:
        kept = look.Kept.of(parts)
        found, scope = look.find(kept, key), kept.scope()
    if as_json:
        print_json(_found(found))
    else:
        _print(look.words_of(found, scope))


def _found(found: Any) -> dict[str, Any]:
    if found is None:
        return {"accepted": False}
    partition = found.partition
    return {
        "accepted": True,
        "at": found.at,
        "pipeline": found.pipeline or None,
        "topic": partition.topic if partition is not None else None,
        "partition": partition.number if partition is not None else None,
        "offset": found.offset,
        "sent": found.sent,
        "batch": found.batch,
        "payload": found.payload.decode(errors="replace") if found.payload is not None else None,
    }


@dedup.command(rich_help_panel=_LOOK)
def stats(file: File, as_json: Json = False) -> None:
    """Show the store in numbers: keys, copies, events that wait, bytes, the window, and growth.

    For people who want SQL, the store has the view `landonce_dedup_waiting`.

    Example: `landonce dedup stats clicks.yaml`
    """
    from landonce.dedup.look import Kept
    from landonce.dedup.stats import document_of, lines_of, stats_of

    with opened(file) as parts:
        found = stats_of(Kept.of(parts))
    if as_json:
        print_json(document_of(found))
    else:
        _print(lines_of(found))


@dedup.command(rich_help_panel=_LOOK)
def copies(file: File) -> None:
    """Print where copies were found in the window, and where their originals are: one line of JSON for each. It needs
    `dedup: {copies: keep}`.

    Example: `landonce dedup copies clicks.yaml > copies.jsonl`
    """
    from landonce.dedup import look

    with opened(file) as parts:
        kept = look.Kept.of(parts)
        kept.scope()
        for each in look.copies(kept):
            typer.echo(json.dumps(each, ensure_ascii=False))


def _print(lines: Iterable[str], style: str | None = None) -> None:
    for line in lines:
        out.print(redact(line), markup=False, style=style)


@dedup.command(rich_help_panel=_CHANGE)
def rekey(file: File, forget_unknown: Forget = False, yes: Yes = False) -> None:
    """Change the key rule: compute the ids of all accepted events again, from their stored payloads.

    Change `dedup` in the file first. The command shows both rules, how many events get new ids, and how many of them become
    copies of each other. Then it asks, and swaps keys and rule in one transaction. Killed at any moment, the store has the old keys
    or the new ones. A driver that still runs ends with exit code 4.

    Events that were accepted stay in the target. With `payloads: sent`, payloads are gone once they are sent, and the rule cannot
    be changed.

    Example: `landonce dedup rekey clicks.yaml`
    """
    import uuid

    from landonce.dedup import look
    from landonce.dedup import rekey as work

    with opened(file) as parts:
        kept = look.Kept.of(parts)
        new = work.prepare(kept)
        _print(new.words())
        _print(new.costs(), "yellow")
        new.refuse(forget_unknown=forget_unknown)
        confirm((), (_FENCES,), yes=yes)
        work.carry_out(kept, new, uuid.uuid4().hex, forget_unknown=forget_unknown)
    done(file)


@dedup.command(rich_help_panel=_CHANGE)
def rebuild(file: File, forget_unknown: Forget = False, yes: Yes = False) -> None:
    """Rebuild the store from the target and the topics, after it was lost or restored, or when `dedup` is new in the file.

    The command reads which records the target holds, and computes their ids from the topics; from the table's columns where the
    topics lack a record. It shows what the store will hold, asks, and writes keys, events and position in one transaction. Then
    nothing lands twice, and events that were accepted and not sent are sent.

    The target must be one table that landonce can read: not one of your own functions, not a fan-out.

    Example: `landonce dedup rebuild clicks.yaml`
    """
    import uuid

    from landonce.dedup import look
    from landonce.dedup import rebuild as work

    with opened(file) as parts:
        kept, operations = look.Kept.of(parts), operations_of(parts)
        new = work.prepare(kept, operations)
        _print(new.words(kept.store.scope))
        _print(new.costs(kept.store.scope), "yellow")
        new.refuse(forget_unknown=forget_unknown)
        confirm((), (_FENCES,), yes=yes)
        work.carry_out(kept, operations, new, uuid.uuid4().hex, forget_unknown=forget_unknown)
    done(file)
