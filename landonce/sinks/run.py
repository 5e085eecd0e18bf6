"""What a sink gets that is opened on the driver: which rows are to come, the ledger, and what only the engine can do.

A `Run` comes from a pipeline file (`run_of`, completed by `engine.pipeline`) or from a user's own query (`query`). What a sink makes of it
is an `OpenSink`, in its folder's `driver.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
from typing_extensions import Never

from landonce.errors import ConfigError, Halt, TableUnfit
from landonce.protocol import query_refusals
from landonce.protocol.ledger import Ledger
from landonce.read.schema.ddl import UnfitFields
from landonce.read.schema.fields import Field, Schema, as_declared
from landonce.read.schema.values import can_fit
from landonce.sinks.contract import COORDINATES, Finding, Level, Sink
from landonce.sinks.declared import declared_schema
from landonce.sinks.worker import AnyRecipe, Basics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from landonce.sinks.parts import Parts

Columns = Callable[[], Schema]
"""The columns of a table that is to be made. With `select`, only Spark can say them, and is started for it."""
NOTHING_DONE = "Nothing was read or written."
CAST_SELECTED = "cast them in `transform.select` of {file}, for example `CAST(total AS STRING) AS total`"
CORRECT_CONVERT = "correct `convert` in {file}"


class RowExpressions(Protocol):
    """`select` and `where`, and what they start from."""

    @property
    def source(self) -> Schema: ...
    @property
    def select(self) -> tuple[str, ...]: ...
    @property
    def where(self) -> str | None: ...


class Expressions(RowExpressions, Protocol):
    """As much of a recipe as they can be examined with."""

    @property
    def target(self) -> Schema: ...
    @property
    def transforms(self) -> bool: ...


@dataclass(frozen=True)
class SourceAndTarget:
    """Expressions where there is no table yet."""

    source: Schema
    target: Schema
    select: tuple[str, ...]
    where: str | None = None
    transforms: bool = True


def _no_session() -> Never:
    raise RuntimeError("this run has no Spark session")


def _not_examined(expressions: Expressions) -> None:
    """Commands that only look at a pipeline examine its expressions themselves."""


@dataclass(frozen=True)
class Run:
    """One run of a pipeline, or of a user's own query."""

    name: str
    """Of the pipeline."""
    ledger: Ledger
    basics: Basics
    """What every recipe says, whatever the sink."""
    parts: Parts | None = None
    """The pipeline's ends; None where a query runs."""
    topics: Callable[[], tuple[str, ...]] = tuple
    """Of the pipeline: by name."""
    declared: Schema | None = None
    """The fields of the records, as the file declares them."""
    query: pa.Schema | None = None
    """What a user's own query gives, or a push. None: records come from Kafka, and the file says what becomes of them."""
    pushed: bool = False
    """These rows come from a program's own pushes, and not from a query."""
    remote: bool = False
    """Workers run on other machines."""
    one_process: bool = True
    """All tasks of a query run in the driver's own JVM: no executor is ever lost alone."""
    session: Callable[[], SparkSession] = _no_session
    """Starts Spark when it is first asked for."""
    examine: Callable[[Expressions], None] = _not_examined
    """Raises what is wrong with `select` and `where`. Starts Spark, if there are such."""
    select_columns: Callable[[], Schema] = _no_session
    """What `select` makes of the declared fields. Starts Spark."""
    sample: Callable[[Callable[[Schema], object], Callable[[Schema], Schema]], Schema] | None = None
    """The columns of some records that are in the topics: see `columns`."""
    tell: Callable[[str], None] = lambda _: None
    """Of what a person should know while the run goes on."""

    @property
    def selects(self) -> bool:
        """`select` makes the columns."""
        return bool(self.basics["select"])

    @property
    def let_create(self) -> str:
        """How a user lets landonce make what is not there."""
        return "set `create: true` in {file}" if self.query is None else "set `create=True`"

    @property
    def landing(self) -> Schema | None:
        """What is known of the rows that land, before the table is asked."""
        if self.query is not None:
            return query_columns(self.query, self.misfit)
        return None if self.selects else self.declared

    @property
    def selected_from(self) -> Schema:
        """What expressions start from: neither a table nor a sample says what else a record may hold."""
        if self.declared is None:
            raise ConfigError(
                "transform.select: the table's columns do not describe the records; declare `source.kafka.schema`."
            )
        return self.declared

    def columns(
        self, usable: Callable[[Schema], object], tidy: Callable[[Schema], Schema] = lambda sampled: sampled
    ) -> Columns:
        """Of a table that is to be made: the declared fields, or those of a sample; with `select`, what it makes of them.

        What is known before Spark starts must be `usable`, which raises otherwise: nobody waits for Spark to hear it. `tidy`: what
        becomes of a sample.
        """
        if self.selects:
            return lambda: self._made_usable(self.select_columns(), usable)
        made = self.landing
        if made is not None:
            self._made_usable(made, usable)
        elif self.sample is not None:
            made = self.sample(usable, tidy)
        else:
            raise ConfigError("source.kafka.schema: is missing, and there are no records to look at.")
        found = made
        return lambda: found

    def _made_usable(self, made: Schema, usable: Callable[[Schema], object]) -> Schema:
        """Raises what to change where the columns are not those of `source.kafka.schema`."""
        try:
            usable(made)
        except UnfitFields as unfit:
            if self.query is not None:
                raise self.misfit(unfit.what, "give these columns other types, or leave them out", unfit.safe) from None
            if self.selects:
                raise ConfigError(unfit.what, safe=unfit.safe, command=CAST_SELECTED) from None
            raise
        return made

    def source(self, table: Schema) -> Schema:
        """What a record is decoded to. The table decides the types, a declaration which fields there are and must be. Rows of a
        query are of the table's types already, or become so."""
        if self.query is not None:
            return table
        return self.selected_from if self.selects else declared_in(self.declared, table)

    @property
    def misfit(self) -> Callable[..., Halt]:
        """Makes the error for rows that do not fit: it says who brings them."""
        return query_refusals.push if self.pushed else query_refusals.query

    def refuse_misfits(self, target: Schema, table: str) -> None:
        """Raises where a query gives columns that the table does not take. A value may turn out not to fit, which stops the query; a type
        that never fits is a mistake in it."""
        if self.query is None:
            return
        known = target.by_name()
        given = [name for name in self.query.names if name not in COORDINATES]
        unknown = [name for name in given if name not in known]
        if unknown:
            raise self.misfit(
                f"{table} has no column {', '.join(map(repr, unknown))}; it has {', '.join(known)}",
                "select what the table takes, under the names of its columns, beside topic, partition and offset",
            )
        missing = [name for name, each in known.items() if each.required and name not in given]
        if missing:
            raise self.misfit(f"its rows lack {', '.join(missing)}, which {table} requires")
        for name in given:
            type_ = self.query.field(name).type
            if not can_fit(type_, known[name]):
                raise self.misfit(
                    f"column {name!r} is of type {type_}, which that of {table} ({known[name].type}) cannot take"
                )


