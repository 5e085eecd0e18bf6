"""Dead letters: records that cannot land, one file per block, with all that is needed to fix and resend them.

A worker stages a block's file: it writes all of it, then renames it to `….jsonl.staged`. The driver's commit publishes it under its final
name. Only files without `.staged` count.

The name consists of the plan, the block and a hash of which records these are. An attempt that rejects the same records overwrites the file.
One that rejects others, such as a zombie's, writes another file. The driver publishes only files that a receipt names, so records that the
target itself refused (`r`) count only if the attempt that left them out has landed. A plan that reads again what a lost ledger had delivered
leaves out letters that count already.

A file may be the only copy of its records. So only an attempt that has read the records again removes their letters. Letters of offsets that
were cut off the block meanwhile, because Kafka had deleted them, are carried over. A record whose outcome is unknown is never a dead letter.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from landonce.errors import DeadLettersMissing, DeadLettersUnwritable, LettersUnreadable
from landonce.failpoints import reach
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.reasons import Code, Reason, Reasons, counted, merged

Place = tuple[str, int, int]
"""What `_topic` would hold, partition, offset."""
Send = Callable[[Iterator[dict[str, Any]]], None]
"""Hears of letters before they count."""
_STAGED = ".staged"
_NUMBERED = r"\.batch-(\d{9,})-\w*-(\d{4,})(?:[dr][0-9a-f]{8})?\.jsonl"
_REFUSED = re.compile(r"-\d{4,}r[0-9a-f]{8}\.jsonl")


@dataclass(frozen=True)
class DeadLetter:
    """One record that cannot land. `topic` is what the target would have held in `_topic`."""

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    reason: Reason
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    fingerprint: str = ""
    """Of what judged it (`Recipe.judgement`)."""


def stem(pipeline: str, batch: int, lineage: str) -> str:
    """What the files of one plan have in common. The lineage keeps ledgers apart, which count their batches from one."""
    return f"{pipeline}.batch-{batch:09d}-{lineage[:8]}"


def files(folder: Path, pipeline: str) -> tuple[Path, ...]:
    """The files of one pipeline that count, oldest batch first. Others in the folder are not landonce's business."""
    name = re.compile(re.escape(pipeline) + _NUMBERED)
    found = (path for path in folder.glob("*.jsonl") if name.fullmatch(path.name))
    return tuple(sorted(found, key=lambda path: order(path.name, pipeline)))


def order(name: str, pipeline: str) -> tuple[int, str, int, str]:
    """Where a file of a pipeline stands among the others: by batch, plan and block."""
    found = re.fullmatch(re.escape(pipeline) + _NUMBERED, name)
    if found is None:
        raise ValueError(f"{name} is not a file of dead letters of {pipeline}")
    return int(found[1]), plan_of(name), int(found[2]), name


def found(folder: Path, pipeline: str) -> frozenset[str]:
    """The names of all files of one pipeline, also of those that do not count."""
    name = re.compile(re.escape(pipeline) + _NUMBERED + f"(?:{re.escape(_STAGED)})?")
    return frozenset(path.name for path in folder.glob("*.jsonl*") if name.fullmatch(path.name))


def left(folder: Path, plan: str) -> frozenset[str]:
    """As `found`, of one plan."""
    return frozenset(name for name in found(folder, pipeline_of(plan)) if plan_of(name) == plan)


def counting(names: Iterable[str]) -> frozenset[str]:
    """Those of them that are published."""
    return frozenset(name for name in names if not name.endswith(_STAGED))


def stage(
    folder: Path,
    plan: str,
    block: int,
    letters: Iterable[DeadLetter],
    ranges: Iterable[Range],
    *,
    inherited: bool = True,
) -> str:
    """Writes a block's letters and returns the name that `publish` needs; empty if there are none.

    `ranges`: what was read, by what `_topic` would hold. `inherited`: an earlier driver made the plan. Letters of its attempts that lie
    outside of these ranges are carried over.
    """
    read, before = tuple(ranges), _earlier(folder, plan, block) if inherited else {}
    entries = {place: each for place, each in before.items() if not covered(each, read)}
    entries.update((place_of(each), each) for each in map(_to_dict, letters))
    return _staged(folder, plan, f"{block:04d}d", entries.values())


def stage_refused(folder: Path, plan: str, block: int, letters: Iterable[DeadLetter]) -> str:
    """As `stage`, of records that the target refused in one attempt."""
    return _staged(folder, plan, f"{block:04d}r", map(_to_dict, letters))


