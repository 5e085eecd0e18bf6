"""Compaction by Iceberg's own procedures, in Spark. Each of them makes commits of its own beside the pipeline's."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyiceberg.exceptions import CommitFailedException
from pyspark.sql import Row, SparkSession

from landonce.errors import LandonceError, SparkLost
from landonce.sinks.iceberg.catalog import CatalogSpec
from landonce.sinks.iceberg.jvm import own_session, quoted, talking
from landonce.sinks.iceberg.maintain.census import Census

_MAIN = "main"


@dataclass(frozen=True)
class Wanted:
    """What to compact, and into what."""

    branch: str = _MAIN
    target: int | None = None
    where: str = ""


@dataclass(frozen=True)
class Compacted:
    """What became of it."""

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


def compact(session: SparkSession, spec: CatalogSpec, table: str, found: Census, wanted: Wanted) -> Compacted:
    """Data files, then position deletes, then manifests, where the census says that it pays.

    A conflict with the pipeline costs some of the work and nothing else: the data files are committed in parts, and what
    lost is rewritten the next time.
    """
    done = Compacted()
    with own_session(session, spec) as mine:
        try:
            if found.small or found.deletes or found.vectors:
                done = _data(_call(mine, spec, table, "rewrite_data_files", _arguments(found, wanted)))
            if wanted.branch != _MAIN:
                return (
                    done.noting("delete files and manifests are rewritten on the branch main only")
                    if (found.deletes > 1 or found.many_manifests)
                    else done
                )
            if found.deletes > 1:
                told = _call(mine, spec, table, "rewrite_position_delete_files")
                done = replace(done, deletes=done.deletes + told.rewritten_delete_files_count)
            if found.many_manifests:
                told = _call(mine, spec, table, "rewrite_manifests")
                done = replace(done, manifests=told.rewritten_manifests_count)
        except CommitFailedException:
            return done.noting("other writers were faster every time: run it again")
        except SparkLost:
            raise
        except LandonceError as error:
            return done.noting(f"stopped: {error.what}")
    return done


def _data(told: Row) -> Compacted:
    done = Compacted(
        told.rewritten_data_files_count,
        told.added_data_files_count,
        told.rewritten_bytes_count,
        told.removed_delete_files_count,
    )
    failed = told.failed_data_files_count
    return done.noting(f"{failed} files were changed by others meanwhile: run it again") if failed else done


def _arguments(found: Census, wanted: Wanted) -> dict[str, str]:
    options = {"partial-progress.enabled": "true"}
    if found.deletes or found.vectors:
        options["remove-dangling-deletes"] = "true"
    if wanted.target is not None:
        options["target-file-size-bytes"] = str(wanted.target)
    told = ", ".join(literal(each) for pair in options.items() for each in pair)
    arguments = {"options": f"map({told})"}
    if wanted.where:
        arguments["where"] = literal(wanted.where)
    if wanted.branch != _MAIN:
        arguments["branch"] = literal(wanted.branch)
    return arguments


def _call(
    session: SparkSession, spec: CatalogSpec, table: str, procedure: str, arguments: dict[str, str] | None = None
) -> Row:
    named = {"table": literal(quoted(*table.split("."))), **(arguments or {})}
    told = ", ".join(f"{name} => {value}" for name, value in named.items())
    with talking(session, spec, table):
        return session.sql(f"CALL {quoted(spec.name)}.system.{procedure}({told})").collect()[0]


def literal(text: str) -> str:
    """A string of Spark SQL, whatever it holds."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
