"""A sink that a program hands over is in no file: what the command line does for such a pipeline, and what it does not."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from test_push_ledgers import SPOT, prepared, row_of
from typer.testing import CliRunner

import landonce
from landonce.cli import app
from landonce.errors import ConfigError, PlanChanged
from landonce.ledger.block_ledgers import PushLedger, PushPlace
from landonce.protocol.batch import Next, begin
from landonce.protocol.block_rows import BlockState, Claim, ends
from landonce.protocol.blocks import Block, Plan
from landonce.protocol.claimed import Claimed, outcome_unknown
from landonce.protocol.packing import Limits
from landonce.protocol.query_refusals import settleable
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.source import Extent, SourceView
from landonce.protocol.steps import Surveyed
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import parse
from landonce.sinks.wrapped.driver import wrapped_recipe

FILE = """
pipeline: p
source: {kafka: {bootstrap_servers: "127.0.0.1:1", topics: [t], schema: "id BIGINT"}}
sink: {wrapped: {}}
ledger: {sqlite: ledger}
"""
BY_NAME = "{sink: 'changed_sinks:made', options: {url: 'http://HOST'}}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "p.yaml"
    path.write_text(FILE)
    return path


@pytest.fixture
def ledger(tmp_path: Path):
    with closing(PushPlace(tmp_path / "other", "p").open()) as opened:
        yield opened


@pytest.mark.parametrize(("said", "mark"), [("--landed", BlockState.AFTER), ("--absent", BlockState.BEFORE)])
def test_the_command_that_the_error_names_works(file: Path, said: str, mark: BlockState) -> None:
    """Without it nobody could go on: the driver halts, and says that this is the way."""
    with closing(PushPlace(file.parent / "ledger", "p").open()) as ledger:
        state = prepared(ledger)
        assert ledger.claim(SPOT, Claim.of(state), "lost", harmless=False)
        command = outcome_unknown(state, row_of(ledger)).command
        both = outcome_unknown(state, row_of(ledger), row_of(ledger))
        assert "for 1 more blocks of the batch: `landonce state show" in both.what
        assert "landonce state settle {file} --block t-0-0-5-" in command
        key = command.split("--block ")[1].split()[0]
        done = CliRunner().invoke(app, ["state", "settle", str(file), "--block", key, said, "--yes"])
        assert done.exit_code == 0, done.output
        assert row_of(ledger).mark is mark


def test_a_claim_lasts_as_long_as_its_sink_said(ledger: PushLedger) -> None:
    """Who looks later may know nothing of that sink, or it says less by now."""
    claimed = ledger.claim(SPOT, Claim.of(prepared(ledger)), "a", harmless=False, wait=5_000)
    assert claimed is not None
    assert row_of(ledger) == claimed
    assert ends(claimed, 0) == claimed.claimed_at + 5_000
    assert ends(claimed, 9_000) == claimed.claimed_at + 9_000
    again = ledger.reclaim(SPOT, claimed.claim, "b", "a", wait=7_000)
    assert again is not None
    assert again.wait == 7_000


def _sent_to(url: str) -> landonce.WrappedSink:
    def push(block: landonce.PushedBlock) -> None:
        raise OSError(url)

    return landonce.wrap(push, idempotent=False, probe=lambda _: False, name=url)


@pytest.mark.parametrize(
    ("sections", "given"),
    [
        (["{}", "{}"], [_sent_to("http://one"), _sent_to("http://two")]),
        ([BY_NAME.replace("HOST", each) for each in ("one", "two")], [None, None]),
    ],
    ids=["handed over", "by its options"],
)
def test_a_pending_plan_is_not_pushed_to_another_target(
    tmp_path: Path, ledger: PushLedger, sections: list[str], given: list[landonce.WrappedSink | None]
) -> None:
    """It would be probed there, not be found, and be pushed a second time."""
    (tmp_path / "changed_sinks.py").write_text(
        "import landonce\ndef made(url):\n    return landonce.wrap(print, idempotent=False, probe=lambda _: False)\n"
    )
    file = tmp_path / "p.yaml"
    prints = []
    try:
        for each, sink in zip(sections, given, strict=True):
            parts = open_parts(parse(FILE.replace("{}", each), file), sink)
            with closing(parts.ledger):
                prints.append(wrapped_recipe(parts, parts.sink).fingerprint())
    finally:
        sys.modules.pop("changed_sinks", None)
    state = prepared(ledger)
    assert state.pending is not None
    state = replace(state, pending=replace(state.pending, fingerprint=prints[0]))
    view = SourceView("c", (("t", "id"),), tuple((Partition("t", number), Extent(0, 5)) for number in range(2)))
    world = Surveyed(view, 0, Limits(10, 10), 0)

    def started(fingerprint: str) -> Next:
        machine, _ = begin(Claimed("s", fingerprint, harmless=False, can_probe=True, wait=0))
        machine, _ = machine.advance(state)
        return machine.advance(world)

    assert started(prints[0])
    with pytest.raises(PlanChanged, match="was made with another sink") as caught:
        started(prints[1])
    assert "landonce state accept-change" in caught.value.command


def test_nor_by_a_query() -> None:
    one, two = _sent_to("http://one").identity, _sent_to("http://two").identity
    plan = Plan(1, (Block((Range(Partition("t", 0), 0, 5),), one),), "f", 0)
    settleable(plan, one)
    with pytest.raises(PlanChanged, match="the query now writes to wrapped:http://two"):
        settleable(plan, two)


def test_what_needs_the_sink_says_so(file: Path) -> None:
    with pytest.raises(ConfigError, match="The file leaves the sink to a program"):
        landonce.run_pipeline(parse(FILE, file), once=True)
    with pytest.raises(ConfigError, match="names m:n, but a program passes another sink"):
        open_parts(parse(FILE.replace("{}", "{sink: 'm:n'}"), file), landonce.wrap(print, idempotent=True))
