"""A process of the kit leaves alone what it inherits; one that is forked plainly does not."""

from __future__ import annotations

import gc
from pathlib import Path

from landonce.testing.crashing import FORK, started


class _Client:
    """As clients with threads or connections are: in a cycle, and with an end that belongs to the parent."""

    def __init__(self, file: Path) -> None:
        self.myself, self.file = self, file

    def __del__(self) -> None:
        self.file.touch()


def test_what_was_there_before_is_not_collected(tmp_path: Path) -> None:
    gc.disable()
    try:
        _Client(tmp_path / "ended")
        process = started(gc.collect)
        process.join(60)
        assert process.exitcode == 0
        assert not (tmp_path / "ended").exists()

        plain = FORK.Process(target=gc.collect)
        plain.start()
        plain.join(60)
        assert (tmp_path / "ended").exists(), "the control"
    finally:
        gc.enable()
        gc.collect()  # here, and not in another test, when the folder is gone
