"""Who judges: what was produced, by the producer's own list, against what the table and the dead letters hold.

It imports nothing but the standard library: not landonce's reader, not its decoder, not a client library of ClickHouse, not its idea of
a range. What was produced is what Kafka's client reported to the producer (`harness.Feed`); landonce reads with the same client.
"""

from __future__ import annotations

import base64
import json
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

Row = tuple[str, int, int, int, str, float | None]
"""Topic, partition, offset, and the three fields of every payload: id, word, amount."""
Letter = tuple[str, int, int, str | None]
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Produced:
    """One record as the broker acknowledged it to its producer."""

    topic: str
    partition: int
    offset: int
    value: str | None
    bad: bool = False

    @property
    def payload(self) -> dict[str, Any]:
        return dict(json.loads(self.value or "{}"))

    @property
    def row(self) -> Row:
        payload = self.payload
        return (self.topic, self.partition, self.offset, payload["id"], payload["word"], payload.get("amount"))

    @property
    def letter(self) -> Letter:
        return (self.topic, self.partition, self.offset, self.value)


@dataclass(frozen=True)
class Verdict:
    """The difference of two multisets."""

    missing: Counter[Any]
    surplus: Counter[Any]

    @property
    def exact(self) -> bool:
        return not self.missing and not self.surplus

    def __str__(self) -> str:
        return (
            f"{self.missing.total()} missing {sorted(self.missing)[:5]}, "
            f"{self.surplus.total()} too many {sorted(self.surplus)[:5]}"
        )


def compare(expected: Iterable[Any], found: Iterable[Any]) -> Verdict:
    """What is expected and not found, and what is found and not expected, each as often as it is."""
    wanted, had = Counter(expected), Counter(found)
    return Verdict(wanted - had, had - wanted)


def expected_rows(records: Iterable[Produced], keeps: Callable[[dict[str, Any]], bool] = lambda _: True) -> list[Row]:
    """The rows that these records must become, once each."""
    return [each.row for each in records if not each.bad and keeps(each.payload)]


def expected_letters(records: Iterable[Produced]) -> list[Letter]:
    return [each.letter for each in records if each.bad]


def rows(url: str, table: str) -> list[Row]:
    """Every row of the table."""
    lines = ask(
        url, f"SELECT _topic, _partition, _offset, id, word, amount FROM {table} FORMAT JSONCompactEachRow"
    ).splitlines()
    return [
        (topic, int(part), int(at), int(id_), word, amount)
        for topic, part, at, id_, word, amount in map(json.loads, lines)
    ]


def letters(folder: Path) -> list[Letter]:
    """Every dead letter that counts: a line of a `.jsonl` file that is not hidden."""
    found = []
    for path in sorted(folder.glob("[!.]*.jsonl")):
        for line in path.read_text().splitlines():
            letter = json.loads(line)
            value = letter["value"] if "value" in letter else base64.b64decode(letter["value_base64"]).decode("latin-1")
            found.append((letter["topic"], letter["partition"], letter["offset"], value))
    return found


def twice(found: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Coordinates that stand more than once, whatever stands beside them."""
    return sorted(place for place, count in Counter(each[:3] for each in found).items() if count > 1)


def ask(url: str, query: str) -> str:
    """One query over plain HTTP."""
    parts = urlsplit(url)
    login = base64.b64encode(f"{unquote(parts.username or '')}:{unquote(parts.password or '')}".encode()).decode()
    request = urllib.request.Request(
        f"http://{parts.hostname}:{parts.port}/?output_format_json_quote_64bit_integers=0",
        data=query.encode(),
        headers={"Authorization": f"Basic {login}"},
    )
    with _DIRECT.open(request, timeout=30) as answer:
        return bytes(answer.read()).decode()