@dataclass(frozen=True)
class SparkNeeds:
    """What a sink needs of the Spark session of its run."""

    modules: tuple[str, ...] = ()
    """What workers run. It is loaded once for all workers of this machine."""
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)
    plans: bool = False
    """Spark evaluates something itself. Otherwise it only passes tasks on, and starts faster."""


class OpenSink(ABC):
    """A sink, opened on the driver for one run. It is not kept across processes.

    The engine calls, in this order: `start`, `columns_to_make`, `spark`, `make_ready`; then the performer of the sink's kind; then `close`.
    Until `make_ready` nothing is changed outside.
    """

    recipe: AnyRecipe
    """What workers get, once `make_ready` was called. It changes when tables are made or their columns are."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def start(self) -> None:  # noqa: B027  most sinks have nothing to do here
        """Opens what is there. Raises what can be refused before anything else is asked."""

    def columns_to_make(self) -> Columns | None:
        """The columns of what is to be made: None if everything is there, or nothing may be made."""
        return None

    def spark(self) -> SparkNeeds:
        return SparkNeeds()

    @abstractmethod
    def make_ready(self, columns: Columns | None) -> None:
        """Makes what is to be made, refuses what does not hold the guarantee, and sets `recipe`. Harmless if it is called again."""

    def examine(self) -> None:
        """Raises what is wrong with the expressions, once there is a session. Called before any plan is made."""
        self.run.examine(self.recipe)

    def close(self) -> None:  # noqa: B027  most sinks keep nothing open
        """Gives connections back."""


def run_of(parts: Parts, *, remote: bool = False) -> Run:
    """A pipeline's run as far as its file says it: without Spark."""
    config = parts.config
    return Run(
        name=config.pipeline,
        ledger=parts.ledger,
        basics=Basics(
            pipeline=config.pipeline,
            records=parts.records,
            dead_letters=config.dead_letters.path,
            halts=config.dead_letters.on_bad == "halt",
            decoding=parts.decoding,
            block_bytes=config.batch.block_bytes,
            select=config.transform.select,
            where=config.transform.where,
            shuffled=False,
        ),
        topics=parts.topics,
        parts=parts,
        declared=declared_schema(config),
        remote=remote,
    )


