"""What a Delta table's log says of a pipeline: its marks, and its position as application transactions.

Each commit of a pipeline carries

    commitInfo    `landonce.<pipeline>`: the mark, as text. It is gone when the log expires, and a RESTORE leaves it behind.
    txn actions   numbers that every checkpoint keeps, and that no RESTORE takes back:
                      landonce/<pipeline>                        the version of the ledger's state
                      landonce/<pipeline>/commit                 the version of the table that this commit makes
                      landonce/<pipeline>/epoch, batch, landed, dead-lettered, filtered
                      landonce/<pipeline>/lately/landed, …       of the last batches, if they had too many dead letters
                      landonce/<pipeline>/own-lineage            1 once the owner has planned a batch
                      landonce/<pipeline>/<topic>/<partition>    the next offset to read
    metaData      the table property `landonce.<pipeline>`: the state with its words (owner, ids of topics, first offsets). It is
                  written by commits without files, whenever a driver takes the table and whenever a word changes.

So the mark of the last commit is found in the log; and where the log has expired, the property and the numbers make up for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from deltalake import DeltaTable, Transaction

from landonce.plugin import (
    LedgerState,
    Mark,
    OwnView,
    Totals,
    mark_from_text,
    origin_of,
    state_from_text,
    state_to_text,
)

COUNTS = ("landed", "dead-lettered", "filtered")


@dataclass(frozen=True)
class Names:
    """What a pipeline's entries are called."""

    pipeline: str

    @property
    def text(self) -> str:
        """The key of the mark in commitInfo, and of the state in the table's properties."""
        return f"landonce.{self.pipeline}"

    @property
    def journal(self) -> str:
        return f"{self.text}.journal"

    def number(self, *parts: object) -> str:
        return "/".join(["landonce", self.pipeline, *map(str, parts)])


def transactions(names: Names, state: LedgerState, version: int) -> list[Transaction]:
    """The position as application transactions, of a commit that makes this version of the table."""
    numbers = {
        names.number(): state.version,
        names.number("commit"): version,
        names.number("epoch"): state.epoch,
        names.number("batch"): state.batch,
        names.number("own-lineage"): int(state.lineage == state.owner),
    }
    for totals, of in ((state.totals, ()), (state.lately, ("lately",))):
        counts = (totals.landed, totals.dead_lettered, totals.filtered)
        numbers |= {names.number(*of, each): count for each, count in zip(COUNTS, counts, strict=True)}
    for partition, position in state.positions:
        numbers[names.number(partition.topic, partition.number)] = position.committed
    return [Transaction(name, number) for name, number in numbers.items()]


def in_words(state: LedgerState) -> str:
    """The state but for its numbers."""
    positions = tuple((partition, replace(at, committed=at.first)) for partition, at in state.positions)
    numbers = {"version": 0, "batch": 0, "totals": Totals(), "lately": Totals()}
    return state_to_text(replace(state, **numbers, positions=positions, pending=None))


def same_words(known: str | None, state: LedgerState) -> bool:
    """Whether only numbers differ from what is known. The lineage is the owner, from its first batch on."""
    if known is None:
        return False
    lineage = state_from_text(known).lineage if state.lineage == state.owner else state.lineage
    return known == in_words(replace(state, lineage=lineage))


def own_view(table: DeltaTable, names: Names) -> OwnView:
    """What the table says of the pipeline."""
    uuid = str(table.metadata().id)
    last = table.transaction_version(names.number("commit"))
    if last is None:
        return OwnView(uuid)
    log = {each["version"]: each for each in table.history(table.version() - last + 1)}
    mark, at = _in_history(table, names, log)
    copy = mark_from_text(log[last][names.text], last) if last in log else _from_numbers(table, names, last)
    return OwnView(uuid, mark, copy, whole=at < 0, vouched=_shows(table, names, copy))


def _in_history(table: DeltaTable, names: Names, log: dict[int, dict[str, Any]]) -> tuple[Mark | None, int]:
    """The newest mark in the history of what the table holds now, or the version at which the log is cut off; -1: it is not."""
    at = table.version()
    while at >= 0:
        if at not in log:
            log.update({each["version"]: each for each in table.history() if each["version"] <= at})
        entry = log.get(at)
        if entry is None:
            return None, at
        if names.text in entry:
            return mark_from_text(entry[names.text], at), at
        at = int(entry["operationParameters"]["version"]) if entry["operation"] == "RESTORE" else at - 1
    return None, at


def _from_numbers(table: DeltaTable, names: Names, last: int) -> Mark:
    """The last mark, where its commit is not in the log any more."""
    state = state_from_text(table.metadata().configuration[names.text])

    def number(*parts: object) -> int:
        return table.transaction_version(names.number(*parts)) or 0

    positions = tuple(
        (partition, replace(at, committed=number(partition.topic, partition.number)))
        for partition, at in state.positions
    )
    totals, lately = (Totals(*(number(*of, each) for each in COUNTS)) for of in ((), ("lately",)))
    epoch = number("epoch")
    owner = state.owner if state.epoch == epoch else ""
    lineage = owner if number("own-lineage") else state.lineage
    found = replace(state, version=number(), epoch=epoch, owner=owner, lineage=lineage, batch=number("batch"))
    return Mark(replace(found, positions=positions, totals=totals, lately=lately), snapshot=last)


def _shows(table: DeltaTable, names: Names, copy: Mark) -> bool:
    """Where the log is cut off: whether the table holds the last commit. Either nobody has committed since, or one of its files is there."""
    mine = (names.pipeline, copy.state.epoch, copy.batch)
    origins = map(origin_of, table.file_uris() if table.version() != copy.snapshot else ())
    found = ((each.pipeline, each.epoch, each.batch) for each in origins if each is not None)
    return table.version() == copy.snapshot or mine in found
