"""A table that is its own ledger: a driver commits to the table as it knew it, whatever it has looked at since.

Drivers look between two commits: before dead letters are published, and at every survey of a run that lands dead letters.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from landonce.errors import Fenced, LandonceError, RolledBack
from landonce.protocol.ledger import taken
from landonce.testing.cases_snapshots import batch_of, begun, land, plan, position, stage, state_of, taken_by
from landonce.testing.reference_sinks import FolderSite, versions


@pytest.mark.parametrize("looks", [0, 1, 2])
def test_a_driver_that_looks_at_a_table_which_was_taken_stays_fenced(tmp_path: Path, looks: int) -> None:
    site = FolderSite(tmp_path)
    sink, ledger, state = begun(site, 1)
    newer = land(sink, *taken_by(sink, "second"))
    for _ in range(looks):
        assert ledger.load() == newer
    for act in (lambda: ledger.check_owner(state), lambda: land(sink, ledger, state)):
        with pytest.raises(Fenced):
            act()
    assert state_of(site) == newer
    assert len(site.held()) == position(newer)


@pytest.mark.parametrize("looks", [0, 1, 2])
def test_a_driver_that_looks_at_a_table_which_was_rolled_back_delivers_what_is_gone(tmp_path: Path, looks: int) -> None:
    site = FolderSite(tmp_path)
    sink, ledger, state = begun(site, 2)
    site.roll_back(1)
    for _ in range(looks):
        ledger.load()
    for act in (lambda: ledger.check_owner(state), lambda: land(sink, ledger, state)):
        with pytest.raises(RolledBack):
            act()
    back = state_of(site)
    assert position(back) == len(site.held()) < position(state)


def test_a_driver_that_looks_at_a_table_which_was_restored_does_not_go_on_above_it(tmp_path: Path) -> None:
    site = FolderSite(tmp_path)
    sink, ledger, state = begun(site, 2)
    versions(site.folder)[-1].unlink()
    ledger.load()
    with pytest.raises(RolledBack, match="its catalog was restored"):
        land(sink, ledger, state)
    assert position(state_of(site)) == len(site.held()) < position(state)


def test_a_rollback_between_a_commit_and_the_look_that_follows_is_noticed(tmp_path: Path) -> None:
    """Before dead letters of a batch are published, the driver looks whether it still has the pipeline."""
    site = FolderSite(tmp_path)
    sink, ledger, state = begun(site, 1)
    before, after = plan(ledger, state)
    ledger.commit(before, after, stage(sink, state, batch_of(state)))
    site.roll_back(1)
    ledger.load()
    ledger.change(before, after)  # RECORD
    with pytest.raises(RolledBack):
        land(sink, ledger, after)
    assert position(state_of(site)) == len(site.held()) == position(state)


def test_looks_of_a_driver_that_still_has_the_table_change_nothing(tmp_path: Path) -> None:
    site = FolderSite(tmp_path)
    sink, ledger, state = begun(site)
    for _ in range(3):
        ledger.load()
        state = land(sink, ledger, state)
        assert ledger.load() == state_of(site) == state
        ledger.check_owner(state)
    assert len(site.held()) == position(state)


def test_a_driver_that_starts_again_goes_on_from_what_it_loads(tmp_path: Path) -> None:
    site = FolderSite(tmp_path)
    sink, ledger, state = begun(site, 2)
    site.roll_back(1)
    with pytest.raises(LandonceError):
        land(sink, ledger, state)
    state = ledger.create(state)
    state = land(sink, ledger, ledger.change(state, taken(state, "again")))
    assert position(state) == len(site.held())
