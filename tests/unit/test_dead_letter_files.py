"""Dead-letter files: staged, then published; a replay overwrites; what counts already is not repeated."""

from pathlib import Path

import pytest

from landonce.commit.dead_letters import DeadLetter, committed, publish, stage, stem

PLAN = stem(7, "0123456789abcdef")


def letter(offset: int, value: bytes | None = b"{", **more: object) -> DeadLetter:
    told = {"topic": "t", "partition": 0, "timestamp": 1, "reason": "broken", "key": None} | more
    return DeadLetter(offset=offset, value=value, **told)  # type: ignore[arg-type]


def offsets(folder: Path) -> list[int]:
    return [told["offset"] for told in committed(folder)]


def test_only_published_letters_count(tmp_path: Path) -> None:
    name = stage(tmp_path, PLAN, 0, [letter(2), letter(1)])
    assert offsets(tmp_path) == []
    publish(tmp_path, PLAN, [name])
    assert offsets(tmp_path) == [1, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["batch-000000007-01234567-0000.jsonl"]


def test_a_block_without_bad_records_has_no_file(tmp_path: Path) -> None:
    assert stage(tmp_path / "none", PLAN, 0, []) == ""
    publish(tmp_path / "none", PLAN, [""])
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("published_before", [False, True])
def test_a_replay_overwrites_and_takes_away_what_it_did_not_write(tmp_path: Path, published_before: bool) -> None:
    names = [stage(tmp_path, PLAN, 0, [letter(1)]), stage(tmp_path, PLAN, 1, [letter(5)])]
    if published_before:
        publish(tmp_path, PLAN, names)
    again = stage(tmp_path, PLAN, 0, [letter(1)])
    publish(tmp_path, PLAN, [again])
    publish(tmp_path, PLAN, [again])
    assert offsets(tmp_path) == [1]


def test_another_ledgers_batch_of_the_same_number_is_left_alone(tmp_path: Path) -> None:
    publish(tmp_path, PLAN, [stage(tmp_path, PLAN, 0, [letter(1)])])
    other = stem(7, "fedcba98")
    publish(tmp_path, other, [stage(tmp_path, other, 0, [letter(2)])])
    assert offsets(tmp_path) == [1, 2]


def test_what_counts_already_is_left_out_when_offsets_are_read_again(tmp_path: Path) -> None:
    publish(tmp_path, PLAN, [stage(tmp_path, PLAN, 0, [letter(1), letter(2)])])
    other = stem(1, "fedcba98")
    for _ in range(2):
        publish(tmp_path, other, [stage(tmp_path, other, 0, [letter(1), letter(2), letter(3)])], read_again=True)
        assert sorted(offsets(tmp_path)) == [1, 2, 3]


def test_nothing_of_a_record_is_lost(tmp_path: Path) -> None:
    bad = letter(1, value=b"\xff\x00", key=b"k\xc3\xbc", headers=(("h", b"x"), ("h", None), ("b", b"\xfe")))
    publish(tmp_path, PLAN, [stage(tmp_path, PLAN, 0, [bad, letter(2, value=None)])])
    first, second = committed(tmp_path)
    assert first["value_base64"] == "/wA="
    assert first["key"] == "kü"
    assert first["headers"] == [
        {"name": "h", "value": "x"},
        {"name": "h", "value": None},
        {"name": "b", "value_base64": "/g=="},
    ]
    assert second["value"] is None
