"""Compaction by Iceberg's own procedures, in Spark. Each of them makes commits of its own beside the pipeline's.

A census of small files, deletes and manifests comes first, without Spark: Spark is started only where compaction pays.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.table import Table
from pyspark.sql import Row, SparkSession

from landonce.config.secrets import redact
from landonce.errors import LandonceError, SparkLost, TargetUnavailable
from landonce.protocol.marks import Verdict
from landonce.read.schema.ddl import literal, quoted
from landonce.sinks.iceberg.catalog import CatalogSpec
from landonce.sinks.iceberg.commit import Attempt, TableBranch, by_pyiceberg
from landonce.sinks.iceberg.spark import in_session, own_session
from landonce.sinks.iceberg.table import live_files, whole_number

_TARGET, _DEFAULT_TARGET = "write.target-file-size-bytes", 512 * 2**20
_SMALL, _LARGE, _ENOUGH = 0.75, 1.8, 5
"""Iceberg's own limits: files outside this range of the target size are rewritten, if there are enough of them."""
_MANIFESTS, _MANIFEST_BYTES = 100, 4 * 2**20
"""More manifests than this are worth rewriting, if they are smaller than this on average."""
_MAIN = "main"


@dataclass(frozen=True)
class Census:
    """One branch as it is now."""

    files: int = 0
    small: int = 0
    """Those that a compaction would rewrite."""
    deletes: int = 0
    """Files of position deletes."""
    vectors: int = 0
    """Deletion vectors: they go when the files that they refer to are rewritten."""
    equality: int = 0
    """Files of equality deletes: they go when all files that they count for are rewritten."""
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
    manifests, deletes, vectors, equality = [], 0, 0, 0
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
                elif file.content is DataFileContent.POSITION_DELETES:
                    vectors += 1
                else:
                    equality += 1
    except (OSError, ValueError) as error:
        raise TargetUnavailable(f"the table's manifests cannot be read: {redact(str(error))}") from None
    return Census(
        files=sum(map(len, sizes.values())),
        small=worth_rewriting(sizes, target or whole_number(table.properties, _TARGET, _DEFAULT_TARGET)),
        deletes=deletes,
        vectors=vectors,
        equality=equality,
        manifests=len(manifests),
        manifest_bytes=sum(each.manifest_length for each in manifests),
    )


def worth_rewriting(sizes: Mapping[object, Iterable[int]], target: int) -> int:
    """How many files Iceberg's bin packing would rewrite: those of the wrong size, in partitions that have enough of them.

    `sizes`: those of the data files, by partition.
    """
    count = 0
    for partition in sizes.values():
        wrong = [each for each in partition if not _SMALL * target <= each <= _LARGE * target]
        several = len(wrong) >= _ENOUGH or (len(wrong) > 1 and sum(wrong) > target)
        count += len(wrong) if several or sum(wrong) > _LARGE * target else 0
    return count


@dataclass(frozen=True)
class Compacted:
    """The result of a compaction."""

    rewritten: int = 0
    """Data files that were replaced."""
    added: int = 0
    bytes: int = 0
    deletes: int = 0
    """Delete files that were replaced or dropped."""
    manifests: int = 0
    notes: tuple[str, ...] = ()
    """What was not done, and why."""

    def noting(self, *notes: str) -> Compacted:
        return replace(self, notes=(*self.notes, *notes))


def compact(
    session: SparkSession,
    spec: CatalogSpec,
    table: str,
    found: Census,
    branch: str = _MAIN,
    target: int | None = None,
    where: str = "",
) -> Compacted:
    """Rewrites data files, then position deletes, then manifests, as far as the census shows that it pays.

    A conflict with the pipeline costs some of the work and nothing else: data files are committed in parts, and a part that
    lost is rewritten the next time.
    """
    done = Compacted()
    with own_session(session, spec) as mine:

        def call(procedure: str, **arguments: str) -> Row:
            named = {"table": literal(quoted(*table.split("."))), **arguments}
            passed = ", ".join(f"{name} => {value}" for name, value in named.items())
            with in_session(mine, spec, table):
                return mine.sql(f"CALL {quoted(spec.name)}.system.{procedure}({passed})").collect()[0]

        try:
            if found.small or found.deletes or found.vectors or found.equality:
                result = call("rewrite_data_files", **_arguments(found, branch, target, where))
                done = Compacted(
                    result.rewritten_data_files_count,
                    result.added_data_files_count,
                    result.rewritten_bytes_count,
                    result.removed_delete_files_count,
                )
                failed = result.failed_data_files_count
                if failed:
                    done = done.noting(f"{failed} files were changed by others meanwhile: run it again")
            if branch != _MAIN:
                left = found.deletes > 1 or found.many_manifests
                note = "delete files and manifests are rewritten on the branch main only"
                return done.noting(note) if left else done
            if found.deletes > 1:
                result = call("rewrite_position_delete_files")
                done = replace(done, deletes=done.deletes + result.rewritten_delete_files_count)
            if found.many_manifests:
                done = replace(done, manifests=call("rewrite_manifests").rewritten_manifests_count)
        except CommitFailedException:
            return done.noting("other writers were faster every time: run it again")
        except SparkLost:
            raise
        except LandonceError as error:
            return done.noting(f"stopped: {error.what}")
    return done


def _arguments(found: Census, branch: str, target: int | None, where: str) -> dict[str, str]:
    options = {"partial-progress.enabled": "true"}
    if found.equality:  # Iceberg takes those of the whole table for dangling if it is partitioned; see `drop_dangling`
        options["delete-file-threshold"] = "1"
    elif found.deletes or found.vectors:
        options["remove-dangling-deletes"] = "true"
    if target is not None:
        options["target-file-size-bytes"] = str(target)
    arguments = {"options": f"map({', '.join(literal(each) for pair in options.items() for each in pair)})"}
    if where:
        arguments["where"] = literal(where)
    if branch != _MAIN:
        arguments["branch"] = literal(branch)
    return arguments


def dangling(table: Table, branch: str) -> frozenset[str]:
    """The paths of equality deletes that count for no row any more: every data file in their reach is as new as they are, or newer."""
    oldest: dict[object, int] = {}
    deletes: list[tuple[str, object, int]] = []
    for entry in live_files(table, branch):
        file, sequence = entry.data_file, entry.sequence_number or 0
        where = (file.spec_id, file.partition)
        if file.content is DataFileContent.DATA:
            for reach in (where, None):
                oldest[reach] = min(sequence, oldest.get(reach, sequence))
        elif file.content is DataFileContent.EQUALITY_DELETES:
            whole = table.specs()[file.spec_id].is_unpartitioned()
            deletes.append((file.file_path, None if whole else where, sequence))
    return frozenset(path for path, reach, sequence in deletes if sequence <= oldest.get(reach, sequence))


def drop_dangling(place: TableBranch) -> int:
    """Removes dangling equality deletes from the branch, and returns how many. A compaction leaves the newest ones. Spark's
    `remove-dangling-deletes` would also remove deletes of a whole partitioned table that still count.

    If a pipeline commits meanwhile, they are looked for again.
    """
    gone: frozenset[str] = frozenset()

    def step(table: Table) -> Attempt | Verdict:
        nonlocal gone
        gone = dangling(table, place.branch) if by_pyiceberg(table) else frozenset()
        return place.dropping(table, gone) if gone else Verdict.DONE

    place.commit(step)
    return len(gone)
