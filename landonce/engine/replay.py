"""Dead letters that land in place: stored before their plan, read by workers, and taken out of their files once the plan is recorded.

Beside a folder's dead-letter files, a plan of letters has:

    STEM.replay     the letters of the plan, as they are to land. Written whole before PREPARE, and never changed
    STEM.still      those that cannot land even now, with their new reasons. Written before RECORD
    STEM.replayed   those that are letters no more, whole, with the value that landed. Written after RECORD
    ….dropping      places that an operator is about to drop; `….dropped` once the ledger says so
    ….skipping      places of letters whose records an operator is about to skip: they go once the ledger says so
    STEM.landing    letters of other plans whose records a plan delivers again: they go once it is recorded, but for those
                    that it rejected again. Written before RECORD

`settle` takes letters out of their files. It must never run before RECORD, and may run any number of times after it: as long as
`STEM.replay` is there, it is not done. A place is in one `.replayed` file at most, the newest.

What is replayed or dropped stays so until its record is delivered again (`forget`): from then on it is a record like any other.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from landonce.engine import dead_letters
from landonce.engine.dead_letters import Place, as_bytes, letters_in, place_of, value_fields, write_letters
from landonce.engine.letter_choice import Filters
from landonce.errors import DeadLettersMissing, DeadLettersUnwritable, LedgerUnavailable, ReplayRefused
from landonce.failpoints import reach
from landonce.protocol.ledger import Ledger, LedgerState, Note
from landonce.protocol.letters import (
    LetterBatch,
    covering,
    landed_for_good,
    partition_of,
    refuse_counted,
    topics_as_known,
)
from landonce.protocol.ranges import Partition, Range
from landonce.protocol.source import SourceView
from landonce.read.block import ReadBlock
from landonce.read.decoding import Identities, Identity
from landonce.read.kafka.records import BlockId, Records, RecordSource

Entry = dict[str, Any]
Present = Callable[[Partition, Sequence[int]], set[int]]
"""Which of these offsets, in order, the target holds rows of. The partition is as the target knows it."""
_REPLAY, _STILL, _REPLAYED = ".replay", ".still", ".replayed"
_DROPPING, _DROPPED, _SKIPPING, _LANDING = ".dropping", ".dropped", ".skipping", ".landing"
_SOURCE, _CHANGED, _ORIGINAL, _FILE = "source_topic", "corrected", "original", "file"
_AGAIN = "rejected_again"
_VALUE = ("value", "value_base64")
_LETTERS, _BYTES = 50_000, 32 * 2**20
"""Of one plan, at most; about."""
_BLOCK = 10_000
"""Letters of one block."""
_TOGETHER = 200
"""Letters whose events are looked up at once."""
_DIGITS = 32


# The letters of a plan.


@dataclass(frozen=True)
class LetterRecord:
    """One letter, as Kafka's client gives a record."""

    entry: Entry

    def offset(self) -> int:
        return int(self.entry["offset"])

    def timestamp(self) -> tuple[int, int]:
        """As Kafka's client: the kind of the timestamp, and milliseconds."""
        moment = self.entry.get("timestamp")
        return (0, -1) if moment is None or moment < 0 else (1, int(moment))

    def key(self) -> bytes | None:
        return as_bytes(self.entry, "key")

    def value(self) -> bytes | None:
        return as_bytes(self.entry, "value")

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return [(each["name"], as_bytes(each, "value")) for each in self.entry.get("headers") or ()] or None


@dataclass(frozen=True)
class LetterRecords(RecordSource):
    """The letters of one plan. Kafka is not asked: it may have deleted them."""

    path: Path
    digest: str
    keeper: RecordSource | None = None
    """With `dedup`: it stores blocks before they are sent, as it does for accepted events."""

    def read(self, ranges: tuple[Range, ...]) -> Iterator[Records]:
        wanted = {each.partition: each for each in ranges}
        found: dict[Partition, list[Entry]] = {}
        for entry in stored(self.path, self.digest):
            partition = Partition(entry[_SOURCE], entry["partition"])
            if partition in wanted and wanted[partition].holds(entry["offset"]):
                found.setdefault(partition, []).append(entry)
        for partition, entries in found.items():
            records = [LetterRecord(entry) for entry in entries]
            offsets = pa.array([each.offset() for each in records], pa.int64())
            yield Records(partition, offsets, pa.array([each.value() for each in records], pa.binary()), records)

    def require_same(self, topics: Mapping[str, str]) -> None:
        """Letters belong to the topics of the ledger that counted them, also if Kafka has other topics now."""
        del topics

    def frozen(self, block: BlockId) -> ReadBlock | None:
        return self.keeper.frozen(self._of_letters(block)) if self.keeper is not None else None

    def freeze(self, block: BlockId, content: ReadBlock) -> ReadBlock:
        return self.keeper.freeze(self._of_letters(block), content) if self.keeper is not None else content

    def _of_letters(self, block: BlockId) -> BlockId:
        """A restored ledger may count a batch again: what was stored of other letters, or of records, is not taken for this block."""
        return block._replace(ranges=(*block.ranges, Range(Partition(f"letters {self.digest}", 0), 0, 1)))


