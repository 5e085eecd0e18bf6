"""Ledgers of other packages: found by entry point, opened beside the pipeline file, and named when something is wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import landonce
from landonce.errors import ConfigError, LedgerUnreadable
from landonce.ledger.as_text import mark_from_text, mark_to_text, state_from_text, state_to_text
from landonce.ledger.entry_claims import EntryClaims, PluginPlace
from landonce.ledger.memory import MemoryLedger
from landonce.ledger.open import plugged_ledger
from landonce.protocol.ledger import Totals
from landonce.protocol.marks import Mark
from landonce.protocol.ranges import Partition
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import parse
from landonce.testing.ledger_sites import first_state, full_state, wide_state

MODULE = """
from landonce.ledger.memory import MemoryLedger

def open_ledger(pipeline, folder, path="", password=""):
    if password:
        raise OSError(f"no entry for {password}")
    ledger = MemoryLedger(pipeline)
    ledger.place = folder / path
    return ledger

def no_ledger(pipeline, folder):
    return {}
"""
FILE = """
pipeline: clicks
source: {{kafka: {{bootstrap_servers: "localhost:1", topics: [clicks]}}}}
sink: {sink}
ledger: {{plugin: {{name: {name}, options: {options}}}}}
"""
CLICKHOUSE = '{clickhouse: {url: "http://localhost:1", table: clicks}}'


@pytest.fixture
def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that is installed, with entry points."""
    place = tmp_path / "site"
    metadata = place / "offering-1.0.dist-info"
    metadata.mkdir(parents=True)
    (place / "offering_ledgers.py").write_text(MODULE)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: offering\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[landonce.ledgers]\nsound = offering_ledgers:open_ledger\nnone = offering_ledgers:no_ledger\n"
        "lost = offering_nowhere:open_ledger\nleaving = offering_leaving:open_ledger\ntwice = offering_ledgers:open_ledger\n"
    )
    (place / "offering_leaving.py").write_text("import sys\nsys.exit(0)\n")
    other = place / "rival-2.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: rival\nVersion: 2.0\n")
    (other / "entry_points.txt").write_text("[landonce.ledgers]\ntwice = rival_ledgers:open_ledger\n")
    monkeypatch.syspath_prepend(str(place))


def pipeline(folder: Path, name: str, options: str = "{}", sink: str = CLICKHOUSE):
    return parse(FILE.format(name=name, options=options, sink=sink), folder / "clicks.yaml")


@pytest.mark.usefixtures("offered")
def test_a_plug_in_is_opened_beside_the_pipeline_file(tmp_path: Path) -> None:
    ledger = open_parts(pipeline(tmp_path, "sound", "{path: ledgers}")).ledger
    assert isinstance(ledger, MemoryLedger)
    assert (ledger.pipeline, ledger.place) == ("clicks", tmp_path / "ledgers")  # type: ignore[attr-defined]


