"""Blocks whose transactions go through a pooler: many clients, few sessions, and none of them is anybody's between two transactions."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from pooler import Pooler
from sql_sites import changes, postgres_site, rows

from landonce.protocol.receipt import Fate

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


@pytest.mark.parametrize("key", [(), ("id",)], ids=["added", "changed"])
def test_many_blocks_at_once_share_few_sessions(
    new_database: Callable[[], str], pooler: Pooler, key: tuple[str, ...]
) -> None:
    """A transaction begins in whichever session is free, and stays there: a statement that is prepared in one and executed in another
    would be somebody else's."""
    straight = new_database()
    site = postgres_site(straight, key=key)
    site.examined = site.made().fingerprint()
    site.url = pooler.url_of(straight)
    state = site.prepared(*((at * 10, at * 10 + 10) for at in range(60)))

    def settled(block: int) -> Fate | None:
        offsets = range(block * 10, block * 10 + 10)
        made = changes(*((at, "u", at, f"w{at}") for at in offsets)) if key else rows(*offsets)
        return site.settle(state, made, number=block).fate

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(settled, range(60))) == {Fate.LANDED}
    assert site.coordinates() == [("t", 0, offset) for offset in range(600)]
    assert {row[3] for row in site.blocks()} == {"AFTER"}
    site.close()
