"""The kit's cases for deduplicating sinks, tried: the reference passes all that applies, and each broken sink fails its case."""

from __future__ import annotations

from pathlib import Path

import pytest
from broken_sinks import BROKEN_SINKS
from kit_controls import check_fails, check_mostly_sound

from landonce.testing import SINK_CASES, Case, SinkContract, SinkSite
from landonce.testing.reference_sinks import SqliteSite

pytestmark = pytest.mark.timeout(300)
BASICS = (
    "a_fit_table_is_not_refused",
    "another_token_is_another_block",
    "a_kill_harms_nothing_that_landed",
    "a_block_of_several_partitions_lands_whole",
    "a_probe_finds_what_is_there",
    "a_look_finds_the_ends",
    "a_count_is_of_the_ranges",
    "the_schema_comes_back",
)


class TestReference(SinkContract):
    @pytest.fixture
    def site(self, tmp_path: Path) -> SinkSite:
        return SqliteSite(tmp_path)


@pytest.mark.parametrize("case", tuple(SINK_CASES), ids=str)
def test_a_broken_sink_fails_its_case(case: Case[SinkSite], tmp_path: Path) -> None:
    check_fails(case, BROKEN_SINKS[case.name](tmp_path))


def test_every_broken_sink_is_for_a_case() -> None:
    assert set(BROKEN_SINKS) == {case.name for case in SINK_CASES}


def test_what_does_not_apply_has_a_reason(tmp_path: Path) -> None:
    assert SINK_CASES.excused(SqliteSite(tmp_path)) == {
        "no_secret_is_shown": "the site names no secret",
        "a_row_that_is_sent_twice_becomes_one": "the sink declares that a row sent twice is two (resend_harmless)",
    }


@pytest.mark.long
@pytest.mark.parametrize("name", BROKEN_SINKS)
def test_a_broken_one_is_sound_otherwise(name: str, tmp_path: Path) -> None:
    def opened(other: str):
        (tmp_path / other).mkdir()
        return BROKEN_SINKS[name](tmp_path / other)

    check_mostly_sound([SINK_CASES[name] for name in BASICS], opened, name)
