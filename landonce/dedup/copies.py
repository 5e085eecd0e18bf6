"""Copies that were found, kept with the coordinates of their originals, if `dedup.copies` says `keep`.

The commit that accepts a batch adds them, so each copy is kept once, whatever is killed or tried again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from landonce.dedup.chunks import encode_records
from landonce.dedup.runs import FirstSeen, Halves, Positions

_TOGETHER = 100_000
"""Copies of one blob: it has less than 4 MiB."""


def copies_of(places: Halves, offsets: Positions, originals: FirstSeen) -> pa.Table:
    """Where copies are, and where and when their originals were accepted. Places are hashes, as `place_of` makes them."""
    return pa.table(
        {
            "place": places,
            "offset": offsets,
            "original_place": np.ascontiguousarray(originals["place"]),
            "original_offset": np.ascontiguousarray(originals["offset"]),
            "accepted_at": np.ascontiguousarray(originals["at"]),
        }
    )


def encode_copies(found: Sequence[pa.Table]) -> tuple[bytes, ...]:
    """Those of one batch as blobs, in the order of their coordinates."""
    if not any(each.num_rows for each in found):
        return ()
    ordered = pa.concat_tables(found).sort_by([("place", "ascending"), ("offset", "ascending")])
    return tuple(encode_records(ordered.slice(at, _TOGETHER)) for at in range(0, ordered.num_rows, _TOGETHER))
