"""Dead-letter files: staged, then published; a replay overwrites; what counts already is not repeated."""

from pathlib import Path

import pytest

from landonce.commit.dead_letters import DeadLetter, committed, kept, newest_reason, publish, stage, stem
from landonce.errors import DeadLettersMissing, DeadLettersUnwritable, LettersUnreadable

PLAN = stem("clicks", 7, "0123456789abcdef")


def letter(offset: int, value: bytes | None = b"{", **more: object) -> DeadLetter:
    told = {"topic": "t", "partition": 0, "timestamp": 1, "reason": "broken", "key": None} | more
    return DeadLetter(offset=offset, value=value, **told)  # type: ignore[arg-type]


def offsets(folder: Path) -> list[int]:
    return [told["offset"] for told in committed(folder, "clicks")]


def test_only_published_letters_count(tmp_path: Path) -> None:
    name = stage(tmp_path, PLAN, 0, [letter(2), letter(1)])
    assert offsets(tmp_path) == []
    publish(tmp_path, PLAN, [name])
    assert offsets(tmp_path) == [1, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clicks.batch-000000007-01234567-0000.jsonl"]


def test_a_block_without_bad_records_has_no_file(tmp_path: Path) -> None:
    assert stage(tmp_path / "none", PLAN, 0, []) == ""
    publish(tmp_path / "none", PLAN, [""])
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("published_before", [False, True])
def test_a_replay_overwrites(tmp_path: Path, published_before: bool) -> None:
    names = [stage(tmp_path, PLAN, 0, [letter(1)]), stage(tmp_path, PLAN, 1, [letter(5)])]
    if published_before:
        publish(tmp_path, PLAN, names)
    again = [stage(tmp_path, PLAN, 0, [letter(1)]), stage(tmp_path, PLAN, 1, [])]
    publish(tmp_path, PLAN, again)
    assert offsets(tmp_path) == [1]
    assert len(list(tmp_path.iterdir())) == 1


def test_what_cannot_be_staged_again_is_kept(tmp_path: Path) -> None:
    names = [stage(tmp_path, PLAN, 0, [letter(1)]), stage(tmp_path, PLAN, 1, [letter(5), letter(6)])]
    publish(tmp_path, PLAN, names[:1])
    assert kept(tmp_path, PLAN, 1) == (names[1], 2)
    assert kept(tmp_path, PLAN, 2) == ("", 0)
    publish(tmp_path, PLAN, [kept(tmp_path, PLAN, 1)[0]])
    assert offsets(tmp_path) == [1, 5, 6]


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(DeadLettersUnwritable, match=f"{tmp_path}/file/dead: Not a directory"):
        stage(tmp_path / "file" / "dead", PLAN, 0, [letter(1)])


def test_the_newest_reason_is_that_of_the_last_letter(tmp_path: Path) -> None:
    assert newest_reason(tmp_path, "clicks") is None
    publish(tmp_path, PLAN, [stage(tmp_path, PLAN, 0, [letter(1), letter(2, reason="too long")])])
    later = stem("clicks", 8, "0123456789abcdef")
    stage(tmp_path, later, 0, [letter(3, reason="not published")])
    assert newest_reason(tmp_path, "clicks") == "too long"


def test_a_workers_file_that_the_driver_does_not_see_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeadLettersMissing, match=r"clicks\.batch-"):
        publish(tmp_path / "elsewhere", PLAN, [stage(tmp_path, PLAN, 0, [letter(1)])])


def test_files_of_others_are_nobodys_business(tmp_path: Path) -> None:
    (tmp_path / "mended.jsonl").write_text("not a letter")
    other = stem("clicks.batch-1", 7, "fedcba98")
    publish(tmp_path, other, [stage(tmp_path, other, 0, [letter(9)])])
    publish(tmp_path, PLAN, [stage(tmp_path, PLAN, 0, [letter(1)])], read_again=True)
    assert offsets(tmp_path) == [1]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / f"{PLAN}-0003.jsonl").write_text('{"topic": ')
    with pytest.raises(LettersUnreadable, match="line 1"):
        offsets(tmp_path)


def test_another_ledgers_batch_of_the_same_number_is_left_alone(tmp_path: Path) -> None:
    publish(tmp_path, PLAN, [stage(tmp_path, PLAN, 0, [letter(1)])])
    other = stem("clicks", 7, "fedcba98")
    publish(tmp_path, other, [stage(tmp_path, other, 0, [letter(2)])])
    assert offsets(tmp_path) == [1, 2]


def test_what_counts_already_is_left_out_when_offsets_are_read_again(tmp_path: Path) -> None:
    publish(tmp_path, PLAN, [stage(tmp_path, PLAN, 0, [letter(1), letter(2)])])
    other = stem("clicks", 1, "fedcba98")
    for _ in range(2):
        publish(tmp_path, other, [stage(tmp_path, other, 0, [letter(1), letter(2), letter(3)])], read_again=True)
        assert sorted(offsets(tmp_path)) == [1, 2, 3]


def test_nothing_of_a_record_is_lost(tmp_path: Path) -> None:
    bad = letter(1, value=b"\xff\x00", key=b"k\xc3\xbc", headers=(("h", b"x"), ("h", None), ("b", b"\xfe")))
    publish(tmp_path, PLAN, [stage(tmp_path, PLAN, 0, [bad, letter(2, value=None)])])
    first, second = committed(tmp_path, "clicks")
    assert first["value_base64"] == "/wA="
    assert first["key"] == "kü"
    assert first["headers"] == [
        {"name": "h", "value": "x"},
        {"name": "h", "value": None},
        {"name": "b", "value_base64": "/g=="},
    ]
    assert second["value"] is None