def stored(path: Path, digest: str) -> list[Entry]:
    """The letters of a plan, which must be the ones that it was made of."""
    try:
        entries = list(letters_in(path))
    except FileNotFoundError:
        entries = []
    if digest_of(entries) != digest:
        raise DeadLettersMissing(
            f"{path}, which holds the dead letters that are about to land, is not as it was written.",
            safe="The plan is pending. The letters are still in their own files.",
            command="restore the file, then `landonce dead replay {file}`; or, unless a block of the plan has landed, forget the plan: "
            "landonce state rebase {file} --drop-pending",
        )
    return entries


def digest_of(entries: Iterable[Entry]) -> str:
    found = hashlib.sha256()
    for entry in entries:
        found.update(json.dumps(entry, sort_keys=True).encode())
    return found.hexdigest()[:_DIGITS]


class Events(Protocol):
    """With `dedup`: what the store knows of the events of dead letters."""

    def accepted(self, letters: Sequence[Entry]) -> set[Place]:
        """Those whose events were accepted from these very records, so that no other record of them landed."""

    def require_same(self, letters: Sequence[tuple[Entry, Entry]]) -> None:
        """Raises if a value that a person gave is another event than the record: (as it lands, as the record was)."""


@dataclass
class Replay:
    """The letters that a person asked to land, plan by plan. Those that cannot land even now stay, and are not tried again."""

    folder: Path
    pipeline: str
    filters: Filters
    fixed: Mapping[Place, bytes | None] | None = None
    """Values that a person gave; then only these letters land."""
    elsewhere: set[Place] = field(default_factory=set)
    """Letters that may not land in place: of other offsets than the ledger counts."""
    events: Events | None = None
    """With `dedup`."""
    forgotten: set[Place] = field(default_factory=set)
    """Letters that may not land: their events may have come again since."""
    _after: tuple[str, Place] | None = None
    """The file and the letter that were tried last."""
    _chosen: tuple[list[Entry], tuple[str, Place]] | None = None
    """The letters of the next plan, and the last one that was looked at for it."""

    def next(self, held: LedgerState) -> LetterBatch | None:
        """What the next plan is made of. The same until it is stored."""
        chosen: dict[tuple[Partition, int], Entry] = {}
        size, last = 0, ("", ("", 0, 0))
        for name, entry in self._accepted(self._untried()):
            partition = partition_of(held, Partition(entry["topic"], entry["partition"]), entry["offset"])
            if partition is None:
                self.elsewhere.add(place_of(entry))
                continue
            made = self.as_it_lands(entry) | {_SOURCE: partition.topic}
            chosen[partition, entry["offset"]], last = made, (name, place_of(entry))
            size += len(made.get("value") or made.get("value_base64") or "")
            if len(chosen) >= _LETTERS or size >= _BYTES:
                break
        if not chosen:
            return None
        entries = [chosen[place] for place in sorted(chosen)]
        self._check(held, entries)
        if self.events is not None:
            self.events.require_same([(each, _before(each)) for each in entries if each[_CHANGED]])
        self._chosen = entries, last
        return LetterBatch(digest_of(entries), tuple(covering(sorted(chosen), _BLOCK)))

    def stage(self, stem: str) -> None:
        """Before their plan is durable."""
        if self._chosen is None:
            raise ValueError("a plan of letters that nobody chose")
        entries, last = self._chosen
        try:
            write_letters(self.folder, stem + _REPLAY, entries)
            dead_letters.sync(self.folder)
        except OSError as error:
            raise _unwritable(self.folder, error) from None
        self._after = last

    def candidates(self) -> Iterator[Entry]:
        """What may be chosen, before anybody looks at the ledger or the target."""
        return (entry for entry in dead_letters.committed(self.folder, self.pipeline) if self.takes(entry))

    def takes(self, entry: Mapping[str, Any]) -> bool:
        return self.filters.takes(entry) and (self.fixed is None or place_of(entry) in self.fixed)

    def _accepted(self, letters: Iterator[tuple[str, Entry]]) -> Iterator[tuple[str, Entry]]:
        """Those that the store still knows, of a pipeline with `dedup`."""
        if self.events is None:
            yield from letters
            return
        while some := list(islice(letters, _TOGETHER)):
            known = self.events.accepted([_before(entry) for _, entry in some])
            self.forgotten.update(place for _, entry in some if (place := place_of(entry)) not in known)
            yield from ((name, entry) for name, entry in some if place_of(entry) in known)

    def _check(self, held: LedgerState, entries: Sequence[Entry]) -> None:
        """Raises if these may not land."""

    def _untried(self) -> Iterator[tuple[str, Entry]]:
        """Files and the letters in them have an order, which stays when letters are taken out."""
        after = dead_letters.order(self._after[0], self.pipeline) if self._after is not None else None
        for path in dead_letters.files(self.folder, self.pipeline):
            here = dead_letters.order(path.name, self.pipeline)
            if after is not None and here < after:
                continue
            for entry in letters_in(path):
                tried = after == here and self._after is not None and place_of(entry) <= self._after[1]
                if not tried and self.takes(entry):
                    yield path.name, entry

    def as_it_lands(self, entry: Entry) -> Entry:
        if self.fixed is None or self.fixed[place_of(entry)] == as_bytes(entry, "value"):
            return {**entry, _CHANGED: False}
        return {
            **_but_value(entry),
            **value_fields(self.fixed[place_of(entry)]),
            _CHANGED: True,
            _ORIGINAL: {name: entry[name] for name in _VALUE if name in entry},
        }