def _staged(folder: Path, plan: str, kind: str, letters: Iterable[dict[str, Any]]) -> str:
    ordered = sorted(letters, key=place_of)
    if not ordered:
        return ""
    places = json.dumps([place_of(each) for each in ordered])
    name = f"{plan}-{kind}{hashlib.sha256(places.encode()).hexdigest()[:8]}.jsonl"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_letters(folder, name + _STAGED, ordered)
    except OSError as error:
        raise DeadLettersUnwritable(
            f"dead letters cannot be written to {folder}: {error.strerror}.",
            safe="The position did not move. Nothing is skipped: these records are read again.",
            command="set `dead_letters.path` in {file} to a folder that can be written to, then start again",
        ) from None
    return name


def kept(folder: Path, plan: str, block: int) -> tuple[str, int]:
    """What earlier attempts left for this block: the name for `publish`, and how many letters. For blocks whose records
    are gone and cannot be read again."""
    earlier = _earlier(folder, plan, block)
    return _staged(folder, plan, f"{block:04d}d", earlier.values()), len(earlier)


def publish(
    folder: Path,
    plan: str,
    names: Iterable[str],
    *,
    read_again: bool = False,
    but: Collection[Place] = (),
    send: Send | None = None,
) -> None:
    """Makes these staged files of a plan count, and no others.

    `read_again`: the plan covers offsets that may have been delivered before, so letters that count already are left out,
    and those at the places `but`. A file may be empty then, and stays until the plan is recorded (`clear_empty`). `send` gets those that
    are new before they count.
    """
    wanted = {name for name in names if name}
    with _published(folder):
        require(folder, wanted)
        if read_again:
            _leave_out_known(folder, plan, wanted, but)
    if send is not None:
        send(_new(folder, plan, sorted(name + _STAGED for name in wanted)))
    with _published(folder):
        for name in sorted(wanted):
            staged = folder / (name + _STAGED)
            try:
                staged.replace(
                    folder / name
                )  # an empty one, too: whoever publishes the same receipt again looks for it
            except FileNotFoundError:  # it counts already, or a superseded driver that does not know it yet was faster
                require(folder, {name})
            reach("publish.file")
        if wanted:
            sync(folder)


@contextmanager
def _published(folder: Path) -> Iterator[None]:
    """Workers may write to a folder in which the driver may not."""
    try:
        yield
    except OSError as error:
        raise DeadLettersUnwritable(
            f"dead letters in {folder} cannot be published: {error.strerror}.",
            safe="No letter is lost: they are staged in the folder, and the next start publishes them.",
            command="let the driver's user write to the folder, then: landonce run {file}",
        ) from None


def put_away(
    folder: Path, plan: str, names: Collection[str], ranges: Collection[Range], earlier: Collection[str]
) -> None:
    """After a plan's letters are published: removes what other attempts at it staged, and what `earlier` attempts had published.

    `ranges`: what the plan's receipts account for, by what `_topic` would hold. A file stays if it does not count yet and has a letter
    outside of these ranges.
    """
    counted = _places(folder / name for name in names)
    for name in left(folder, plan) - set(names):
        if not name.endswith(_STAGED) and name not in earlier:
            continue
        with suppress(FileNotFoundError):
            if all(place_of(entry) in counted or covered(entry, ranges) for entry in letters_in(folder / name)):
                (folder / name).unlink()


def publish_given_up(folder: Path, plan: str, *, but: Collection[int] = (), send: Send | None = None) -> None:
    """Publishes what is staged of a plan that was given up because its records are gone. Nobody knows whether all of it landed, and the
    staged letters may be the only copy. No letter counts twice. `but`: blocks that were not given up. `send`: as in `publish`."""
    names = sorted(name for name in left(folder, plan) if name.endswith(_STAGED) and _block_of(name) not in but)
    if send is not None and names:
        counted = _places(files(folder, pipeline_of(plan)))
        send(entry for entry in _new(folder, plan, names) if place_of(entry) not in counted)
    for name in names:
        staged, final = folder / name, folder / name.removesuffix(_STAGED)
        known = _places(path for path in files(folder, pipeline_of(plan)) if path != final)
        with _published(folder), suppress(FileNotFoundError):
            if new := [entry for entry in letters_in(staged) if place_of(entry) not in known]:
                write_letters(folder, final.name, new)
                sync(folder)
            staged.unlink()


