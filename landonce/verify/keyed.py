"""The audit of one table whose rows records change: by keys, after everything was read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from landonce.protocol.ranges import Partition
from landonce.read.changes.decode import OPERATION
from landonce.read.changes.images import DELETE
from landonce.verify.bounds import Bounds
from landonce.verify.compare import ValueAudit
from landonce.verify.held.port import HeldKeys
from landonce.verify.judge import Fault, Offsets, Place
from landonce.verify.judge_keys import JudgedKeys, Limits, judge_keys
from landonce.verify.keys import LAST, OFFSET, PLACE, LastChanges, plain
from landonce.verify.partition import PartitionReport
from landonce.verify.report import KeyFault, TableReport
from landonce.verify.runs import LISTED
from landonce.verify.table import Later, Stretch, TableAudit


class KeyedAudit(TableAudit):
    """Every key is expected with the coordinates of its last change, or not at all."""

    def __init__(self, held: HeldKeys, identity: Sequence[str], values: ValueAudit | None = None) -> None:
        self.name = held.name
        self._held = held
        self._values = values
        self._identity = list(identity)
        self._last = LastChanges(identity)
        self._places: dict[Partition, int] = {}
        self._compacted: dict[Partition, bool] = {}

    def lowest(self, bound: Bounds) -> int | None:
        rows = self._held.rows({bound.label: 0})
        if rows is None:
            return None
        at = rows.filter((pc.field(PLACE) == 0) & (pc.field(OFFSET) >= bound.start)).column(OFFSET)
        found: int | None = pc.min(at).as_py()
        return found

    def concerned(self, bound: Bounds, first: int, end: int) -> bool:
        del bound, first, end
        return False

    def judge(self, stretch: Stretch) -> Offsets:
        changes = stretch.fates.changes.get(self.name)
        if changes is not None and changes.num_rows:
            offsets = stretch.fates.offsets[stretch.fates.lands[self.name]]
            deleted = np.asarray(pc.equal(changes.column(OPERATION), DELETE).to_numpy(), np.bool_)
            self._last.add(changes.select(self._identity), self._place(stretch.bound), offsets, deleted)
            if self._values is not None:
                self._values.compare(self.name, stretch.bound, stretch.first, stretch.end, stretch.fates)
        return np.empty(0, np.int64)

    def close(self, bound: Bounds, *, compacted: bool) -> None:
        self._place(bound)
        self._compacted[bound.label] = compacted

    def report(self, bounds: Sequence[Bounds], later: Later) -> TableReport:
        held, last = self._held.rows(self._places), self._last.table()
        judged = self._judged(bounds, last, held, None)
        if Fault.MISSING in judged.faults:
            judged = self._judged(bounds, last, held, self._deleted(later(self.name)))
        doubled = self._held.doubled()
        reports = tuple(self._partition(each, judged) for each in bounds)
        for bound, report in zip(bounds, reports, strict=True):
            report.doubled = tuple(file.path for file in doubled if file.holds(bound.label))
            if self._values is not None:
                self._values.note(bound, report)
        return TableReport(
            self.name,
            reports,
            doubled=doubled,
            notes=(*self._held.notes(), *self._notes(judged)),
            as_of=self._held.as_of(),
            keys=tuple(self._faults(judged)),
            changes=self._last.changes,
            compared=self._values.compared if self._values is not None else None,
        )

    def _judged(
        self, bounds: Sequence[Bounds], last: pa.Table | None, held: pa.Table | None, later: pa.Table | None
    ) -> JudgedKeys:
        known = held if held is not None else last
        if known is None:
            known = pa.table({name: pa.array([], pa.int64()) for name in self._identity})
        keys = known.schema.empty_table().select(self._identity)
        none = pa.array([], pa.int64())
        ordered = sorted(bounds, key=lambda each: self._places[each.label])
        limits = Limits(
            np.array([each.start for each in ordered]),
            np.array([each.end for each in ordered]),
            np.array([self._compacted[each.label] for each in ordered]),
        )
        return judge_keys(
            self._identity,
            last if last is not None else keys.append_column(PLACE, none).append_column(LAST, none),
            held if held is not None else keys.append_column(PLACE, none).append_column(OFFSET, none),
            later if later is not None else keys,
            limits,
        )

    def _deleted(self, later: pa.Table | None) -> pa.Table | None:
        if later is None:
            return None
        return plain(later.filter(pc.equal(later.column(OPERATION), DELETE)).select(self._identity))

    def _partition(self, bound: Bounds, judged: JudgedKeys) -> PartitionReport:
        place = self._places[bound.label]
        report = PartitionReport(bound.partition, bound.label.topic, bound.start, bound.end)
        for name in ("expected", "landed", "in_flight", "before", "vanished"):
            setattr(report, name, int(getattr(judged, name)[place]))
        for fault, faulty in judged.faults.items():
            report.note(fault, Place.TARGET, np.unique(faulty.offsets[faulty.places == place]))
        return report

    def _notes(self, judged: JudgedKeys) -> list[str]:
        found = []
        if judged.scattered:
            found.append(
                f"{self.name}: {judged.scattered} keys have changes in several partitions, which have no order among "
                "them: the last change of any of these was taken."
            )
        if judged.without:
            found.append(f"{self.name}: {judged.without} rows are not of these topics and were not judged.")
        return found

    def _faults(self, judged: JudgedKeys) -> list[KeyFault]:
        partitions = {place: partition for partition, place in self._places.items()}
        found = []
        for fault, faulty in judged.faults.items():
            faults = zip(faulty.places.tolist(), faulty.offsets.tolist(), faulty.keys.tolist(), strict=True)
            for place, offset, key in list(faults)[:LISTED]:
                (row,) = judged.keys.slice(key, 1).to_pylist()
                found.append(KeyFault(fault, row, partitions.get(place), offset))
        return found

    def _place(self, bound: Bounds) -> int:
        return self._places.setdefault(bound.label, len(self._places))
