"""What a Spark task does with one block: read, decode, write files, account.

Files count only once the driver has committed them, so a task that Spark runs again simply writes others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
from confluent_kafka import Message

from landonce.engine.conform import chosen, conform, misfit
from landonce.engine.land import failed
from landonce.engine.letters import stage_letters
from landonce.engine.task import ReadAccount, read_block
from landonce.errors import LandonceError
from landonce.failpoints import reach
from landonce.protocol.blocks import Kind
from landonce.protocol.ranges import Partition, topics_of
from landonce.protocol.reasons import counted
from landonce.protocol.receipt import BlockResult, Fate, Receipt
from landonce.read.block import ReadBlock, Reader
from landonce.read.decoders import Decode, Decoded, decoder_of
from landonce.read.route import Routed, routes
from landonce.read.rows import NOWHERE, from_floors, highest_offsets, records_of
from landonce.sinks.contract import COORDINATES
from landonce.sinks.iceberg.coordinates import renamed
from landonce.sinks.iceberg.evolve import unknown_fields
from landonce.sinks.iceberg.files import write_files
from landonce.sinks.iceberg.limits import Limit, beyond
from landonce.sinks.iceberg.naming import Origin
from landonce.sinks.iceberg.recipe import FileRecipe, FileTask, TableRecipe, Wants


def work(recipe: FileRecipe, task: FileTask) -> BlockResult:
    """One block, from Kafka to files."""
    try:
        block = read_block(reader_of(recipe, task), recipe, task)
        wants = _wants(recipe, block) if not task.final else ()
        if wants:
            return BlockResult(task.index, Fate.WAITING, wants=wants)
        return deliver(recipe, task, {name: block.rows(name) for name in block.tables}, block)
    except Exception as error:
        return failed(task, error)


def deliver(
    recipe: FileRecipe,
    task: FileTask,
    rows: Mapping[str, pa.Table],
    block: ReadBlock,
) -> BlockResult:
    """Stages dead letters, writes the files, and writes the receipt. What landed is what the files say that they hold, so that a row
    which got lost on the way leaves the account unbalanced."""
    letters = stage_letters(recipe, task, block.rejected, block.messages)
    reach("stage.after")
    tables = recipe.by_name()
    origin = Origin(recipe.pipeline, task.epoch, task.batch, task.block.number)
    files, landed = [], block.held - block.shared
    for name in sorted(rows):
        written, count = _write(tables[name], rows[name], origin)
        files.append((name, written))
        landed += count - (rows[name].num_rows - records_of(rows[name]) if recipe.changes is not None else 0)
    reach("files.after")
    receipt = Receipt(
        read=block.read,
        landed=landed,
        filtered=block.filtered,
        dead_lettered=len(block.rejected),
        dead_letters=letters,
        reasons=counted(each.reason for each in block.rejected),
        bytes_read=block.bytes_read,
        files=tuple(files),
        tops=tuple((name, tuple(sorted(tops.items()))) for name, tops in sorted(block.tops.items())),
        latest=tuple(sorted(block.latest.items())),
    )
    return BlockResult(task.index, Fate.LANDED, receipt)


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


def write_half(recipe: FileRecipe, task: FileTask, rows: pa.Table, told: ReadAccount | LandonceError) -> BlockResult:
    """The rows of one block that expressions were evaluated on: routed by a column, made to fit each table, and written."""
    try:
        if isinstance(told, LandonceError):
            raise told
        kept = chosen(rows)
        block = ReadBlock(read=told.read, filtered=rows.num_rows - kept.num_rows, bytes_read=told.bytes_read)
        block.rejected, block.latest = list(told.rejected), dict(told.latest)
        found = _routed(recipe, kept)
        unknown = found.tables.keys() - recipe.by_name().keys() - dict(recipe.absent).keys()
        if unknown and not task.final:
            return BlockResult(task.index, Fate.WAITING, wants=tuple(Wants(name) for name in sorted(unknown)))
        return deliver(recipe, task, shaped(recipe, task, kept, found, block), block)
    except Exception as error:
        return failed(task, error)


def _routed(recipe: FileRecipe, rows: pa.Table) -> Routed:
    by = recipe.routing.field
    return routes(recipe.routing, rows.column(by).cast(pa.string()) if by is not None else pa.nulls(rows.num_rows))


def shaped(recipe: FileRecipe, task: FileTask, rows: pa.Table, found: Routed, block: ReadBlock) -> dict[str, pa.Table]:
    """Rows per table. One that does not fit a table is in none of its tables, and is rejected."""
    bad = {each.index: each.reason for each in found.rejects}
    routed = {name: np.asarray(places.to_numpy(), np.int64) for name, places in found.tables.items()}
    tables, fitted = recipe.by_name(), {}
    others = others_of(task)
    for name, places in routed.items():
        if name in others:
            continue
        if name not in tables:
            reason = dict(recipe.absent).get(name, f"there is no table {name}")
            bad.update({int(at): reason for at in places})
            continue
        fitting, misfits = conform(rows.take(pa.array(places)), tables[name].schema, COORDINATES)
        lost = [at for at, _ in misfits]
        bad.update({int(places[at]): reason for at, reason in misfits})
        left = np.delete(places, lost)
        bad.update({int(left[at]): reason for at, reason in beyond(tables[name].limits, fitting).items()})
        fitted[name] = (fitting, left)
    block.rejected += [misfit(dict(task.labels), rows, at, reason) for at, reason in sorted(bad.items())]
    elsewhere = [places for name, places in routed.items() if name in others]
    block.tally(rows.num_rows, [places for _, places in fitted.values()], elsewhere, bad)
    floors = {name: floors_of(each, task) for name, each in task.floors}
    labels = dict(task.labels)
    result = {}
    for name, (fitting, places) in fitted.items():
        good = fitting.filter(pa.array(~np.isin(places, list(bad)))) if bad else fitting
        kept = from_floors(good, floors.get(name, {}), labels)
        block.held += good.num_rows - kept.num_rows
        if kept.num_rows:
            result[name] = kept
            block.tops[name] = highest_offsets(kept, topics_of(labels))
    return result


def reader_of(recipe: FileRecipe, task: FileTask) -> Reader:
    """How this block's records are sorted to tables. What is delivered again is judged only by the tables that get it."""
    others = others_of(task)
    return Reader(
        routing=recipe.routing,
        decoders={
            each.name: _within(
                each.limits,
                decoder_of(each.schema, each.identity, recipe.changes, max_record_bytes=recipe.max_record_bytes),
            )
            for each in recipe.tables
            if each.name not in others
        },
        floors={name: floors_of(floors, task) for name, floors in task.floors},
        asking=not task.final,
        others=others,
        absent=dict(recipe.absent),
        payloads=recipe.evolve and not task.final,
        timestamps=True,
    )


