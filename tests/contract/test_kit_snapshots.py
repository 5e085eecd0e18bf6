"""The kit's cases for snapshot sinks, tried: the reference passes all that applies, and each broken sink fails its case."""

from __future__ import annotations

from pathlib import Path

import pytest
from broken_snapshots import BROKEN_SNAPSHOTS
from kit_controls import check_fails, check_mostly_sound

from landonce.testing import SNAPSHOT_CASES, Case, SnapshotContract, SnapshotSite
from landonce.testing.reference_sinks import FolderSite

pytestmark = pytest.mark.timeout(300)
BASICS = (
    "a_fit_table_is_not_refused",
    "the_schema_comes_back",
    "all_blocks_of_a_batch_land_together",
    "a_batch_without_rows_moves_the_position",
    "what_is_staged_is_not_there",
    "commits_of_others_disturb_nothing",
    "a_rollback_is_followed",
    "rows_without_a_mark_are_seen",
)


class TestReference(SnapshotContract):
    @pytest.fixture
    def site(self, tmp_path: Path) -> SnapshotSite:
        return FolderSite(tmp_path)


class Unforkable(FolderSite):
    forks = False


class TestInOtherProcesses(SnapshotContract):
    @pytest.fixture
    def site(self, tmp_path: Path) -> SnapshotSite:
        return Unforkable(tmp_path)


@pytest.mark.parametrize("case", tuple(SNAPSHOT_CASES), ids=str)
def test_a_broken_sink_fails_its_case(case: Case[SnapshotSite], tmp_path: Path) -> None:
    check_fails(case, BROKEN_SNAPSHOTS[case.name](tmp_path))


def test_a_case_that_fails_in_another_process_fails_here(tmp_path: Path) -> None:
    site = BROKEN_SNAPSHOTS["a_rollback_is_followed"](tmp_path)
    site.forks = False
    with pytest.raises(AssertionError, match="the rollback is not noticed"):
        SnapshotContract().test_snapshot(site, SNAPSHOT_CASES["a_rollback_is_followed"])


def test_every_broken_sink_is_for_a_case() -> None:
    assert set(BROKEN_SNAPSHOTS) == {case.name for case in SNAPSHOT_CASES}


def test_what_does_not_apply_has_a_reason(tmp_path: Path) -> None:
    assert SNAPSHOT_CASES.excused(FolderSite(tmp_path)) == {"no_secret_is_shown": "the site names no secret"}


@pytest.mark.long
@pytest.mark.parametrize("name", BROKEN_SNAPSHOTS)
def test_a_broken_one_is_sound_otherwise(name: str, tmp_path: Path) -> None:
    def opened(other: str):
        (tmp_path / other).mkdir()
        return BROKEN_SNAPSHOTS[name](tmp_path / other)

    check_mostly_sound([SNAPSHOT_CASES[name] for name in BASICS], opened, name)
