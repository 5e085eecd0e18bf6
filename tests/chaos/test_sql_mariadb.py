"""Whole runs into a real MariaDB, killed in their workers' transactions and in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chain import Chain
from harness import Drivers
from mariadb_server import LocalMariaDB, installed
from sql_scene import IN_TRANSACTIONS, Base, base, mariadb_judge

from landonce.local import LocalKafka

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not installed(), reason="MariaDB is not installed: scripts/test-setup does that"),
]

BATCH = "interval: 0s, max_rows: 40, block_rows: 8"


@pytest.fixture(scope="module")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalMariaDB]:
    with LocalMariaDB(tmp_path_factory.mktemp("mariadb")) as server:
        yield server


@pytest.fixture
def in_mariadb(
    tmp_path: Path, kafka: LocalKafka, drivers: type[Drivers], new_topic: Callable[..., str], mariadb: LocalMariaDB
) -> Iterator[Base]:
    with base(tmp_path, kafka, new_topic(2), mariadb.url, mariadb_judge(mariadb), batch=BATCH, drivers=drivers) as made:
        yield made


def test_mariadb_is_killed_in_its_transactions(in_mariadb: Base) -> None:
    chain = Chain(in_mariadb)
    chain.suffer(IN_TRANSACTIONS)
    chain.settled()
    assert in_mariadb.blocks() == []
    verified = in_mariadb.site.landonce("verify", str(in_mariadb.site.file))
    assert verified.returncode == 0, verified.stdout + verified.stderr
