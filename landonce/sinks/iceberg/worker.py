"""The worker's part of Iceberg: it writes the files of one block.

Files count only once the driver has committed them, so a task that Spark runs again simply writes others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
from confluent_kafka import Message

from landonce.failpoints import reach
from landonce.protocol.blocks import Kind
from landonce.protocol.ranges import Partition
from landonce.protocol.receipt import BlockResult, Fate, Receipt
from landonce.read.block import ReadBlock, Reader
from landonce.read.decoders import Decode, Decoded, decode_by
from landonce.read.rows import NOWHERE, fit_to, records_of
from landonce.sinks.iceberg.coordinates import renamed
from landonce.sinks.iceberg.evolve import unknown_fields
from landonce.sinks.iceberg.files import write_files
from landonce.sinks.iceberg.limits import Limit, beyond
from landonce.sinks.iceberg.naming import Origin
from landonce.sinks.iceberg.recipe import FileRecipe, FileTask, TableRecipe, Wants
from landonce.sinks.worker import BlockWorker, Refuse


@dataclass(frozen=True)
class FileWorker(BlockWorker):
    """Writes the files of one block."""

    recipe: FileRecipe
    task: FileTask

    def reader(self) -> Reader:
        """What is delivered again is judged only by the tables that get it."""
        recipe, task, others = self.recipe, self.task, self._others
        tables = [each for each in recipe.tables if each.name not in others]
        return Reader(
            routing=recipe.routing,
            decoders={each.name: self._decoder(each) for each in tables},
            fits={each.name: fit_to(each.schema, partial(beyond, each.limits)) for each in tables},
            floors={name: self._floors(floors) for name, floors in task.floors},
            asking=not task.final,
            others=others,
            absent=dict(recipe.absent),
            payloads=recipe.evolve and not task.final,
            marks=True,
        )

    def wants(self, block: ReadBlock) -> tuple[Wants, ...] | None:
        """Tables that records name and that are not there, and columns that tables lack."""
        if self.task.final:
            return None
        wants = [Wants(table, tuple(sample)) for table, sample in sorted(block.missing.items())]
        tables = self.recipe.by_name()
        for name, payloads in sorted(block.payloads.items()):
            evolution = unknown_fields(pa.concat_arrays(payloads), tables[name].schema, identity=tables[name].identity)
            if evolution:
                wants.append(Wants(name, evolution=evolution))
        return tuple(wants) or None

    def write(self, block: ReadBlock, receipt: Receipt, refuse: Refuse | None) -> BlockResult:
        """What landed is what the files say that they hold, so that a row which got lost on the way leaves the account unbalanced."""
        del refuse
        recipe, task, tables = self.recipe, self.task, self.recipe.by_name()
        origin = Origin(recipe.pipeline, task.epoch, task.batch, task.block.number)
        files, landed = [], block.held - block.shared
        for name in sorted(block.tables):
            rows = block.rows(name)
            written, count = _write(tables[name], rows, origin)
            files.append((name, written))
            landed += count - (rows.num_rows - records_of(rows) if recipe.changes is not None else 0)
        reach("files.after")
        tops = tuple((name, tuple(sorted(each.items()))) for name, each in sorted(block.tops.items()))
        latest = tuple(sorted(block.latest.items()))
        landing = replace(receipt, landed=landed, files=tuple(files), tops=tops, latest=latest)
        return BlockResult(task.index, Fate.LANDED, landing)

    def _decoder(self, table: TableRecipe) -> Decode:
        recipe = self.recipe
        decode = decode_by(table.schema, table.identity, recipe.changes, max_record_bytes=recipe.max_record_bytes)
        return _within(table.limits, decode) if table.limits else decode

    @property
    def _others(self) -> frozenset[str]:
        """Tables that have nothing to do with the block."""
        if self.task.kind is not Kind.REPLAY:
            return frozenset()
        return frozenset(name for name, floors in self.task.floors if floors is None)

    def _floors(self, floors: tuple[tuple[Partition, int], ...] | None) -> dict[Partition, int]:
        if floors is None:
            return {each.partition: NOWHERE for each in self.task.block.ranges}
        return dict(floors)


def _write(table: TableRecipe, rows: pa.Table, origin: Origin) -> tuple[tuple[object, ...], int]:
    """The table's own files, or one that Spark reads, and how many rows they hold. A change needs its coordinates to be put in
    order."""
    named = renamed(rows)
    if table.scratch is not None:
        path, count = table.scratch.write(named, origin)
        return (path,), count
    assert table.shape is not None
    files = write_files(table.shape, named, origin)
    return files, sum(each.record_count for each in files)


def _within(limits: tuple[Limit, ...], decode: Decode) -> Decode:
    """A record whose row has no partition is rejected like one that does not fit its columns."""

    def decode_within(values: pa.BinaryArray, messages: list[Message]) -> Decoded:
        rows = decode(values, messages)
        found = beyond(limits, rows.table)
        return replace(rows, rejects=(*rows.rejects, *((int(rows.kept[at]), reason) for at, reason in found.items())))

    return decode_within