def _within(limits: tuple[Limit, ...], decode: Decode) -> Decode:
    """A record whose row has no partition is rejected like one that does not fit its columns."""

    def decode_within(values: pa.BinaryArray, messages: list[Message]) -> Decoded:
        rows = decode(values, messages)
        found = beyond(limits, rows.table)
        return replace(rows, rejects=(*rows.rejects, *((int(rows.kept[at]), reason) for at, reason in found.items())))

    return decode_within if limits else decode


def others_of(task: FileTask) -> frozenset[str]:
    """Tables that have nothing to do with the block."""
    if task.kind is not Kind.REPLAY:
        return frozenset()
    return frozenset(name for name, floors in task.floors if floors is None)


def floors_of(floors: tuple[tuple[Partition, int], ...] | None, task: FileTask) -> dict[Partition, int]:
    if floors is None:
        return {each.partition: NOWHERE for each in task.block.ranges}
    return dict(floors)


def _wants(recipe: FileRecipe, block: ReadBlock) -> tuple[Wants, ...]:
    wants = [Wants(table, tuple(sample)) for table, sample in sorted(block.missing.items())]
    tables = recipe.by_name()
    for name, payloads in sorted(block.payloads.items()):
        evolution = unknown_fields(pa.concat_arrays(payloads), tables[name].schema, identity=tables[name].identity)
        if evolution:
            wants.append(Wants(name, evolution=evolution))
    return tuple(wants)