def plan_fingerprint(sink: Sink, recipe: AnyRecipe) -> str:
    """What a plan carries of the recipe that it was made with. Where blocks are stored before they are sent, the recipe may change."""
    return sink.identity if recipe.records.freezes else recipe.fingerprint()


def query_columns(given: pa.Schema, misfit: Callable[..., Halt] = query_refusals.query) -> Schema:
    """What a query or a push gives beside the coordinates, as columns of a table."""
    fields = [Field(each.name, each.type, required=not each.nullable) for each in given if each.name not in COORDINATES]
    if not fields:
        raise misfit("its rows hold nothing but coordinates")
    return Schema(tuple(fields))


def refuse_unfit(findings: Iterable[Finding], safe: str = NOTHING_DONE) -> None:
    """The table holds the guarantee, or nothing starts."""
    refused = [finding for finding in findings if finding.level is Level.REFUSED]
    if refused:
        raise TableUnfit(
            "\n".join(finding.what for finding in refused),
            safe=safe,
            command="\n  ".join(finding.change for finding in refused if finding.change),
        )


def refuse_conversions(recipe: AnyRecipe) -> None:
    """Raises for conversions of fields that records do not have, as far as it is known which they have."""
    mistakes = [*recipe.decoding.convert.mistakes(recipe.source)] if recipe.describes_records else []
    if mistakes:
        raise ConfigError(f"source.kafka.convert: {'; '.join(mistakes)}.", safe=NOTHING_DONE, command=CORRECT_CONVERT)


def declared_in(declared: Schema | None, table: Schema) -> Schema:
    """The declared fields in the table's types. The table decides the types, the declaration which fields there are and must be."""
    if declared is None:
        return table
    columns = table.by_name()
    unknown = [each.name for each in declared.fields if each.name not in columns]
    if unknown:
        raise ConfigError(f"source.kafka.schema: the table has no column {', '.join(map(repr, unknown))}.")
    missing = [name for name, each in columns.items() if each.required and name not in declared.by_name()]
    if missing:
        raise ConfigError(f"source.kafka.schema: lacks {', '.join(map(repr, missing))}, which the table requires.")

    def merged(field: Field) -> Field:
        column = columns[field.name]
        scale = field.scale if column.scale is not None else None
        type_ = as_declared(column.type, field.type, required=True)
        return replace(column, type=type_, required=field.required or column.required, scale=scale)

    return Schema(tuple(map(merged, declared.fields)))
