"""How the size and the patience of the next batch follow from what was seen."""

import pytest

from landonce.config.model import Batch
from landonce.dedup.pipelines import one_block
from landonce.protocol.packing import Pace, pack, take
from landonce.protocol.ranges import Partition, Range


def pace() -> Pace:
    return Pace(Batch(max_rows=1_000_000, block_rows=200_000), deadline=15.0, parallelism=2)


def test_the_first_blocks_are_small_where_no_record_could_be_seen() -> None:
    limits = pace().limits()
    assert limits.block_rows * 64 * 1024 <= Batch().block_bytes
    assert limits.max_rows * 64 * 1024 <= Batch().max_bytes


def test_a_sample_of_the_records_leaves_room_for_larger_ones_and_counts_until_a_batch_was_seen() -> None:
    seen = pace()
    seen.sampled(100_000)
    assert seen.limits().block_rows * 200_000 <= Batch().block_bytes
    seen.sampled(125)
    assert (seen.limits().max_rows, seen.limits().block_rows) == (1_000_000, 200_000)
    seen.saw(1_000, 100_000_000, 1.0)
    seen.sampled(125)
    assert seen.limits().block_rows * 100_000 <= Batch().block_bytes


def test_bytes_become_records_by_the_average_seen() -> None:
    seen = pace()
    seen.saw(1_000, 125_000, 1.0)
    assert (seen.limits().max_rows, seen.limits().block_rows) == (1_000_000, 200_000)
    seen.saw(1_000, 100_000_000, 1.0)
    assert seen.limits().block_rows * 100_000 <= Batch().block_bytes


def test_slow_writes_get_more_time_by_and_by_and_a_cold_start_does_not_count() -> None:
    seen = pace()
    seen.saw(10, 1_000, 40.0)
    assert seen.patience() == 15_000
    seen.saw(10, 1_000, 10.0)
    assert seen.patience() == 30_000
    for _ in range(20):
        seen.saw(10, 1_000, 1.0)
    assert seen.patience() == 15_000


def test_a_batch_without_records_says_nothing_of_their_size() -> None:
    seen = pace()
    before = seen.limits()
    seen.saw(0, 0, 1.0)
    assert seen.limits() == before


@pytest.mark.parametrize("record_bytes", [1, 100, 1_000, 10_000_000])
@pytest.mark.parametrize("batch", [Batch(), Batch(max_rows=3_000_000), Batch(max_rows=5), Batch(block_bytes=10**6)])
def test_what_is_pushed_is_one_block_per_batch(batch: Batch, record_bytes: int) -> None:
    """However much waits, however large records are, and on however many cores."""
    seen = Pace(one_block(batch), 15.0, parallelism=4, paced=True)
    seen.saw(1_000, 1_000 * record_bytes, 1.0)
    limits = seen.limits()
    assert limits.paced
    (block,) = pack(take([Range(Partition("t", 0), 0, 10**7)], limits.max_rows), "t", limits)
    assert block.span == min(10**6, batch.max_rows, max(1, batch.block_bytes // record_bytes))


def test_a_file_that_names_the_rows_of_blocks_gets_several() -> None:
    batch = Batch(max_rows=4_000, block_rows=1_000)
    assert one_block(batch) == batch