@dataclass
class ReplayAgain(Replay):
    """Letters that landed in a replay before, and whose rows are gone: the target was rolled back or restored, and its ledger with it."""

    present: Present | None = None
    """Asked by the driver that has the pipeline, while no plan is pending: whoever could write the rows is fenced."""
    _tried: set[Place] = field(default_factory=set)

    def candidates(self) -> Iterator[Entry]:
        return filter(self.takes, replayed(self.folder, self.pipeline))

    def stage(self, stem: str) -> None:
        super().stage(stem)
        self._tried.update(map(place_of, self._chosen[0] if self._chosen is not None else ()))

    def _untried(self) -> Iterator[tuple[str, Entry]]:
        """Those without a row and without a letter."""
        letters = {place_of(entry) for entry in dead_letters.committed(self.folder, self.pipeline)}
        for path in _with(self.folder, self.pipeline, _REPLAYED):
            entries = [
                entry
                for entry in letters_in(path)
                if self.takes(entry) and place_of(entry) not in self._tried and place_of(entry) not in letters
            ]
            there = self._there(entries)
            yield from ((path.name, entry) for entry in entries if place_of(entry) not in there)

    def _there(self, entries: Iterable[Entry]) -> set[Place]:
        if self.present is None:
            raise ValueError("nobody looks for the rows")
        wanted: dict[Partition, list[int]] = {}
        for topic, number, offset in map(place_of, entries):
            wanted.setdefault(Partition(topic, number), []).append(offset)
        return {
            (label.topic, label.number, offset)
            for label, offsets in wanted.items()
            for offset in self.present(label, sorted(offsets))
        }

    def _check(self, held: LedgerState, entries: Sequence[Entry]) -> None:
        letters = dead_letters.committed(self.folder, self.pipeline)
        labels = ((Partition(entry["topic"], entry["partition"]), entry["offset"]) for entry in letters)
        refuse_counted(held, sum(partition_of(held, *each) is not None for each in labels), len(entries))

    def as_it_lands(self, entry: Entry) -> Entry:
        return entry


