"""Users' own streaming queries with `dedup`: of rows with the same key, the first one lands, whatever becomes of the checkpoint or the run."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.types import LongType, StructField, StructType
from query_site import DiesAt, Open, Site

import landonce
from landonce.errors import ConfigError
from landonce.query.assemble import make_drivers

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]


def options(site: Site) -> dict[str, object]:
    return {"dedup": {"key": ["id"], "store": {"sqlite": str(site.folder / "store")}}}


def unique(site: Site) -> None:
    """Each id once, with the values of a record that was sent."""
    found = site.ask()
    assert Counter(row[3] for row in found) == Counter({each.id for each in site.produced})
    assert {*found} <= {(*each.at, *each.values) for each in site.produced}


@pytest.mark.parametrize("kind", ["clickhouse", pytest.param("sqlite", marks=pytest.mark.long)])
def test_copies_land_once_whatever_becomes_of_the_checkpoint(open_site: Open, kind: str) -> None:
    site = open_site(kind, block_rows=8)
    site.produce(30)
    site.produce(20)
    site.run(site.once(**options(site)), per_trigger=24)
    unique(site)
    site.forget_last_commit()
    site.produce(40)
    site.run(site.once(**options(site)), per_trigger=24)
    unique(site)
    site.lose_checkpoint()
    site.produce(45)
    site.run(site.once(**options(site)), per_trigger=34)
    unique(site)
    with closing(sqlite3.connect(site.folder / "store")) as store:
        (accepted, waiting), *_ = store.execute("SELECT sum(accepted), sum(waiting) FROM landonce_dedup_waiting")
    assert (accepted, waiting) == (45, 0), "the view for people says what is sent"


def test_a_run_may_end_before_a_step_of_either_half(open_site: Open) -> None:
    site = open_site("clickhouse", block_rows=8)
    for number, step in enumerate(("write", "commit", "record", "prepare")):
        site.produce(10 + 5 * number)
        with pytest.raises(StreamingQueryException, match=f"died before {step}"):
            site.run(site.once(observer=DiesAt(step), **options(site)))
        site.unspoiled(step)
        site.lose_checkpoint()
        site.produce(4)
        site.run(site.once(**options(site)), per_trigger=18)
        unique(site)


def test_without_dedup_copies_land(open_site: Open) -> None:
    site = open_site("sqlite")
    site.produce(10)
    site.produce(10)
    site.run(site.once())
    with pytest.raises(AssertionError):
        unique(site)


@pytest.mark.parametrize(
    ("dedup", "said"),
    [
        ({"key": []}, "dedup.key"),
        ({"key": [{"kafka_key": True}]}, "no Kafka key and no headers"),
        ({"key": ["id"], "copies": "keep"}, "copies are kept for pipeline files only"),
        ({"key": ["id"]}, "dedup.store: say where"),
    ],
)
def test_what_cannot_be_is_said_at_once(tmp_path: Path, dedup: dict[str, object], said: str) -> None:
    sink = landonce.iceberg("db.events")
    with pytest.raises(ConfigError, match=said):
        landonce.exactly_once(sink, dedup=dedup)


def test_a_file_on_this_machine_is_no_store_for_workers_elsewhere(tmp_path: Path) -> None:
    """Each would make a file of its own, and know no event of the others. Said before the target is asked: there is none here."""
    sink = landonce.clickhouse("http://127.0.0.1:9", "events")
    dedup = {"key": ["id"], "store": {"sqlite": str(tmp_path / "store")}}
    query = landonce.exactly_once(sink, "postgresql://127.0.0.1:9/ledger", stall=1, dedup=dedup)
    context = SimpleNamespace(master="spark://elsewhere:7077", defaultParallelism=2)
    frame: Any = SimpleNamespace(
        schema=StructType([StructField("id", LongType())]), sparkSession=SimpleNamespace(sparkContext=context)
    )
    with ExitStack() as stack, pytest.raises(ConfigError, match="is a file on this machine, and the workers run on"):
        make_drivers(query._settings, "query", frame, stack)
    assert not (tmp_path / "store").exists()
