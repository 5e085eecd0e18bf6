"""What an operator may decide, as pure transitions of the ledger.

Every function looks at the ledger's state and at the world, and gives back a `Decision`: the new state, what it does in
words, what it costs in numbers, and the note for the journal. Nothing is done here. The new state takes the next epoch,
so that the one compare-and-set that records it also fences a driver that still runs.

    accept_gap        records were deleted before they were read        go on behind the gap, and say what never came
    rebase            the topic or the cluster is another one           offsets begin again, under a label of their own
    fill              a pending block is there in part                  what is missing is written
    accept_change     a pending plan was made by another file           it is settled by the present one
    accept_position   a table's history is gone, and how far it came    the copy of its last mark counts
    accept_rows       the same                                          its last rows count; the rest is delivered again
    settle            a pushed block was never answered                 it arrived, or it did not
    drop_letters      dead letters that nobody needs                    their records count as filtered
    seek              the position is to be another one                 records are delivered again, or skipped
    roll_back         the same, where rows go with their commit         the table returns to an earlier commit of its own
    stay              a table was rolled back, and shall stay so        what the rollback removed is skipped
    forget_table      a table of a fan-out is another one, or none      the new one takes its place
"""

from landonce.protocol.operate.decision import (
    Decision,
    Restated,
    accept_change,
    drop_letters,
    fill,
    no_such_letter,
    settle,
)
from landonce.protocol.operate.roll_back import PastCommit, Return, refuse_undone, roll_back
from landonce.protocol.operate.seek import (
    Ability,
    Seeking,
    counted_in,
    counted_ranges,
    kept_notes,
    kept_ranges,
    resume,
    seek,
    skipped_ranges,
    stay,
    uncounted,
)
from landonce.protocol.operate.tables import (
    accept_own_position,
    accept_own_rows,
    accept_position,
    accept_rows,
    forget_table,
    known_state,
    nothing_uncertain,
)
from landonce.protocol.operate.topics import accept_gap, changed_topics, landed_too, rebase

__all__ = [
    "Ability",
    "Decision",
    "PastCommit",
    "Restated",
    "Return",
    "Seeking",
    "accept_change",
    "accept_gap",
    "accept_own_position",
    "accept_own_rows",
    "accept_position",
    "accept_rows",
    "changed_topics",
    "counted_in",
    "counted_ranges",
    "drop_letters",
    "fill",
    "forget_table",
    "kept_notes",
    "kept_ranges",
    "known_state",
    "landed_too",
    "no_such_letter",
    "nothing_uncertain",
    "rebase",
    "refuse_undone",
    "resume",
    "roll_back",
    "seek",
    "settle",
    "skipped_ranges",
    "stay",
    "uncounted",
]