def refuse_other_rows(replay: Replay, identities: Identities) -> None:
    """Raises if a value that a person gave would change another row than the record. Versions only order the changes that the topic has of
    a row: with those of a row of another partition, an old change could win over a newer one."""
    given = replay.candidates() if replay.fixed is not None else iter(())
    while some := list(islice(given, _TOGETHER)):
        before = identities.of([LetterRecord(each) for each in some])
        after = identities.of([LetterRecord(replay.as_it_lands(each)) for each in some])
        for entry, one, other in zip(some, before, after, strict=True):
            if one is not None and other is not None and one != other:
                raise ReplayRefused(
                    f"the value that is given for {':'.join(map(str, place_of(entry)))} changes another row than the record: {_keyed(other)}, and "
                    f"not {_keyed(one)}. There it could win over a newer change.",
                    safe="Nothing was written.",
                    command="keep the fields of the key as they were; or produce the value to the topic again",
                )


def _keyed(identity: Identity) -> str:
    return ", ".join(map(str, identity))


@dataclass(frozen=True)
class LedgerTopics:
    """The topics as the ledger knows them: they end where the position is, and nothing is read from them."""

    ledger: Ledger

    def survey(self, topics: object) -> SourceView:
        del topics
        state = self.ledger.load()
        if state is None:
            raise LedgerUnavailable("the ledger's entry disappeared.")
        return topics_as_known(state)

    def record_bytes(self, ranges: tuple[Range, ...]) -> float | None:
        del ranges
        return None


# Around RECORD.


def replay_file(folder: Path, stem: str) -> Path:
    return folder / (stem + _REPLAY)


def keep_still_dead(folder: Path, stem: str, names: Iterable[str]) -> None:
    """Before RECORD: the letters that cannot land even now, from the files that the receipts name."""
    wanted = sorted(name for name in names if name)
    dead_letters.require(folder, wanted)
    still = [
        {**entry, "refused": dead_letters.is_refused(name)}
        for name in wanted
        for entry in dead_letters.known(folder, name)
    ]
    try:
        write_letters(folder, stem + _STILL, still)
    except OSError as error:
        raise _unwritable(folder, error) from None


