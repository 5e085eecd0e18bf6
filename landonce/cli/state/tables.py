"""`landonce state accept-position` and `forget-table`: a table is not what it was."""

from __future__ import annotations

from pathlib import Path

from landonce.cli.state.decide import choose, new_owner, operating


def accept_position(file: Path, *, table: str | None, by_rows: bool, yes: bool) -> None:
    with operating(file) as target:
        choose(target, file, target.accept_position(table, new_owner(), by_rows=by_rows), yes=yes)


def forget_table(file: Path, *, table: str, replay: bool, yes: bool) -> None:
    with operating(file) as target:
        choose(target, file, target.forget_table(table, new_owner(), replay=replay), yes=yes)
