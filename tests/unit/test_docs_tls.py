"""The parts of pipeline files on the page on security are sound."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from certificates import Certificates

from landonce.config import secrets
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import parse

PAGE = (Path(__file__).parents[2] / "docs" / "tls-and-secrets.md").read_text()
PARTS = [each for each in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE) if each[0] != "#"]
WHOLE: dict[str, Any] = {
    "pipeline": "p",
    "source": {"kafka": {"bootstrap_servers": "127.0.0.1:1", "topics": ["t"]}},
    "sink": {"sql": {"url": "sqlite:///t.db", "table": "t"}},
}


def merged(whole: Any, part: Any, at: str = "") -> Any:
    if not isinstance(whole, dict) or not isinstance(part, dict) or at == "sink":
        return part
    return whole | {name: merged(whole.get(name), each, name) for name, each in part.items()}


@pytest.mark.parametrize("part", PARTS, ids=range(len(PARTS)))
def test_a_pipeline_opens_with_it(
    part: str, certs: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"ca.pem": certs.authority, "client.pem": certs.client, "client.key": certs.client_key}
    for name, path in files.items():
        (tmp_path / name).write_bytes(path.read_bytes())
    (tmp_path / "kafka.password").write_text("secret")
    monkeypatch.setattr(secrets, "_known", set())
    for name in ("CH_PASSWORD", "PG_PASSWORD"):
        monkeypatch.setenv(name, "secret")
    document = merged(WHOLE, yaml.safe_load(part))
    parts = open_parts(parse(yaml.safe_dump(document), tmp_path / "p.yaml"))
    _ = parts.decoding, parts.sink
    assert "secret" not in repr(parts).replace("client.secret", "")


def test_there_are_parts_of_every_server() -> None:
    assert len(PARTS) == 7
