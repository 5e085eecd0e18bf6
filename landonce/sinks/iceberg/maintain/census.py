"""What compaction would find: small files, deletes, manifests. Without Spark, so that it is only started where it pays."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.table import Table

from landonce.config.secrets import redact
from landonce.errors import TargetUnavailable

_TARGET, _DEFAULT_TARGET = "write.target-file-size-bytes", 512 * 2**20
_SMALL, _LARGE, _ENOUGH = 0.75, 1.8, 5
"""Iceberg's own: files outside of this range, of the target size, are rewritten, if there are enough of them."""
_MANIFESTS, _MANIFEST_BYTES = 100, 4 * 2**20
"""Manifests are worth rewriting beyond so many, if they are smaller than this on average."""

Sizes = Mapping[object, Iterable[int]]
"""The sizes of data files, by partition."""


@dataclass(frozen=True)
class Census:
    """One branch as it is now."""

    files: int = 0
    small: int = 0
    """Those that a compaction would write anew."""
    deletes: int = 0
    """Files of position deletes."""
    vectors: int = 0
    """Deletion vectors, and deletes by value, which go when the files that they speak of are written anew."""
    manifests: int = 0
    manifest_bytes: int = 0

    @property
    def many_manifests(self) -> bool:
        return self.manifests > _MANIFESTS and self.manifest_bytes < self.manifests * _MANIFEST_BYTES


def census(table: Table, branch: str, target: int | None) -> Census:
    """Reads the manifests of the branch's head."""
    head = table.metadata.snapshot_by_name(branch)
    if head is None:
        return Census()
    sizes: dict[object, list[int]] = defaultdict(list)
    manifests, deletes, vectors = [], 0, 0
    try:
        manifests = head.manifests(table.io)
        for manifest in manifests:
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                file = entry.data_file
                if file.content is DataFileContent.DATA:
                    same = manifest.partition_spec_id == table.spec().spec_id
                    sizes[file.partition if same else None].append(file.file_size_in_bytes)
                elif file.content is DataFileContent.POSITION_DELETES and file.file_format is not FileFormat.PUFFIN:
                    deletes += 1
                else:
                    vectors += 1
    except (OSError, ValueError) as error:
        raise TargetUnavailable(f"the table's manifests cannot be read: {redact(str(error))}") from None
    return Census(
        files=sum(map(len, sizes.values())),
        small=worth_rewriting(sizes, target or int(table.properties.get(_TARGET, _DEFAULT_TARGET))),
        deletes=deletes,
        vectors=vectors,
        manifests=len(manifests),
        manifest_bytes=sum(each.manifest_length for each in manifests),
    )


def worth_rewriting(sizes: Sizes, target: int) -> int:
    """How many files Iceberg's bin packing would take up: those of the wrong size, where a partition has enough of them."""
    count = 0
    for partition in sizes.values():
        wrong = [each for each in partition if not _SMALL * target <= each <= _LARGE * target]
        several = len(wrong) >= _ENOUGH or (len(wrong) > 1 and sum(wrong) > target)
        count += len(wrong) if several or sum(wrong) > _LARGE * target else 0
    return count
