"""Which sinks a pipeline file may name, and what is loaded for it."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from test_what_commands_load import heavy_after

from landonce.errors import ConfigError
from landonce.sinks import registry
from landonce.sinks.pipeline_file import parse
from landonce.sinks.section import SinkSection

FILE = "pipeline: p\nsource: {kafka: {bootstrap_servers: b, topics: [t]}}\n"


class Shelf(SinkSection):
    """The section of a sink that another package offers."""

    path: Path

    def beside(self, folder: Path) -> Shelf:
        return self.model_copy(update={"path": folder / self.path})

    def to_sink(self, pipeline: str) -> None:  # type: ignore[override]
        raise NotImplementedError(pipeline)


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint("shelf", f"{__name__}:Shelf", registry.GROUP),
        EntryPoint("pushes", f"{__name__}:offered", registry.GROUP),
    ]
    for module in ("landonce.packages", "landonce.sinks.registry"):
        monkeypatch.setattr(f"{module}.entry_points", lambda group: points if group == registry.GROUP else [])


@pytest.mark.parametrize("name", ["clickhouse", "iceberg", "sql", "wrapped"])
def test_a_mistake_below_a_sink_is_answered_before_anything_heavy_is_loaded(name: str, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(f"{FILE}sink: {{{name}: {{tabel: x}}}}\n")
    program = (
        f"import sys; from landonce.cli import main; sys.argv = ['landonce', 'run', {str(file)!r}]\n"
        "try: main()\nexcept SystemExit as end: assert end.code == 2, end.code"
    )
    loaded, errors = heavy_after(program)
    assert f"line 3: sink.{name}.tabel: unknown key" in errors
    assert loaded == set()


@pytest.mark.usefixtures("offered")
def test_a_sink_of_another_package_is_named_like_ours(tmp_path: Path) -> None:
    config = parse(f"{FILE}sink: {{shelf: {{path: box}}}}\n", tmp_path / "p.yaml")
    assert config.sink == Shelf(path=tmp_path / "box")


@pytest.mark.usefixtures("offered")
@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("{shelf: {paht: box}}", "sink.shelf.paht: unknown key; did you mean 'path'?"),
        ("{shelve: {path: box}}", "sink.shelve: unknown key; did you mean 'shelf'?"),
        ("{shelf: box}", "sink.shelf: must be a section with keys of its own: path"),
        ("box", "sink: must be a section with keys of its own: clickhouse, iceberg, sql, wrapped, pushes, shelf"),
        ("{}", "sink: name one sink: clickhouse, iceberg, sql or wrapped"),
        ("{shelf: {path: a}, sql: {url: b, table: c}}", "sink: name one sink"),
        ("{pushes: {}}", "sink: the plug-in 'pushes' is a wrapped sink; write `sink: {wrapped: {sink: pushes}}`"),
    ],
)
def test_mistakes_keep_their_place(said: str, answer: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        parse(f"{FILE}sink: {said}\n", tmp_path / "p.yaml")
    assert answer in str(error.value)