def _new(folder: Path, plan: str, names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The letters of these files that no file of the plan holds which counts."""
    counted = _places(folder / name for name in counting(left(folder, plan)))
    for name in names:
        with suppress(FileNotFoundError):
            yield from (entry for entry in letters_in(folder / name) if place_of(entry) not in counted)


def remove(folder: Path, pipeline: str, ranges: Iterable[Range]) -> int:
    """Removes the letters of these ranges, by what `_topic` would hold: their records are delivered again. Gives how many there were."""
    gone, within = 0, tuple(ranges)
    for path in files(folder, pipeline):
        entries = list(_still_in(path))
        left = [entry for entry in entries if not covered(entry, within)]
        gone += len(entries) - len(left)
        if not left:
            path.unlink(missing_ok=True)
        elif len(left) < len(entries):
            write_letters(folder, path.name, left)
        reach("letters.file")
    if gone:
        sync(folder)
    return gone


def count_within(folder: Path, pipeline: str, ranges: Iterable[Range]) -> int:
    """How many letters lie in these ranges, by what `_topic` would hold."""
    within = tuple(ranges)
    return sum(1 for entry in committed(folder, pipeline) if covered(entry, within))


def require(folder: Path, names: Iterable[str]) -> None:
    """Every file that a worker staged is in the driver's folder."""
    for name in names:
        if _kept(folder, name) is None:
            raise DeadLettersMissing(
                f"{name}, which a worker wrote, is not in {folder} on the driver.",
                safe="The position did not move. The file holds dead letters of a batch that is not recorded yet.",
                command="if a worker wrote it on another machine: set `dead_letters.path` in {file} to a folder "
                "that all machines share, move the file there, then start again. If somebody moved it: put it "
                f"back, or, if its records were handled, `touch {folder / name}`, then start again",
            )


def clear_empty(folder: Path, names: Iterable[str]) -> None:
    """Removes those of these files that hold no letter. Their plans are recorded, so nobody publishes them again."""
    for name in counting(names):
        with suppress(FileNotFoundError):
            if not (folder / name).stat().st_size:
                (folder / name).unlink()


def clear_staged(folder: Path, names: Iterable[str]) -> None:
    """Removes those of these files that do not count: plans staged them that are never taken up again."""
    for name in names:
        if name.endswith(_STAGED):
            (folder / name).unlink(missing_ok=True)


def clear_staged_of(folder: Path, plan: str, blocks: Collection[int]) -> None:
    """Removes what is staged of these blocks of a plan: they were cut off, and their records follow in another plan."""
    if blocks:
        clear_staged(folder, (name for name in left(folder, plan) if _block_of(name) in blocks))


def staged_ranges(folder: Path, names: Iterable[str]) -> dict[str, tuple[Range, ...]]:
    """Those of these files that do not count, each with the ranges that its letters lie in, by what `_topic` would hold."""
    found = {}
    for name in names:
        if name.endswith(_STAGED):
            with suppress(FileNotFoundError, LettersUnreadable):
                found[name] = _spanned(letters_in(folder / name))
    return found


def is_staged(folder: Path, name: str) -> bool:
    """Whether the file was written and does not count yet."""
    return (folder / (name + _STAGED)).exists()


def plan_of(name: str) -> str:
    """What the files of the same plan have in common with this one."""
    return name.rpartition("-")[0]


def _block_of(name: str) -> int:
    return int(re.split(r"\D", name.rpartition("-")[2], maxsplit=1)[0])


def pipeline_of(plan: str) -> str:
    return plan.rpartition(".batch-")[0]


def _kept(folder: Path, name: str) -> Path | None:
    """The staged file if there is one, because it is newer; otherwise the published one."""
    return next((path for path in (folder / (name + _STAGED), folder / name) if path.exists()), None)


def known(folder: Path, name: str) -> list[dict[str, Any]]:
    """What is in the file that `_kept` finds. It may be published while it is looked for."""
    for path in (folder / (name + _STAGED), folder / name):
        with suppress(FileNotFoundError, NotADirectoryError):
            return list(letters_in(path))
    return []


def _earlier(folder: Path, plan: str, block: int) -> dict[Place, dict[str, Any]]:
    """The letters of all attempts at a block so far."""
    names = {name.removesuffix(_STAGED) for name in left(folder, plan) if _block_of(name) == block}
    return {place_of(entry): entry for name in sorted(names) for entry in known(folder, name)}


def place_of(entry: Mapping[str, Any]) -> Place:
    return entry["topic"], entry["partition"], entry["offset"]


def _places(paths: Iterable[Path]) -> set[Place]:
    return {place_of(entry) for path in paths for entry in _still_in(path)}


def covered(entry: Mapping[str, Any], ranges: Iterable[Range]) -> bool:
    """Whether the letter is of a record in one of these ranges, by what `_topic` would hold."""
    partition = Partition(entry["topic"], entry["partition"])
    return any(each.partition == partition and each.holds(entry["offset"]) for each in ranges)


def spans(folder: Path, pipeline: str) -> dict[str, tuple[Range, ...]]:
    """Between which offsets the letters of each file lie, by what `_topic` would hold. Reads all files: ask once."""
    return {path.name: _spanned(_still_in(path)) for path in files(folder, pipeline)}


def _spanned(letters: Iterable[Mapping[str, Any]]) -> tuple[Range, ...]:
    offsets: dict[Partition, list[int]] = {}
    for topic, number, offset in map(place_of, letters):
        here = offsets.setdefault(Partition(topic, number), [offset, offset])
        here[:] = min(here[0], offset), max(here[1], offset)
    return tuple(Range(partition, first, last + 1) for partition, (first, last) in offsets.items())


def _leave_out_known(folder: Path, plan: str, names: Iterable[str], but: Collection[Place]) -> None:
    """Rewrites the staged files without the letters that another plan's files hold, and without those at the places `but`."""
    known = _places(path for path in files(folder, pipeline_of(plan)) if not path.name.startswith(plan)).union(but)
    for name in names:
        staged = folder / (name + _STAGED)
        if known and staged.exists():
            with suppress(FileNotFoundError):
                write_letters(
                    folder, staged.name, [entry for entry in letters_in(staged) if place_of(entry) not in known]
                )


def write_letters(folder: Path, name: str, letters: Iterable[dict[str, Any]]) -> None:
    """Whole or not at all. The temporary name is random: machines that share the folder may have processes of the same id."""
    temporary = folder / f".{name}.{uuid.uuid4().hex}"
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(entry, ensure_ascii=False) + "\n" for entry in letters)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(folder / name)
    finally:
        temporary.unlink(missing_ok=True)


