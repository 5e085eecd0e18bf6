"""What a store will need at the present rate, and what a pipeline with `dedup` is promised: pure functions of the file and of counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from landonce.config.dedup import Dedup
from landonce.config.model import duration_words
from landonce.dedup.stats import DAY, Growth, grown, growth, growth_words, rate_of
from landonce.dedup.store import Recent, Scope
from landonce.protocol.dedup import ListedRun
from landonce.sinks.pipeline_file import Pipeline, parse
from landonce.sinks.promise import Promise, of_events

NOW = 1_800_000_000.0
SCOPE = Scope("lineage", "rule", "id", 16, 80 * DAY, 10 * DAY, 0)


def dedup(**options: Any) -> Dedup:
    return Dedup(key=("id",), **{"ttl": "80d", **options})  # type: ignore[arg-type]


def test_a_full_window_holds_the_keys_of_its_ttl_and_of_one_bucket() -> None:
    needs = grown(dedup(keep_sent="2d"), SCOPE.bucket, 100.0, 50.0)
    keys = 100 * 90 * DAY
    assert needs == Growth(100.0, keys, payload_bytes=keys * 50, block_bytes=100 * 2 * DAY * 50)
    assert needs.key_bytes == 36 * keys
    assert needs.disk == keys * (36 + 50) + 100 * 2 * DAY * 50
    assert grown(dedup(keep_sent="2d"), None, 100.0, 50.0) == needs, (
        "a scope that is not there yet gets buckets of an eighth"
    )


def test_payloads_that_go_when_they_are_sent_need_no_room() -> None:
    needs = grown(dedup(payloads="sent", keep_sent=0), SCOPE.bucket, 1.0, 50.0)
    assert (needs.payload_bytes, needs.block_bytes) == (0, 0)
    assert needs.disk == needs.key_bytes > 0


def runs(*rows: int, bucket: int) -> list[ListedRun]:
    return [ListedRun(f"r{at}", at, 0, bucket, each, 1, "") for at, each in enumerate(rows)]


def test_the_rate_is_that_of_the_last_day() -> None:
    recent = Recent(events=5_000, size=100_000, began=int(NOW) - 50)
    found = growth(SCOPE, runs(9, bucket=1), recent, dedup(), NOW)
    assert found is not None
    assert found.per_second == 100.0
    assert found.payload_bytes == found.keys * 20


def test_where_payloads_are_gone_the_newest_keys_tell_the_rate() -> None:
    """The chunks that are left are those that wait, and say nothing of the others."""
    bucket = int(NOW) // SCOPE.bucket
    seconds = NOW - bucket * SCOPE.bucket
    waiting = Recent(events=1, size=30, began=int(NOW))
    found = growth(
        SCOPE, [*runs(7, bucket=bucket - 1), *runs(600, 400, bucket=bucket)], waiting, dedup(payloads="sent"), NOW
    )
    assert found is not None
    assert found.per_second == pytest.approx(1000 / seconds)
    assert growth(SCOPE, [], None, dedup(), NOW) is None


def test_an_old_bucket_was_filled_in_its_own_time() -> None:
    found = growth(SCOPE, runs(864, bucket=1), None, dedup(), NOW)
    assert found is not None
    assert found.per_second == pytest.approx(864 / SCOPE.bucket)


@pytest.mark.parametrize(
    ("records", "found"),
    [
        ({600: 60, 3600: 100, DAY: 9_000}, (600, 0.1)),
        ({600: 0, 3600: 36, DAY: 9_000}, (3600, 0.01)),
        ({600: 0, 3600: 0, DAY: 8640}, (DAY, 0.1)),
        ({600: 0, 3600: 0, DAY: 0}, None),
    ],
)
def test_the_rate_of_topics_is_that_of_the_shortest_time_with_records(
    records: dict[int, int], found: tuple[int, float] | None
) -> None:
    assert rate_of(records) == found


def test_the_forecast_in_words() -> None:
    assert growth_words(Growth(1234.5, 10_000_000, 2_000_000_000, 500_000)) == (
        "at 1,234.5 new events/s, the full window holds 10,000,000 keys: 360.0 MB in files that are mapped into memory, and about "
        "2.4 GB in the database (keys 360.0 MB, events 2.0 GB, stored blocks 500.0 KB)"
    )


@pytest.mark.parametrize(
    ("length", "words"),
    [(60 * DAY, "60 days"), (DAY, "24 hours"), (5400, "90 minutes"), (119, "119 seconds"), (0.5, "0.5 seconds")],
)
def test_durations_in_words(length: float, words: str) -> None:
    assert duration_words(length) == words


RECORDS = Promise("exactly once: every record", ("tokens",), ("one ledger",))


def pipeline(**options: Any) -> Pipeline:
    document = {
        "pipeline": "p",
        "source": {"kafka": {"bootstrap_servers": "h:1", "topics": ["t"]}},
        "sink": {"sql": {"url": "sqlite:///t.db", "table": "t"}},
        **({"dedup": {"key": ["id"], **options}} if options else {}),
    }
    return parse(yaml.safe_dump(document), Path("p.yaml"))


@pytest.mark.parametrize(
    ("late", "said"),
    [("dead_letter", "is a dead letter"), ("accept", "lands again"), ("drop", "is dropped")],
)
def test_the_window_is_part_of_the_promise(late: str, said: str) -> None:
    found = of_events(pipeline(ttl="7d", late=late), RECORDS)
    assert found.what.startswith("each event once within ttl (7 days)")
    assert set(RECORDS.why) < set(found.why)
    assert set(RECORDS.conditions) < set(found.conditions)
    assert any("within 7 days" in each and "may land again" in each for each in found.conditions)
    (words,) = [each for each in found.conditions if f"late: {late}" in each]
    assert said in words


def test_without_dedup_the_promise_is_that_of_records() -> None:
    assert of_events(pipeline(), RECORDS) is RECORDS