def settle(folder: Path, stem: str) -> None:
    """After RECORD: removes letters that landed from their files, and gives the others their new reason. Several commands may settle the
    same plan at once: both files are read before anything is removed, and once the first of them is gone, all is done. A command that was
    stopped meanwhile then changes nothing more, because people may have changed the letters since."""
    replay, still = replay_file(folder, stem), folder / (stem + _STILL)
    try:
        dead = {place_of(entry): entry for entry in letters_in(still)}
        tried = list(letters_in(replay))
    except FileNotFoundError:
        return
    done = [entry for entry in tried if place_of(entry) not in dead]
    replaced = {place_of(entry): _still_dead(entry, dead.get(place_of(entry))) for entry in tried}
    try:
        landed_before = {
            place_of(entry)
            for path in _with(folder, dead_letters.pipeline_of(stem), _REPLAYED)
            if path.name != stem + _REPLAYED
            for entry in letters_in(path)
        }
        if done and replay.exists():
            write_letters(folder, stem + _REPLAYED, done)
        reach("letters.removing")
        _replace(folder, stem, replaced, landed_before, replay.exists)
        dead_letters.sync(folder)
        reach("letters.removed")
        for name in dead_letters.left(folder, stem) - dead_letters.counting(dead_letters.left(folder, stem)):
            (folder / name).unlink(missing_ok=True)
        replay.unlink(missing_ok=True)
        still.unlink(missing_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from None


def _replace(
    folder: Path,
    stem: str,
    replaced: Mapping[Place, Entry | None],
    landed_before: set[Place],
    unsettled: Callable[[], bool],
) -> None:
    """Replaces letters in their files, or removes them (None). A letter that had landed in an earlier replay (`landed_before`) and cannot
    land now is written again. `unsettled`: whether no other command has done it."""
    pipeline, found = dead_letters.pipeline_of(stem), set[Place]()
    for path in dead_letters.files(folder, pipeline):
        found |= _rewrite(path, replaced, unsettled)
    gone = landed_before - found
    again = [entry for place, entry in sorted(replaced.items()) if entry is not None and place in gone]
    if again and unsettled():
        write_letters(folder, f"{stem}-0000d{digest_of(again)[:8]}.jsonl", again)
    for path in (*_with(folder, pipeline, _REPLAYED), *_with(folder, pipeline, _DROPPED)):
        if path.name != stem + _REPLAYED:
            _rewrite(path, dict.fromkeys(replaced), unsettled)


def _still_dead(tried: Entry, now: Entry | None) -> Entry | None:
    """The letter that stays: of the record itself, also if a person's value for it could not land. None if it landed."""
    if now is None or not tried[_CHANGED]:
        return now
    judged = {"fingerprint": tried.get("fingerprint", "")}  # by what judged the record's own value
    return {
        **_but_value(now),
        **tried[_ORIGINAL],
        "reason": f"a corrected value was rejected: {now['reason']}",
        **judged,
    }


def _before(entry: Entry) -> Entry:
    """The letter as the record was."""
    return {**_but_value(entry), **entry[_ORIGINAL]} if entry.get(_CHANGED) else entry


def _but_value(entry: Entry) -> Entry:
    return {name: value for name, value in entry.items() if name not in _VALUE}


def _rewrite(
    path: Path, replaced: Mapping[Place, Entry | None], wanted: Callable[[], bool] = lambda: True
) -> set[Place]:
    """The file with these letters replaced, or without them. Whole or not at all; a file without letters goes. Gives which of them it held.
    `wanted`: whether it is still to be done, asked last."""
    try:
        entries = list(letters_in(path))
    except FileNotFoundError:  # another command settles the same
        return set()
    found = {place for entry in entries if (place := place_of(entry)) in replaced}
    if found and wanted():
        left = [replaced.get(place_of(entry), entry) for entry in entries]
        kept = [entry for entry in left if entry is not None]
        if kept:
            write_letters(path.parent, path.name, kept)
        else:
            path.unlink(missing_ok=True)
        reach("letters.file")
    return found


# Records that are delivered again.


def remove(folder: Path, pipeline: str, ranges: Sequence[Range]) -> None:
    """Rows and letters of these ranges, by what `_topic` would hold, are removed, and their records are delivered again."""
    dead_letters.remove(folder, pipeline, ranges)
    forget(folder, pipeline, ranges, rows_stay=False)


def forget(folder: Path, pipeline: str, ranges: Sequence[Range], *, rows_stay: bool) -> None:
    """Forgets what people did to letters of these ranges, by what `_topic` would hold: their records are delivered again.
    `rows_stay`: rows that are in the target are recognised, and stay as a replay landed them."""
    for suffix in (_DROPPED,) if rows_stay else (_DROPPED, _REPLAYED):
        for path in _with(folder, pipeline, suffix):
            gone = {place_of(entry) for entry in letters_in(path) if dead_letters.covered(entry, ranges)}
            _rewrite(path, dict.fromkeys(gone))


def letters_of(folder: Path, names: Iterable[str]) -> Iterator[Entry]:
    """The letters of these files, each with its file."""
    for name in names:
        with suppress(FileNotFoundError):
            yield from ({**entry, _FILE: name} for entry in letters_in(folder / name))


def is_listed(folder: Path, stem: str) -> bool:
    """Whether an earlier attempt at the plan listed letters. It may have had more blocks then."""
    return (folder / (stem + _LANDING)).exists()


def list_landing(folder: Path, stem: str, names: Collection[str], letters: Iterable[Entry]) -> Path | None:
    """Before RECORD: these letters, which other plans wrote, are of records that this one delivers again. Those that it rejects again are in
    the files `names`, or were left out there by an earlier attempt at this very step: they stay, and the list remembers it."""
    path = folder / (stem + _LANDING)
    before = list(letters_in(path)) if path.exists() else []
    again = {place_of(entry): entry[_AGAIN] for entry in before if entry.get(_AGAIN) in names}
    again |= {place_of(entry): name for name in sorted(names) for entry in dead_letters.known(folder, name)}
    entries = [{**entry, _AGAIN: again.get(place_of(entry), "")} for entry in letters]
    if not entries:
        path.unlink(missing_ok=True)
        return None
    try:
        write_letters(folder, path.name, entries)
        dead_letters.sync(folder)
    except OSError as error:
        raise _unwritable(folder, error) from None
    return path


def take_landed(listed: Path) -> None:
    """After RECORD: what landed, or was filtered, goes from the files of other plans. May be done again, and by several at once."""
    gone: dict[str, dict[Place, Entry | None]] = {}
    try:
        for entry in letters_in(listed):
            if not entry[_AGAIN]:
                gone.setdefault(entry[_FILE], {})[place_of(entry)] = None
    except FileNotFoundError:
        return
    reach("letters.removing")
    for name, places in gone.items():
        _rewrite(listed.parent / name, places, listed.exists)
    dead_letters.sync(listed.parent)
    reach("letters.removed")
    listed.unlink(missing_ok=True)


def forget_landing(folder: Path, stem: str) -> None:
    """The plan is given up."""
    (folder / (stem + _LANDING)).unlink(missing_ok=True)


def handled_places(folder: Path, pipeline: str) -> frozenset[Place]:
    """The letters that were replayed or dropped."""
    paths = (path for suffix in (_DROPPED, _REPLAYED) for path in _with(folder, pipeline, suffix))
    return frozenset(place_of(entry) for path in paths for entry in letters_in(path))


def handled_since(folder: Path, pipeline: str, state: LedgerState) -> frozenset[Place]:
    """As `handled_places`, of those that were replayed or dropped after the ledger said `state`. Files of replays are numbered as batches,
    those of drops as epochs."""

    def after(path: Path, last: int) -> bool:
        return int(path.name.removeprefix(f"{pipeline}.").split("-")[1]) > last

    numbered = ((_REPLAYED, state.batch), (_DROPPED, state.epoch))
    paths = (path for suffix, last in numbered for path in _with(folder, pipeline, suffix) if after(path, last))
    return frozenset(place_of(entry) for path in paths for entry in letters_in(path))


def handled_ends(folder: Path, pipeline: str) -> dict[Partition, int]:
    """One past the highest offset whose letter was replayed or dropped, by what `_topic` would hold."""
    found: dict[Partition, int] = {}
    for suffix in (_DROPPED, _REPLAYED):
        for path in _with(folder, pipeline, suffix):
            for topic, number, offset in map(place_of, letters_in(path)):
                partition = Partition(topic, number)
                found[partition] = max(offset + 1, found.get(partition, 0))
    return found


def settle_left(
    folder: Path,
    pipeline: str,
    state: LedgerState,
    journal: Callable[[], Iterable[Note]],
    earlier: Collection[str] = (),
) -> None:
    """Finishes what a killed driver or command left: what the ledger has recorded is settled. Files that the ledger does not know are
    removed if they are among `earlier`, which the caller found before it took the pipeline: others may be of a newer driver that is about
    to record them."""
    last = dead_letters.stem(pipeline, state.batch, state.lineage)
    for path in _with(folder, pipeline, _REPLAY):
        stem = path.name.removesuffix(_REPLAY)
        if stem == last and landed_for_good(state, state.batch, state.lineage):
            settle(folder, stem)
        elif stem != last and path.name in earlier:
            for suffix in (_STILL, _REPLAY):
                (folder / (stem + suffix)).unlink(missing_ok=True)
    for path in _with(folder, pipeline, _STILL):
        if path.name in earlier and not replay_file(folder, path.name.removesuffix(_STILL)).exists():
            path.unlink(missing_ok=True)
    for path in _with(folder, pipeline, _LANDING):
        stem = path.name.removesuffix(_LANDING)
        given_up = any(stem in note.detail for note in journal())
        if stem == last and landed_for_good(state, state.batch, state.lineage) and not given_up:
            take_landed(path)
        elif path.name in earlier and (stem != last or given_up):
            path.unlink(missing_ok=True)
    for path in (*_with(folder, pipeline, _DROPPING), *_with(folder, pipeline, _SKIPPING)):
        if any(path.stem in note.detail for note in journal()):
            take_dropped(path)
        elif path.name in earlier:
            path.unlink(missing_ok=True)


def found(folder: Path, pipeline: str) -> frozenset[str]:
    """The names of files of letters that are on their way, or were."""
    ours = (_REPLAY, _STILL, _DROPPING, _SKIPPING, _LANDING)
    return frozenset(path.name for each in ours for path in _with(folder, pipeline, each))


def unsettled(folder: Path) -> bool:
    """Whether something may be left to settle."""
    return any(
        next(folder.glob(f"*{suffix}"), None) is not None for suffix in (_REPLAY, _DROPPING, _SKIPPING, _LANDING)
    )


def _with(folder: Path, pipeline: str, suffix: str) -> list[Path]:
    """The pipeline's files of this kind. Another pipeline's name may begin with this one's."""
    name = re.compile(re.escape(pipeline) + r"\.(?:batch|drop)-\d{9,}-\w*" + re.escape(suffix))
    return sorted(path for path in folder.glob(f"*{suffix}") if name.fullmatch(path.name))


# Letters that an operator drops, or skips.


@dataclass(frozen=True)
class Listed:
    """Letters that are about to be dropped."""

    path: Path
    count: int
    elsewhere: int
    """Letters that the command would take, and that may not be dropped: of other offsets than the ledger counts."""


def list_dropped(folder: Path, pipeline: str, filters: Filters, state: LedgerState) -> Listed:
    """Writes the places of the letters that are about to be dropped, file by file."""
    count = elsewhere = 0

    def places() -> Iterator[Entry]:
        nonlocal count, elsewhere
        for path in dead_letters.files(folder, pipeline):
            for entry in filter(filters.takes, letters_in(path)):
                if partition_of(state, Partition(entry["topic"], entry["partition"]), entry["offset"]) is None:
                    elsewhere += 1
                    continue
                count += 1
                yield _listed(entry, path)

    return Listed(_write_places(folder, pipeline, state, _DROPPING, places()), count, elsewhere)


def list_skipped(folder: Path, pipeline: str, ranges: Sequence[Range], state: LedgerState) -> Path:
    """As `list_dropped`, of the letters of these ranges, by what `_topic` would hold: their records are about to be skipped."""
    places = (
        _listed(entry, path)
        for path in dead_letters.files(folder, pipeline)
        for entry in letters_in(path)
        if dead_letters.covered(entry, ranges)
    )
    return _write_places(folder, pipeline, state, _SKIPPING, places)


def _listed(entry: Entry, path: Path) -> Entry:
    return {**dict(zip(("topic", "partition", "offset"), place_of(entry), strict=True)), _FILE: path.name}


def _write_places(folder: Path, pipeline: str, state: LedgerState, suffix: str, places: Iterable[Entry]) -> Path:
    name = f"{pipeline}.drop-{state.epoch:09d}-{state.owner[:8]}{suffix}"
    try:
        write_letters(folder, name, places)
        dead_letters.sync(folder)
    except OSError as error:
        raise _unwritable(folder, error) from None
    return folder / name


def take_dropped(listed: Path) -> None:
    """After the ledger says so: takes them out of their files, one file at a time. What was replayed and became a letter again is
    dropped, too. As in `settle`, another command may do it at once. Nobody needs to know later which letters were skipped: the journal
    says which records."""
    folder, pipeline = listed.parent, listed.name.rpartition(".drop-")[0]
    gone: dict[str, dict[Place, Entry | None]] = {}
    try:
        for entry in letters_in(listed):
            gone.setdefault(entry[_FILE], {})[place_of(entry)] = None
    except FileNotFoundError:
        return
    for name, places in gone.items():
        _rewrite(folder / name, places, listed.exists)
    dropped = {place: None for places in gone.values() for place in places}
    for path in _with(folder, pipeline, _REPLAYED):
        _rewrite(path, dropped, listed.exists)
    reach("letters.removed")
    with suppress(FileNotFoundError):
        if listed.suffix == _SKIPPING:
            listed.unlink()
        else:
            listed.replace(listed.with_suffix(_DROPPED))
    dead_letters.sync(folder)


# For the audit.


@dataclass(frozen=True)
class Handled:
    """What people did to dead letters."""

    corrected: dict[Place, bytes | None] = field(default_factory=dict)
    """Values that landed instead of the record's own."""
    dropped: frozenset[Place] = frozenset()
    landing: dict[Place, bytes | None] = field(default_factory=dict)
    """Letters of a plan that may be on its way, or of records that are delivered again: they may be in the target already, with these
    values."""


def replayed(folder: Path, pipeline: str) -> Iterator[Entry]:
    """The letters that replays took, whole: they landed, or were filtered."""
    for path in _with(folder, pipeline, _REPLAYED):
        yield from letters_in(path)


def handled(folder: Path, pipeline: str) -> Handled:
    corrected = {place_of(entry): as_bytes(entry, "value") for entry in replayed(folder, pipeline) if entry[_CHANGED]}
    dropped = frozenset(place_of(entry) for path in _with(folder, pipeline, _DROPPED) for entry in letters_in(path))
    landing = {
        place_of(entry): as_bytes(entry, "value")
        for path in (*_with(folder, pipeline, _REPLAY), *_with(folder, pipeline, _LANDING))
        for entry in letters_in(path)
        if not entry.get(_AGAIN)
    }
    return Handled(corrected, dropped, landing)


def _unwritable(folder: Path, error: OSError) -> DeadLettersUnwritable:
    return DeadLettersUnwritable(
        f"dead letters in {folder} cannot be changed: {error.strerror}.",
        safe="No letter is lost, and none is counted twice: the next start goes on here.",
        command="make the folder writable, then the same command again",
    )
