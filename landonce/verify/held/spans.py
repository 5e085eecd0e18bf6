"""What files hold that a snapshot registers more than once."""

from __future__ import annotations

from collections import defaultdict

from landonce.protocol.ranges import Partition
from landonce.verify.held.port import Doubled, Span
from landonce.verify.held.scan import PinnedTable
from landonce.verify.judge import Offsets


class Spans:
    """Collected while the table is read. A file comes once per registration."""

    def __init__(self, table: PinnedTable) -> None:
        self._twice = table.files.doubled()
        self._found: dict[str, dict[Partition, Span]] = defaultdict(dict)

    def add(self, path: str, partition: Partition, offsets: Offsets) -> None:
        if path in self._twice and len(offsets):
            held, new = self._found[path], Span.of(partition, offsets)
            held[partition] = held[partition].plus(new) if partition in held else new

    def doubled(self) -> tuple[Doubled, ...]:
        """These files, and who registered them."""
        return tuple(Doubled(path, them, tuple(self._found[path].values())) for path, them in self._twice.items())