@pytest.mark.usefixtures("offered")
@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("unknown", "{}", "no plug-in 'unknown'; installed packages offer .*lost, none, sound, twice"),
        ("lost", "{}", "'lost' .* cannot be loaded: ModuleNotFoundError: No module named 'offering_nowhere'"),
        ("leaving", "{}", "'leaving' .* cannot be loaded: SystemExit: 0"),
        (
            "twice",
            "{}",
            "2 packages offer a plug-in 'twice': offering_ledgers:open_ledger of offering 1.0; rival_l.*rival 2.0",
        ),
        ("none", "{}", "none returns dict, which is not a ledger of pipeline 'clicks'"),
        ("sound", "{colour: blue}", "sound failed: TypeError: .*colour"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, name: str, options: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        open_parts(pipeline(tmp_path, name, options))


@pytest.mark.usefixtures("offered")
def test_a_secret_of_the_options_is_not_shown(tmp_path: Path) -> None:
    config = pipeline(tmp_path, "sound", "{password: s3cret-word}")
    assert "s3cret-word" not in repr(config)
    with pytest.raises(ConfigError, match="sound failed: OSError") as caught:
        open_parts(config)
    assert "s3cret-word" not in str(caught.value)


def test_without_any_package_the_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("landonce.packages.entry_points", lambda **_: ())
    with pytest.raises(ConfigError, match="no installed package offers any"):
        plugged_ledger("folder", {}, "clicks", tmp_path)


def test_one_ledger_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name one ledger: sqlite, postgres, keeper_map, plugin or memory"):
        parse(
            FILE.replace("plugin:", "sqlite: a.db, plugin:").format(name="x", options="{}", sink=CLICKHOUSE),
            tmp_path / "x.yaml",
        )


WRAPPED = "{wrapped: {}}"


@pytest.mark.usefixtures("offered")
def test_a_plug_in_serves_a_wrapped_sink(tmp_path: Path) -> None:
    """Workers open it again from its address."""
    ledger = open_parts(pipeline(tmp_path, "sound", "{path: ledgers}", sink=WRAPPED)).ledger
    assert isinstance(ledger, EntryClaims)
    assert ledger.address == PluginPlace("sound", "clicks", tmp_path, (("path", "ledgers"),))
    assert isinstance(ledger.address.open(), EntryClaims)


@pytest.mark.parametrize(
    ("named", "why"),
    [("{memory: true}", "no other process sees this one's memory"), ("{keeper_map: {path: /a}}", "this sink is none")],
)
def test_what_no_worker_reaches_serves_no_wrapped_sink(tmp_path: Path, named: str, why: str) -> None:
    text = FILE.format(name="x", options="{}", sink=WRAPPED)
    with pytest.raises(ConfigError, match=why):
        parse(text.replace("{plugin: {name: x, options: {}}}", named), tmp_path / "x.yaml")
    other = landonce.wrap(print, idempotent=True)
    with pytest.raises(ConfigError, match=why):
        landonce.exactly_once(
            other, {"memory": True} if "memory" in named else {"keeper_map": {"path": "/a"}}, name="x"
        )


@pytest.mark.parametrize("state", [first_state(), full_state(), wide_state(50)], ids=["first", "full", "wide"])
def test_a_state_comes_back_from_text(state) -> None:
    text = state_to_text(state)
    assert state_from_text(text) == state
    assert "\n" not in text


def test_a_state_of_an_earlier_landonce_has_no_batches_beyond_the_limit() -> None:
    """It kept the tables alone where these counts are now, too; and while there are none, it can still read what is written."""
    state = full_state()
    text = state_to_text(replace(state, lately=Totals()))
    assert json.loads(json.loads(text)["tables"]) == [["db.täble", "uuid-1", 17], ["evolving", "", 16, ["id", "ü"]]]
    assert state_from_text(text) == replace(state, lately=Totals())


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"positions": []}', "not json"])
def test_what_is_no_state_is_named(text: str) -> None:
    with pytest.raises(LedgerUnreadable, match="cannot be read"):
        state_from_text(text)


def test_a_state_that_was_cut_is_named() -> None:
    with pytest.raises(LedgerUnreadable):
        state_from_text(state_to_text(full_state())[:-20])


@pytest.mark.parametrize(
    "mark",
    [
        Mark(first_state()),
        Mark(
            full_state(), ((Partition("ü", 7), 3),), True, 17, ("a.jsonl",), "/dead ✓", ((Partition("a.b", 0), 2**62),)
        ),
    ],
    ids=["first", "full"],
)
def test_a_mark_comes_back_from_text(mark: Mark) -> None:
    text = mark_to_text(mark)
    assert mark_from_text(text, mark.snapshot) == mark
    assert "\n" not in text


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"state": {}}', mark_to_text(Mark(full_state()))[:-20]])
def test_what_is_no_mark_is_named(text: str) -> None:
    with pytest.raises(LedgerUnreadable, match="cannot be read"):
        mark_from_text(text, 1)
