"""What the documents say is true: the file in the README loads, every key is explained, every error is in the tree."""

import inspect
import re
from pathlib import Path

import pytest
from pydantic import BaseModel
from typer.main import get_command

from landonce import errors
from landonce.cli import app
from landonce.config import formats
from landonce.config.convert import Conversion, Convert
from landonce.config.formats import RecordFormat
from landonce.config.load import section
from landonce.protocol import batch
from landonce.protocol.steps import Step
from landonce.sinks import registry
from landonce.sinks.pipeline_file import Pipeline, parse
from landonce.sinks.section import SinkSection

ROOT = Path(__file__).parents[2]


def keys(model: type[BaseModel], before: str = "") -> list[str]:
    found = []
    for name, field in model.model_fields.items():
        path = before + (field.alias or name)
        kind = section(field.annotation)
        if kind is SinkSection:
            found += [key for sink in registry.names() for key in keys(registry.section(sink), f"{path}.{sink}.")]
        elif kind is not None and kind not in (RecordFormat, Convert):
            found += keys(kind, path + ".")
        else:
            found.append(path)
    return found


def test_the_pipeline_file_in_the_readme_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CH_PASSWORD", "a/b@c")
    (text,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    pipeline = parse(text, ROOT / "clicks.yaml")
    assert pipeline.pipeline == "clicks"
    assert len([line for line in text.splitlines() if line and not line.startswith("#")]) <= 10


@pytest.mark.parametrize("key", keys(Pipeline))
def test_every_key_is_explained(key: str) -> None:
    assert f"`{key}`" in (ROOT / "docs" / "pipeline-file.md").read_text()


def test_every_option_of_a_format_is_explained() -> None:
    named = re.findall(r"^\| `([a-z_.]+)` \|", (ROOT / "docs" / "formats.md").read_text(), re.MULTILINE)
    assert {name for name in named if "." in name} == {key for key in keys(RecordFormat) if "." in key}
    assert set(formats.names()) <= {name.partition(".")[0] for name in named}


def test_every_key_of_conversions_is_explained() -> None:
    page = (ROOT / "docs" / "conversions.md").read_text()
    named = re.findall(r"^\| `([a-z]+)` \|", page.partition("## Keys")[2].partition("\n## ")[0], re.MULTILINE)
    fields = {**Convert.model_fields, **Conversion.model_fields}
    assert set(named) == {each.alias or name for name, each in fields.items()} - {"mode"}


def test_every_explained_key_exists() -> None:
    cells = re.findall(
        r"^\| ((?:`[a-z_.]+`(?:, )?)+) \|", (ROOT / "docs" / "pipeline-file.md").read_text(), re.MULTILINE
    )
    named = {key for cell in cells for key in re.findall(r"`([a-z_.]+)`", cell)}
    assert named == set(keys(Pipeline))


def test_every_key_that_an_error_names_exists() -> None:
    """`key` in {file}, `key: value` in {file}: a reader who follows the advice must not get "no such key"."""
    source = "".join(path.read_text() for path in (ROOT / "landonce").rglob("*.py"))
    named = set(re.findall(r"`([a-z_.]+)(?::[^`]*)?` in \{\{?file", source))
    real = keys(Pipeline)
    parts = {".".join(key.split(".")[at:][:length]) for key in real for at in range(4) for length in range(1, 5)}
    assert len(named) > 5
    assert named - parts == set()


@pytest.mark.parametrize("page", ["README.md", "docs/dedup.md", "docs/iceberg.md", "docs/sql.md", "docs/wrap.md"])
def test_every_command_in_a_page_exists(page: str) -> None:
    known = get_command(app).commands  # type: ignore[attr-defined]
    commands = set(re.findall(r"^\$ landonce (\w+)", (ROOT / page).read_text(), re.MULTILINE))
    assert commands
    assert commands <= set(known)


def test_no_two_pages_send_other_records_to_the_same_topic() -> None:
    """A reader who follows two pages with one Kafka finds in each topic the records of its page."""
    sent: dict[str, dict[str, set[str]]] = {}
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for topic, record in re.findall(r'produce\("(\w+)",(.*)', page.read_text()):
            sent.setdefault(topic, {}).setdefault(page.name, set()).add(record)
    assert len(sent) > 3
    for topic, pages in sent.items():
        assert len(set(map(frozenset, pages.values()))) == 1, f"{topic}: {', '.join(pages)}"


def test_the_exit_codes_of_a_supervisor_are_those_of_the_errors() -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    never = {int(code) for code in re.findall(r"RestartPreventExitStatus=([\d ]+)", page)[0].split()}
    kinds = {kind.exit_code for _, kind in inspect.getmembers(errors, inspect.isclass) if hasattr(kind, "exit_code")}
    assert never == kinds - {1, errors.Transient.exit_code}


def test_every_error_is_in_the_tree() -> None:
    named = set(re.findall(r"[├└]── (\w+)", errors.__doc__ or "")) | {"LandonceError"}
    real = {name for name, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__}
    assert named == real


def test_every_error_has_a_way_on() -> None:
    page = (ROOT / "docs" / "errors.md").read_text()
    named = set(re.findall(r"`(\w+)`", page))
    real = {name for name, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__}
    assert real <= named


def test_exit_codes_are_those_of_the_page() -> None:
    page = (ROOT / "docs" / "errors.md").read_text()
    codes = dict(re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| (\d) \|", page, re.MULTILINE))
    assert codes
    for names, code in codes.items():
        for name in re.findall(r"\w+", names):
            assert getattr(errors, name).exit_code == int(code), name
    by_a_person = page.partition("## Kafka")[2].partition("## Unreachable")[0]
    halting = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", by_a_person, re.MULTILINE)
    for name in re.findall(r"\w+", " ".join(halting)):
        assert getattr(errors, name).exit_code == errors.Halt.exit_code, name


def test_every_step_is_in_the_story() -> None:
    story = (batch.__doc__ or "").partition("The kinds of sinks differ")[0]
    assert set(re.findall(r"^    ([a-z]+)  ", story, re.MULTILINE)) - {"step"} == {each.value for each in Step}


@pytest.mark.parametrize("page", [*sorted(p.name for p in (ROOT / "docs").glob("*.md")), "../README.md"])
def test_links_between_pages_lead_somewhere(page: str) -> None:
    source = ROOT / "docs" / page
    for link in re.findall(r"\]\(([^)#:]+)\)", source.read_text()):
        assert (source.parent / link).exists(), link
