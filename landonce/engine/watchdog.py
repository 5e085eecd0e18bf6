"""A push that does not come back is said while it lasts. Nothing may interrupt it: it may still take effect."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress

from landonce.errors import LandonceError
from landonce.ledger.block_ledgers import PushPlace
from landonce.protocol.block_rows import Mark, PushRows, over
from landonce.sinks.wrapped.worker import WrappedTask


def overdue(seen: PushRows, names: Mapping[int, str]) -> tuple[str, ...]:
    """What to say of blocks whose attempt should be over by what the sink declares, and is not settled. `names` by number."""
    return tuple(
        f"block {names[row.number]} was claimed {(seen.now - row.claimed_at) // 1000} s ago, and neither `push` nor `probe` has "
        "returned, though the sink declares that nothing takes so long. It is not interrupted, for it may still take effect: give "
        "its client a time limit."
        for row in seen.rows
        if row.mark is Mark.CLAIMED and row.number in names and over(row, seen.now, 0)
    )


@contextmanager
def watched(
    place: PushPlace, tasks: Sequence[WrappedTask], tell: Callable[[str], None], every: float
) -> Iterator[None]:
    """Looks at the blocks' rows every so many seconds while workers push, over a connection of its own."""
    done, batch = threading.Event(), tasks[0].batch
    names = {task.block.number: f"{task.key} ({task.block})" for task in tasks}

    def watch() -> None:
        with closing(place.open()) as ledger:
            while not done.wait(every):
                with suppress(LandonceError):
                    for told in overdue(ledger.status(batch), names):
                        tell(told)

    watching = threading.Thread(target=watch, name="landonce overdue pushes", daemon=True)
    watching.start()
    try:
        yield
    finally:
        done.set()
        watching.join()
