"""Users' own queries into functions of users' own: what was pushed is read from files, as a multiset of coordinates.

The target takes whatever it is sent. Every attempt is written down with what it got, so that retries can be compared byte by byte.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pipelines import landonce as command
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from query_site import DiesAt, Row, Site, plain
from test_wrapped_run import hours_pass

import landonce
from landonce.errors import ConfigError
from landonce.local import LocalKafka

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

SETTLES = 600.0
NOT_HERE = r"OutcomeUnknown: block .* was pushed and no answer came, so nobody knows whether it arrived. Its rows do not come again"
Open = Callable[..., Site]


@pytest.fixture(autouse=True)
def time_flies(tmp_path: Path) -> Iterator[None]:
    with hours_pass(tmp_path / "ledger"):
        yield


@pytest.fixture
def open_site(spark: SparkSession, kafka: LocalKafka, tmp_path: Path, new_topic: Callable[..., str]) -> Open:
    """`open_site("idempotent" | "probe" | "blind")`."""

    def open_(kind: str) -> Site:
        ledger = f"sqlite:///{tmp_path / 'ledger'}"
        sink, topic = target(tmp_path, kind), new_topic(partitions=2)
        return Site(spark, kafka.bootstrap_servers, (topic,), tmp_path, sink, lambda: pushed(tmp_path), ledger)

    (tmp_path / "pushed").mkdir()
    return open_


def target(folder: Path, kind: str) -> Any:
    """A file for each block, which is the same again however often it is written, or one that grows with every push.

    `no answer`: the next push is made, and says that it failed. `busy`: the next one is not made.
    """

    def asked(what: str) -> bool:
        try:
            (folder / what).unlink()
        except FileNotFoundError:
            return False
        return True

    def push(block: Any) -> None:
        content = block.json_lines()
        with (folder / "attempts").open("a") as log:
            log.write(f"{block.key} {hashlib.sha256(content + block.ipc()).hexdigest()}\n")
        if asked("busy"):
            raise landonce.NotPushed("busy")
        if kind == "idempotent":
            (folder / f"{block.key}.aside").write_bytes(content)
            (folder / f"{block.key}.aside").replace(folder / "pushed" / block.key)
        else:
            with (folder / "pushed" / "all").open("ab") as file:
                file.write(content)
        if asked("no answer"):
            raise ConnectionError("no answer")

    def there(block: Any) -> bool:
        file = folder / "pushed" / "all"
        return file.exists() and bool(block.json_lines() in file.read_bytes())

    probe = there if kind == "probe" else None
    return landonce.wrap(push, idempotent=kind == "idempotent", probe=probe, settles_within=SETTLES, name="files")


def pushed(folder: Path) -> list[Row]:
    rows = [json.loads(line) for file in (folder / "pushed").iterdir() for line in file.read_text().splitlines()]
    return [(row["_topic"], row["_partition"], row["_offset"], row["id"], row["word"]) for row in rows]


def attempts(site: Site) -> Counter[str]:
    """How often each block was pushed; the same bytes every time."""
    lines = [line.split() for line in (site.folder / "attempts").read_text().splitlines()]
    assert len({key for key, _ in lines}) == len({(key, seen) for key, seen in lines})
    return Counter(key for key, _ in lines)


def other(frame: DataFrame) -> DataFrame:
    return plain(frame).selectExpr("topic", "partition", "offset", "id + 1 AS id", "word")


def leave_in_doubt(site: Site) -> None:
    """One block of each partition is pending. One of them was pushed, and nobody heard; then the driver died."""
    (site.folder / "no answer").touch()
    with pytest.raises(StreamingQueryException, match="died before write"):
        site.run(site.once(observer=DiesAt("write", skip=1)))
    assert not (site.folder / "no answer").exists()


@pytest.mark.parametrize("kind", ["idempotent", pytest.param("blind", marks=pytest.mark.long)])
@pytest.mark.parametrize("died", ["write", "record"], ids=["absent", "landed"])
def test_what_is_pending_is_settled_by_its_row_whichever_cut_comes_next(open_site: Open, kind: str, died: str) -> None:
    """Nobody claimed it: it never was. It was settled: it landed. Neither needs the whole block, nor the old query."""
    site = open_site(kind)
    site.produce(20)
    with pytest.raises(StreamingQueryException, match=f"died before {died}"):
        site.run(site.once(observer=DiesAt(died)))
    site.lose_checkpoint()
    by_other = 10 if died == "write" else 0
    site.run(per_trigger=6, make=other)
    site.exact(lambda each: (each.id + (each.at[2] < by_other), each.word))
    site.lose_checkpoint()
    site.produce(10)
    site.run()
    site.exact(lambda each: (each.id + (each.at[2] < by_other), each.word))
    assert set(attempts(site).values()) == {1}


@pytest.mark.parametrize("kind", [pytest.param("idempotent", marks=pytest.mark.long), "probe"])
def test_a_push_without_an_answer_takes_effect_once(open_site: Open, kind: str) -> None:
    """In the run that made it, after a crash, and where the target took nothing."""
    site = open_site(kind)
    site.produce(20)
    (site.folder / "no answer").touch()
    (site.folder / "busy").touch()
    site.run(per_trigger=10)
    site.exact()
    site.produce(20)
    leave_in_doubt(site)
    site.run()
    site.exact()
    again = sum(times - 1 for times in attempts(site).values())
    assert again == (3 if kind == "idempotent" else 1)


def test_a_push_that_hangs_is_said_while_it_lasts(open_site: Open, caplog: pytest.LogCaptureFixture) -> None:
    """And is not interrupted: it lands, once."""
    site = open_site("blind")
    site.produce(4, partitions=1)
    taking = site.sink.wrapped

    def push(block: Any) -> None:
        time.sleep(8)
        taking(block)

    site.sink = landonce.wrap(push, idempotent=False, settles_within=1, name="files")
    site.run()
    site.exact()
    [key] = attempts(site)
    assert f"block {key} ({site.topics[0]}[0] [0, 4)) was claimed" in caplog.text
    assert "It is not interrupted" in caplog.text


@pytest.mark.parametrize(
    "kind", [pytest.param("idempotent", marks=pytest.mark.long), "probe", pytest.param("blind", marks=pytest.mark.long)]
)
def test_a_block_in_doubt_waits_for_its_rows(open_site: Open, kind: str) -> None:
    """Smaller batches or another query cannot say whether it arrived, and push nothing of it."""
    site = open_site(kind)
    site.produce(20)
    leave_in_doubt(site)
    with pytest.raises(StreamingQueryException, match=NOT_HERE):
        site.run(make=other)
    site.lose_checkpoint()
    with pytest.raises(StreamingQueryException, match=NOT_HERE):
        site.run(per_trigger=6)
    assert set(attempts(site).values()) == {1}
    site.lose_checkpoint()
    site.produce(10)
    if kind == "blind":
        with pytest.raises(StreamingQueryException, match=r"OutcomeUnknown: block .* has no probe"):
            site.run()
        assert set(attempts(site).values()) == {1}
        return
    site.run()
    site.exact()


@pytest.mark.parametrize("found", ["landed", pytest.param("absent", marks=pytest.mark.long)])
@pytest.mark.parametrize("cut", [pytest.param(None, marks=pytest.mark.long), 3], ids=["whole", "smaller"])
def test_a_person_says_what_became_of_a_block(
    open_site: Open, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, found: str, cut: int | None
) -> None:
    site = open_site("blind")
    site.produce(8, partitions=1)
    (site.folder / "no answer").touch()
    with pytest.raises(StreamingQueryException, match=r"OutcomeUnknown: block .* has no probe"):
        site.run()
    site.exact()
    if found == "absent":
        (site.folder / "pushed" / "all").unlink()
    [key] = attempts(site)
    said = command(capsys, monkeypatch, "state", "settle", pipeline_file(site), "--block", key, f"--{found}", "--yes")
    assert said.code == 0, said.err
    site.lose_checkpoint()
    site.produce(4)
    site.run(per_trigger=cut)
    site.exact()


def pipeline_file(site: Site) -> Path:
    """What the commands of landonce need to know of a query."""
    made = f"landonce.wrap(print, idempotent=False, settles_within={SETTLES}, name='files')"
    module = f"target_of_{site.folder.name}"  # one of its own: this process keeps what it has imported
    (site.folder / f"{module}.py").write_text(f"import landonce\n\nsink = {made}\n")
    file = site.folder / "query.yaml"
    file.write_text(
        f"pipeline: {site.name}\n"
        f"source: {{kafka: {{bootstrap_servers: '{site.bootstrap}', topics: [{site.topics[0]}], schema: 'id BIGINT'}}}}\n"
        f"sink: {{wrapped: {{sink: '{module}:sink'}}}}\n"
        "ledger: {sqlite: ledger}\n"
    )
    return file


def test_of_two_queries_into_a_wrapped_sink_the_first_is_fenced(open_site: Open) -> None:
    site = open_site("blind")
    site.produce(10)
    first = plain(site.stream()).writeStream.foreachBatch(site.once())
    query = first.option("checkpointLocation", str(site.folder / "other")).start()
    try:
        query.processAllAvailable()
        site.run()
        site.produce(10)
        with pytest.raises(StreamingQueryException, match="was taken over"):
            query.processAllAvailable()
    finally:
        query.stop()
    site.run()
    site.exact()


def test_what_a_wrapped_sink_lacks_is_said_at_once(open_site: Open) -> None:
    import threading

    lock = threading.Lock()
    with pytest.raises(ConfigError, match="say where the position is kept"):
        landonce.exactly_once(landonce.wrap(print, idempotent=True), name="q")
    site = open_site("blind")
    site.sink = landonce.wrap(lambda _: lock.acquire(), idempotent=True, name="locked")
    site.produce(2)
    with pytest.raises(StreamingQueryException, match="cannot be sent to workers"):
        site.run()
