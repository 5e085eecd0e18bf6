"""A block that is too large for a worker: the error names settings that go on, also where the plan cannot be dropped."""

import re

import pytest

from landonce.config.model import Batch
from landonce.protocol.ranges import Partition, Range
from landonce.read.block import too_large

MOST = 8 * 2**20


@pytest.mark.parametrize("record", [5_000, 60_000, 3_000_000])
def test_the_settings_that_it_names_are_enough(record):
    """`most_bytes` is eight times `batch.block_bytes`."""
    ranges = (Range(Partition("t", 0), 100, 5_100), Range(Partition("t", 1), 0, 1_000))
    read = MOST // record + 1
    error = too_large(ranges, read, read * record, MOST)
    said = dict(re.findall(r"`batch\.(block_\w+): (\w+)`", error.command))
    batch = Batch.model_validate(said)
    assert 8 * batch.block_bytes >= 6_000 * record, "the pending block, as it is"
    assert batch.block_rows * record <= max(MOST, record), "those that come"
    assert "landonce run {file}" in error.command
