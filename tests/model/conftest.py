"""How far the model checker goes."""

from __future__ import annotations

import pytest

from . import wide


def pytest_configure(config: pytest.Config) -> None:
    wide.AT_MOST = config.getoption("--worlds")
