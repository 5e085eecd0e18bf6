"""What a pipeline with a wrapped sink is promised. Pure."""

from __future__ import annotations

from landonce.sinks.pipeline_file import Pipeline
from landonce.sinks.promise import READ_IN_TIME, Promise, ledger_condition, transform_condition


def promise(config: Pipeline) -> Promise:
    """The target is a user's own, and its part is what its sink declares."""
    return Promise(
        "exactly once: every record is pushed and takes effect once, or is in the dead letters once, or filtered; or the pipeline "
        "halts and says which block is in doubt",
        (
            "every batch is planned in the ledger before the first block is pushed, and a block is the same bytes under the same key "
            "on every retry",
            "before an attempt is made, it is claimed in the ledger by compare-and-set; after it, the ledger says what became of it",
            "an outcome that nobody knows is never guessed: where pushing again is harmless the block is pushed again; else the "
            "attempt is waited out and the probe is asked, or a person",
            "a second driver fences the first by its epoch",
        ),
        (
            "what the sink declares is true: `idempotent`, the probe, `settles_within`, and that NotPushed means that nothing arrived",
            ledger_condition(config),
            "the ledger is not lost or restored: the target cannot be asked how far it is, so its records would be pushed again",
            *transform_condition(config),
            READ_IN_TIME,
        ),
    )
