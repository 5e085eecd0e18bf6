"""Drivers for tests that kill them."""

from __future__ import annotations

import pytest
from harness import Drivers
from plain_driver import PlainDrivers


@pytest.fixture(params=[PlainDrivers, pytest.param(Drivers, marks=pytest.mark.long)], ids=["plain", "spark"])
def drivers(request: pytest.FixtureRequest) -> type[Drivers]:
    """Without Spark, and with it in `make test-long`."""
    kind: type[Drivers] = request.param
    return kind
