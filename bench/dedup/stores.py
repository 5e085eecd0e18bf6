"""Stores that hold keys already: filled once through landonce's own comparison and commit, then copied for every run."""

from __future__ import annotations

import shutil
import uuid
from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psycopg

from landonce.dedup.chunks import opened
from landonce.dedup.comparing import AcceptRecipe, Joining, LabelledPartition, Share
from landonce.dedup.runs import Halves, slices_of_shards
from landonce.dedup.store import Acceptance
from landonce.local.postgres import LocalPostgres
from landonce.protocol.ledger import LedgerState
from landonce.protocol.marks import Mark

_AT_ONCE = 1_000_000
_PIPELINE = "filled"


def fill(recipe: AcceptRecipe, keys: int, now: int) -> None:
    """Random keys, in batches, with the runs and merges that as many events would have left."""
    store, dice = opened(recipe.place), np.random.default_rng(20261118)
    for number, first in enumerate(range(0, keys, _AT_ONCE)):
        count = min(_AT_ONCE, keys - first)
        hi = np.sort(dice.integers(0, 2**64, count, np.uint64))
        lo = dice.integers(0, 2**64, count, np.uint64)
        parts = {
            shard: [_share(hi[part], lo[part], np.arange(first + part.start, first + part.stop))]
            for shard, part in enumerate(slices_of_shards(hi, recipe.shards))
        }
        joined = Joining(recipe, now).join(parts)
        mark = Mark(LedgerState(_PIPELINE, lineage=uuid.UUID(int=0).hex, batch=number + 1))
        added = Acceptance(joined.seen, tuple(joined.runs), tuple(joined.merged))
        if not store.commit(_PIPELINE, number, mark, added):
            raise RuntimeError("the keys could not be committed")
        store.forget_runs(joined.merged)


def _share(hi: Halves, lo: Halves, offsets: npt.NDArray[np.int64]) -> Share:
    zeros = np.zeros(len(hi), np.int32)
    return Share(
        block=0,
        attempt="",
        places=(LabelledPartition("filled", 0),),
        hi=hi,
        lo=lo,
        timestamps=offsets,
        place=zeros,
        offsets=offsets,
        rows=zeros,
    )


class Stores(ABC):
    """Stores of one kind of database."""

    @abstractmethod
    def section(self, name: str) -> str:
        """What the pipeline file says of the store of this name."""

    @abstractmethod
    def copy(self, template: str, name: str) -> None: ...

    @abstractmethod
    def drop(self, name: str) -> None: ...

    @abstractmethod
    def size(self, name: str) -> int:
        """Bytes on disk."""


class SqliteStores(Stores):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def section(self, name: str) -> str:
        return f"sqlite: {self._path(name)}"

    def copy(self, template: str, name: str) -> None:
        shutil.copyfile(self._path(template), self._path(name))

    def drop(self, name: str) -> None:
        self._path(name).unlink()

    def size(self, name: str) -> int:
        return self._path(name).stat().st_size

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.db"


class PostgresStores(Stores):
    """A database each."""

    def __init__(self, server: LocalPostgres) -> None:
        self._url = server.url.rpartition("/")[0]

    def section(self, name: str) -> str:
        if not self._ask("SELECT 1 FROM pg_database WHERE datname = %s", name):
            self._do(f"CREATE DATABASE {name}")
        return f'postgres: "{self._url}/{name}"'

    def copy(self, template: str, name: str) -> None:
        self._do(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{template}'")
        self._do(f"CREATE DATABASE {name} TEMPLATE {template}")
        self._do("CHECKPOINT")  # so that the server has handed all of it to the system

    def drop(self, name: str) -> None:
        self._do(f"DROP DATABASE {name} WITH (FORCE)")

    def size(self, name: str) -> int:
        return int(self._ask("SELECT pg_database_size(%s)", name)[0][0])

    def _do(self, statement: str) -> None:
        with self._connect() as connection:
            connection.execute(statement)

    def _ask(self, query: str, value: str) -> list[tuple[int]]:
        with self._connect() as connection:
            return connection.execute(query, (value,)).fetchall()

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(f"{self._url.replace('+psycopg', '')}/postgres", autocommit=True)