def committed(folder: Path, pipeline: str) -> Iterator[dict[str, Any]]:
    """Every dead letter that counts, as the files hold it."""
    for path in files(folder, pipeline):
        yield from _still_in(path)


def _still_in(path: Path) -> Iterator[dict[str, Any]]:
    """As `letters_in`; nothing of a file that was listed, and that another command or driver has removed since."""
    with suppress(FileNotFoundError, NotADirectoryError):
        yield from letters_in(path)


def with_refusals(folder: Path, pipeline: str) -> Iterator[tuple[dict[str, Any], bool]]:
    """As `committed`, and for each letter whether it could be decoded and the target refused it."""
    for path in files(folder, pipeline):
        mine = is_refused(path.name)
        yield from ((entry, bool(entry.get("refused", mine))) for entry in _still_in(path))


def is_refused(name: str) -> bool:
    """Whether a file is for what the target itself refused."""
    return _REFUSED.search(name) is not None


def reasons(folder: Path, pipeline: str, most: int) -> Reasons:
    """Why records cannot land, counted over the newest files: so many letters at most, and the rest of their file."""
    found: Reasons = ()
    for path in reversed(files(folder, pipeline)):
        found = merged((*found, *counted(map(reason_of, _still_in(path)))))
        if sum(each.records for each in found) >= most:
            break
    return found


def reason_of(entry: dict[str, Any]) -> Reason:
    """Of a letter as a file holds it."""
    return Reason(str(entry.get("reason", "")), Code.of(entry.get("code")), str(entry.get("field", "")))


def letters_in(path: Path) -> Iterator[dict[str, Any]]:
    """Raises `FileNotFoundError` if there is no such file, and `LettersUnreadable` if it cannot be read."""
    try:
        opened = path.open("rb")
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise LettersUnreadable(
            f"{path}: dead letters cannot be read: {error.strerror}.",
            safe="Nothing was changed.",
            command="make the file readable, then the same command again",
        ) from None
    with opened as file:
        for number, line in enumerate(file, 1):
            try:
                entry = json.loads(line)
                int(entry["partition"]), int(entry["offset"]), str(entry["topic"])
            except (ValueError, KeyError, TypeError):
                raise LettersUnreadable(
                    f"{path}, line {number}: is not a dead letter; the file was cut or changed.",
                    safe="Nothing was changed.",
                    command="restore the file, or move it elsewhere and run `landonce verify {file}`, which lists "
                    "what is missing",
                ) from None
            yield entry


def _to_dict(letter: DeadLetter) -> dict[str, Any]:
    return {
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "timestamp": letter.timestamp,
        "code": letter.reason.code.value,
        "field": letter.reason.field,
        "reason": str(letter.reason),
        **_bytes("key", letter.key),
        **value_fields(letter.value),
        "headers": [{"name": name, **_bytes("value", value)} for name, value in letter.headers],
        **({"fingerprint": letter.fingerprint} if letter.fingerprint else {}),
    }


def value_fields(content: bytes | None) -> dict[str, str | None]:
    """A record's value in a letter."""
    return _bytes("value", content)


def _bytes(name: str, content: bytes | None) -> dict[str, str | None]:
    """As text where it is text, else as base64 under a name that says so."""
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode()}


def as_bytes(entry: Mapping[str, Any], name: str) -> bytes | None:
    """What `_bytes` made of it."""
    encoded, text = entry.get(f"{name}_base64"), entry.get(name)
    if encoded is not None:
        return base64.b64decode(encoded)
    return text.encode() if text is not None else None


def sync(folder: Path) -> None:
    """Makes the names in a folder durable. A file system that cannot do that for a folder (SMB) refuses, and is not asked for more."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)
