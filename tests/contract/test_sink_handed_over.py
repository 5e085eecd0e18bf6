"""A sink that a program hands over is in no file: what the command line does for such a pipeline, and what it does not."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from test_push_ledgers import SPOT, prepared, row_of
from typer.testing import CliRunner

import landonce
from landonce.cli import app
from landonce.config.load import parse
from landonce.errors import ConfigError
from landonce.record.blocks import Claim, Mark
from landonce.record.push_ledger import PushLedger, PushPlace
from landonce.record.pushes import ends
from landonce.run.parts import open_parts
from landonce.run.pushes import outcome_unknown

FILE = """
pipeline: p
source: {kafka: {bootstrap_servers: "127.0.0.1:1", topics: [t], schema: "id BIGINT"}}
sink: {wrapped: {}}
ledger: {sqlite: ledger}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "p.yaml"
    path.write_text(FILE)
    return path


@pytest.fixture
def ledger(tmp_path: Path):
    with closing(PushPlace(tmp_path / "other", "p").open()) as opened:
        yield opened


@pytest.mark.parametrize(("said", "mark"), [("--landed", Mark.AFTER), ("--absent", Mark.BEFORE)])
def test_the_command_that_the_error_names_works(file: Path, said: str, mark: Mark) -> None:
    """Without it nobody could go on: the driver halts, and says that this is the way."""
    with closing(PushPlace(file.parent / "ledger", "p").open()) as ledger:
        state = prepared(ledger)
        assert ledger.claim(SPOT, Claim.of(state), "lost", harmless=False)
        told = outcome_unknown(state, row_of(ledger)).command
        both = outcome_unknown(state, row_of(ledger), row_of(ledger))
        assert "with 1 more of the batch: `landonce state show" in both.what
        assert "landonce state settle {file} --block t-0-0-5-" in told
        key = told.split("--block ")[1].split()[0]
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


def test_what_needs_the_sink_says_so(file: Path) -> None:
    with pytest.raises(ConfigError, match="A program hands the sink over"):
        landonce.run_pipeline(parse(FILE, file), once=True)
    with pytest.raises(ConfigError, match="names m:n, and another sink was handed over"):
        open_parts(parse(FILE.replace("{}", "{sink: 'm:n'}"), file), landonce.wrap(print, idempotent=True))
