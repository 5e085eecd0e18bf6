"""A pipeline of its own with a wrapped sink: its file, its topic, its target, its drivers, and the judge, who asks with plain SQL
or reads plain files."""

from __future__ import annotations

import fcntl
import json
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import oracle
from chain import Chain, Kill
from harness import PATIENCE, SCHEMA, DriverRun, Drivers, Feed, Home
from scene import Play, wait_for

from landonce.local import LocalKafka

_PIPELINE = Template("""\
pipeline: chaos
source:
  kafka: {bootstrap_servers: "$bootstrap", topics: [$topic], schema: "$schema"}
sink:
  wrapped: {sink: "$sink", options: {folder: "$folder"}}
ledger: {$ledger}
batch: {$batch}
dead_letters: {path: dead}
stall: 60s
spark: {master: "$master"}
""")
_EXAMPLES = Path(__file__).parents[2] / "examples" / "wrap"


@dataclass
class Wrapped(Play):
    """A pipeline whose target is a database, or files."""

    def landed(self) -> dict[str, list[oracle.Row]]:
        return {"events": [*self._in_database(), *self._in_files()]}

    def _in_database(self) -> list[oracle.Row]:
        return self.ask("SELECT * FROM events")

    def _in_files(self) -> list[oracle.Row]:
        found = []
        for path in (self.site.folder / "files").glob("[!.]*.jsonl"):
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            found += [(t["_topic"], t["_partition"], t["_offset"], t["id"], t["word"], t["amount"]) for t in rows]
        return found

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        return _ask(self.site.folder / "target.db", query)

    def blocks(self) -> list[tuple[Any, ...]]:
        """Of the pending plan: number, state, attempt."""
        return sorted(_ask(self.site.folder / "ledger", "SELECT number, state, attempt FROM landonce_push"))

    def complete(self) -> bool:
        return len(self.landed()["events"]) == len(self.due()["events"])

    def same_bytes(self) -> int:
        """Every attempt with a block got the same bytes; gives how many blocks were pushed more than once."""
        seen = self.ask("SELECT key, count(*), count(DISTINCT seen) FROM attempts GROUP BY key")
        assert all(kinds == 1 for _, _, kinds in seen), seen
        return sum(times > 1 for _, times, _ in seen)

    def an_hour_passes(self) -> None:
        """For the ledger: every attempt that is claimed can take effect no more. Only where none is under way."""
        older = "UPDATE landonce_push SET claimed_at = claimed_at - 3600000 WHERE state = 'CLAIMED'"
        path = self.site.folder / "ledger"
        if path.exists():
            with (
                closing(sqlite3.connect(path, timeout=60)) as connection,
                suppress(sqlite3.OperationalError),
                connection,
            ):
                connection.execute(older)

    def finish(self, run: DriverRun) -> int:
        """Its end, and its exit code. Attempts of which nobody hears are waited for in no time."""

        def ended() -> bool:
            self.an_hour_passes()
            return run.process.poll() is not None

        wait_for(ended, "the driver has ended", every=0.3, limit=PATIENCE)
        return run.finish()

    def fail(self, what: str) -> None:
        """The target goes wrong once."""
        (self.site.folder / what).touch()

    def traces(self) -> tuple[object, ...]:
        """Everything that a driver can change and that counts."""
        ledger = [_ask(self.site.folder / "ledger", f"SELECT * FROM landonce_{each}") for each in ("pipeline", "push")]
        letters = sorted((each.name, each.read_bytes()) for each in self.site.dead.glob("[!.]*.jsonl"))
        return (*ledger, sorted(self.landed()["events"], key=repr), letters)


class InFolder(Wrapped):
    """The same, with the position and the claims in the example's ledger: a file, as any other package may write it."""

    @property
    def _file(self) -> Path:
        return self.site.folder / "ledgers" / "chaos.json"

    def blocks(self) -> list[tuple[Any, ...]]:
        if not self._file.exists():
            return []
        state = json.loads(self._file.read_text().splitlines()[0])
        return sorted((row["number"], row["state"], row["attempt"]) for row in _claims(state).get("rows", []))

    def an_hour_passes(self) -> None:
        if self._file.exists():
            age_claims(self._file)

    def traces(self) -> tuple[object, ...]:
        letters = sorted((each.name, each.read_bytes()) for each in self.site.dead.glob("[!.]*.jsonl"))
        return self._file.read_text(), letters, sorted(self.landed()["events"], key=repr)


def age_claims(file: Path) -> None:
    """An hour passes for the attempts in an entry of the example's ledger: none is under way any more."""
    with (file.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        first, *notes = file.read_text().splitlines()
        state = json.loads(first)
        claims = _claims(state)
        for row in claims.get("rows", []):
            row["age"] += 3_600_000 * (row["state"] == "CLAIMED")
        if claims:
            labels = [*json.loads(state["labels"])[:-1], ["claims of blocks", json.dumps(claims)]]
            aside = file.with_suffix(".older")
            aside.write_text("\n".join([json.dumps({**state, "labels": json.dumps(labels)}), *notes]))
            aside.replace(file)


def _claims(state: dict[str, Any]) -> dict[str, Any]:
    """What landonce keeps beside a state."""
    found = dict(json.loads(state["labels"])).get("claims of blocks")
    return dict(json.loads(found)) if found else {}


class Aging(Chain):
    """Between two kills an hour passes, so that no start waits for an attempt of the one before; but for kills in that wait."""

    play: Wrapped

    def suffer(self, kills: list[Kill]) -> None:
        for kill in kills:
            self.play.feed.more(16, bad_every=5)
            waits = kill.place.startswith("await.")
            if not waits:
                self.play.an_hour_passes()
            run = self.play.drivers.start(kill.place, skip=kill.skip, once=kill.once)
            while waits and not run.reached.exists() and run.process.poll() is None:
                self._pass_time(run)
            run.wait_reached()
            run.kill()
            self.suffered(kill, run)

    def _pass_time(self, run: DriverRun) -> None:
        if "await" in run.steps():
            self.play.an_hour_passes()
        time.sleep(0.1)

    def settled(self) -> None:
        self.play.an_hour_passes()
        super().settled()


def _ask(path: Path, query: str) -> list[tuple[Any, ...]]:
    if not path.exists():
        return []
    with closing(sqlite3.connect(path, timeout=60)) as connection:
        try:
            return connection.execute(query).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return []
            raise


@contextmanager
def wrapped(
    folder: Path,
    kafka: LocalKafka,
    topic: str,
    sink: str = "wrapped_target:probing",
    *,
    partitions: int = 2,
    batch: str = "interval: 0s, max_rows: 600, block_rows: 300",
    master: str = "local[1]",
    drivers: type[Drivers] = Drivers,
    kind: type[Wrapped] = Wrapped,
) -> Iterator[Wrapped]:
    """`drivers`: with Spark, or plain ones. `kind`: says which ledger there is."""
    home = Home(folder)
    for module in (Path(__file__).with_name("wrapped_target.py"), _EXAMPLES / "file_per_block.py"):
        shutil.copy(module, folder)
    (folder / "ledgers").mkdir()
    place = folder / "files" if "file_per_block" in sink else folder
    home.save(
        _PIPELINE.substitute(
            bootstrap=kafka.bootstrap_servers,
            topic=topic,
            schema=SCHEMA,
            sink=sink,
            folder=place,
            ledger="plugin: {name: folder, options: {path: ledgers}}" if kind is InFolder else "sqlite: ledger",
            batch=batch,
            master=master,
        )
    )
    with drivers(home) as started:
        yield kind(home, started, Feed(kafka.bootstrap_servers, topic, partitions))
