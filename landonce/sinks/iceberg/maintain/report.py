"""What was done to a table, or would be: in words, and as a document."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from landonce.sinks.iceberg.maintain.compact import Compacted
from landonce.sinks.iceberg.maintain.expire import Removal

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


@dataclass(frozen=True)
class Deleted:
    """Files that are gone."""

    files: int = 0
    bytes: int = 0
    failed: int = 0
    """Files that the storage did not delete. The next run finds them again if landonce named them."""


@dataclass(frozen=True)
class TableReport:
    """One table."""

    table: str
    dry: bool = False
    candidates: int = 0
    """Files that compaction rewrote, or would."""
    compacted: Compacted = field(default_factory=Compacted)
    removed: Removal = field(default_factory=Removal)
    expired: Deleted = field(default_factory=Deleted)
    orphans: Deleted = field(default_factory=Deleted)
    waiting: int = 0
    """Files that no snapshot names and that may be in flight."""
    notes: tuple[str, ...] = ()
    error: str = ""
    """Why the table was left as it is."""
    exit_code: int = 0

    def lines(self) -> list[str]:
        return lines(self)

    def to_dict(self) -> dict[str, Any]:
        made, expiry = self.compacted, self.removed.expiry
        return {
            "table": self.table,
            "compaction": {
                "candidates": self.candidates,
                "rewritten_files": made.rewritten,
                "rewritten_bytes": made.bytes,
                "added_files": made.added,
                "rewritten_delete_files": made.deletes,
                "rewritten_manifests": made.manifests,
            },
            "expiry": {
                "snapshots": len(expiry.ids),
                "deleted_files": self.expired.files,
                "deleted_bytes": self.expired.bytes,
                "kept_for_positions": expiry.for_positions,
                "positions_of": list(expiry.pipelines),
            },
            "orphans": {
                "deleted_files": self.orphans.files,
                "deleted_bytes": self.orphans.bytes,
                "perhaps_in_flight": self.waiting,
                "staging_branches": len(self.removed.branches),
            },
            "not_deleted": self.expired.failed + self.orphans.failed,
            "notes": [*made.notes, *self.notes],
            "error": self.error,
        }


def lines(report: TableReport) -> list[str]:
    """For people: a line for each thing that was done, or would be."""
    if report.error:
        return [f"left as it is: {report.error}"]
    sentences = [_compaction(report), _expiry(report), _orphans(report)]
    failed = report.expired.failed + report.orphans.failed
    notes = [*report.compacted.notes, *report.notes]
    if failed:
        notes.append(f"the storage did not delete {failed} files")
    return [*filter(None, sentences), *(f"note: {each}" for each in notes)] or ["nothing to do"]


def _compaction(report: TableReport) -> str:
    made = report.compacted
    if report.dry:
        return f"compaction would look at {report.candidates} files" if report.candidates else ""
    parts = []
    if made.rewritten:
        parts.append(f"{made.rewritten} data files ({size(made.bytes)}) became {made.added}")
    if made.deletes:
        parts.append(f"{made.deletes} delete files were rewritten or dropped")
    if made.manifests:
        parts.append(f"{made.manifests} manifests were rewritten")
    return f"compacted: {', '.join(parts)}" if parts else ""


def _expiry(report: TableReport) -> str:
    expiry, gone = report.removed.expiry, report.expired
    text = ""
    if expiry.ids:
        would = "would expire" if report.dry else "expired"
        text = f"{would}: {len(expiry.ids)} snapshots, with {gone.files} files ({size(gone.bytes)})"
    if expiry.for_positions:
        whose = ", ".join(expiry.pipelines)
        kept = f"{expiry.for_positions} old snapshots are kept, for they lead to the position of {whose}"
        text = f"{text}; {kept}" if text else kept
    return text


def _orphans(report: TableReport) -> str:
    parts, gone = [], report.orphans
    if gone.files:
        parts.append(f"{gone.files} orphan files ({size(gone.bytes)})")
    if report.removed.branches:
        parts.append(f"{len(report.removed.branches)} staging branches")
    text = f"{'would delete' if report.dry else 'deleted'}: {' and '.join(parts)}" if parts else ""
    if report.waiting:
        text = "; ".join(filter(None, (text, f"{report.waiting} files may be in flight and stay")))
    return text


def size(count: int) -> str:
    """Bytes for people."""
    value, unit = float(count), 0
    while value >= 1000 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.0f} {_UNITS[unit]}" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"
