"""What `landonce check` says of a wrapped sink: the ledger that workers claim blocks in, the sink itself, records, and the position."""

from __future__ import annotations

from landonce.errors import PlanChanged
from landonce.read.record_columns import without_record_columns
from landonce.sinks import checking
from landonce.sinks.checking import CheckRun, Findings, Sections
from landonce.sinks.contract import Finding, Level
from landonce.sinks.run import plan_fingerprint
from landonce.sinks.wrapped.driver import claimed_blocks, ledger_reachable, wrapped_recipe
from landonce.sinks.wrapped.sink import WrappedSink, need_picklable, needed


def sections(run: CheckRun, sink: WrappedSink) -> Sections:
    """In the order in which a start would meet them."""
    yield "ledger", _ledger(run, sink)
    yield "sink", _sink(needed(sink))
    yield "records", _records(run, sink)
    yield "position", checking.position(run)


def _ledger(run: CheckRun, sink: WrappedSink) -> Findings:
    yield from checking.outside_ledger(run)
    ledger_reachable(run.parts, remote=run.remote)
    state = run.state
    for key in claimed_blocks(run.parts, state) if state is not None and not needed(sink).idempotent else ():
        yield Finding(
            Level.WARNING,
            f"block {key} was pushed and is not settled: it may still arrive, or its outcome is unknown",
            "the next start asks the sink's probe"
            if sink.can_probe
            else "look for it in the target; `landonce state settle {file}` says what you found",
        )


def _sink(sink: WrappedSink) -> Findings:
    need_picklable(sink)
    yield Finding(Level.OK, f"{sink} can be sent to workers")
    if sink.idempotent or sink.can_probe:
        return
    yield Finding(
        Level.WARNING,
        "the sink is not idempotent and has no probe: whenever it is unknown whether a block arrived, the pipeline halts with "
        "OutcomeUnknown until a person says",
        "give it a probe, if the target can be asked for a block's key or coordinates",
    )


def _records(run: CheckRun, sink: WrappedSink) -> Findings:
    recipe = wrapped_recipe(run.parts, sink)
    source = recipe.source if recipe.changes is None else without_record_columns(recipe.source)
    yield checking.decoded(source, recipe.decoding, "", recipe.key, recipe.changes)
    pending = run.state.pending if run.state else None
    if pending is not None and pending.fingerprint != plan_fingerprint(sink, recipe):
        raise PlanChanged(
            "the pending plan was made with another sink, transform, schema, decoder or version of pyarrow than there is now",
            command="put the old file back and run it once, or: landonce state accept-change {file}",
        )
