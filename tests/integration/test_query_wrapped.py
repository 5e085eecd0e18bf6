"""Users' own queries into functions of users' own: what was pushed is read from files, as a multiset of coordinates."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from query_site import Coordinate, Site, open_session
from test_query import DiesAt

import landonce
from landonce.local import LocalKafka

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return open_session()


@pytest.fixture
def open_site(
    spark: SparkSession, kafka: LocalKafka, tmp_path: Path, new_topic: Callable[..., str]
) -> Callable[..., Site]:
    (tmp_path / "pushed").mkdir()

    def open_(sink: Any) -> Site:
        ledger = f"sqlite:///{tmp_path / 'ledger'}"
        ask = lambda: pushed(tmp_path / "pushed")  # noqa: E731
        return Site(spark, kafka.bootstrap_servers, (new_topic(partitions=2),), tmp_path, sink, ask, ledger)

    return open_


def pushed(folder: Path) -> list[Coordinate]:
    rows = [json.loads(line) for file in folder.iterdir() for line in file.read_text().splitlines()]
    return [(row["_topic"], row["_partition"], row["_offset"]) for row in rows]


def a_file_each(folder: Path) -> Any:
    """Idempotent: the same block again is the same file."""

    def push(block: Any) -> None:
        partial = folder.parent / f"{block.key}.{os.getpid()}"
        partial.write_bytes(block.json_lines())
        partial.replace(folder / block.key)

    return landonce.wrap(push, idempotent=True, name="files")


def one_file(folder: Path, *, probe: bool) -> Any:
    """Not idempotent: every push appends. The first push of all is made, and says that it failed."""

    def push(block: Any) -> None:
        with (folder / "all").open("ab") as file:
            file.write(block.json_lines())
        if not (folder.parent / "failed").exists():
            (folder.parent / "failed").touch()
            raise ConnectionError("no answer")

    def there(block: Any) -> bool:
        return bool(block.json_lines() in (folder / "all").read_bytes())

    told: dict[str, Any] = {"probe": there} if probe else {}
    return landonce.wrap(push, idempotent=False, settles_within=0.2, name="all", **told)


@pytest.mark.parametrize("died", ["write", "record"])
def test_blocks_land_once_whatever_comes_next(open_site: Callable[..., Site], tmp_path: Path, died: str) -> None:
    site = open_site(a_file_each(tmp_path / "pushed"))
    site.produce(20)
    with pytest.raises(StreamingQueryException, match="died before"):
        site.run(site.once(observer=DiesAt(died)))
    site.lose_checkpoint()
    site.run(per_trigger=6)
    site.exact()
    site.lose_checkpoint()
    site.produce(10)
    site.run()
    site.exact()


def test_a_push_without_an_answer_is_probed_and_not_made_again(open_site: Callable[..., Site], tmp_path: Path) -> None:
    site = open_site(one_file(tmp_path / "pushed", probe=True))
    site.produce(20)
    site.run(per_trigger=10)
    assert (tmp_path / "failed").exists()
    site.exact()


def test_without_a_probe_it_halts_and_names_the_block(open_site: Callable[..., Site], tmp_path: Path) -> None:
    site = open_site(one_file(tmp_path / "pushed", probe=False))
    site.produce(4, partitions=1)
    with pytest.raises(StreamingQueryException, match=r"OutcomeUnknown: block .* was pushed"):
        site.run()
    site.exact()
    with pytest.raises(StreamingQueryException, match=r"OutcomeUnknown: block .* was pushed"):
        site.run()
    site.exact()
