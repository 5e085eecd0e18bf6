"""What the documents say is true: the file in the README loads, every key is explained, every error is in the tree."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel
from typer.main import get_command

from landonce import errors
from landonce.cli import app
from landonce.config import source
from landonce.config.load import section
from landonce.config.source import Conversion, Convert, KafkaStart, RecordFormat
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
        elif kind is not None and kind not in (RecordFormat, Convert, KafkaStart):
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


SNIPPETS = [
    (path.relative_to(ROOT).as_posix(), text)
    for path in (ROOT / "docs" / "pipeline-file.md", *sorted((ROOT / "examples").glob("landonce-*/README.md")))
    for text in re.findall(r"```yaml\n(.*?)```", path.read_text(), re.DOTALL)
]


@pytest.mark.parametrize(("page", "text"), SNIPPETS, ids=[page for page, _ in SNIPPETS])
def test_a_part_of_a_pipeline_file_has_keys_that_exist(page: str, text: str) -> None:
    """Of landonce's keys. The packages' tests use their own."""
    part = yaml.safe_load(text)
    assert part, page
    real = set(keys(Pipeline))
    own = {f"sink.{name}" for name in registry.names()}
    for path in _paths(part):
        if page.startswith("examples/") and path.startswith("sink.") and ".".join(path.split(".")[:2]) not in own:
            continue
        above = {path.rsplit(".", cut)[0] for cut in range(path.count(".") + 1)}
        below = {key for key in real if key.startswith(path + ".")}
        assert above & real or below, f"{page}: {path}"


def _paths(part: Any, before: str = "") -> list[str]:
    if not isinstance(part, dict) or not part:
        return [before.removesuffix(".")]
    return [path for key, value in part.items() for path in _paths(value, f"{before}{key}.")]


@pytest.mark.parametrize("key", keys(Pipeline))
def test_every_key_is_explained(key: str) -> None:
    assert f"`{key}`" in (ROOT / "docs" / "pipeline-file.md").read_text()


def test_every_option_of_a_format_is_explained() -> None:
    named = re.findall(r"^\| `([a-z_.]+)` \|", (ROOT / "docs" / "formats.md").read_text(), re.MULTILINE)
    assert {name for name in named if "." in name} == {key for key in keys(RecordFormat) if "." in key}
    assert set(source.names()) <= {name.partition(".")[0] for name in named}


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


def pages() -> list[str]:
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
    return sorted(str(each.relative_to(ROOT)) for each in found)


@pytest.mark.parametrize("page", pages())
def test_every_command_in_a_page_exists(page: str) -> None:
    """Also the commands of a command: `landonce state seek`."""
    text = (ROOT / page).read_text()
    lines = re.findall(r"^(?:\$ )?landonce (.+)$", "\n".join(re.findall(r"```.*?```", text, re.DOTALL)), re.MULTILINE)
    inline = re.findall(r"`landonce ([a-z].*?)`", text)
    for words in (each.split() for each in (*lines, *inline)):
        commands: Any = get_command(app)
        while words and (known := getattr(commands, "commands", None)):
            assert words[0] in known, " ".join(["landonce", *words])
            commands = known[words.pop(0)]


def test_commands_are_in_the_pages() -> None:
    """The test above finds them."""
    assert sum("$ landonce " in (ROOT / each).read_text() for each in pages()) > 10


CONNECT = """
    auto.evolve auto.evolve.ddl.refresh.retries auto.evolve.struct.to.json bufferCount bufferFlushTime bypassFieldCleanup bypassRowBinary
    bypassSchemaValidation clickhouseClientInsertTimeoutMs clickhouseSettings client_version clusterName customInsertFormat database
    dateTimeFormats dbTopicSplitChar debeziumCDCEnabled enableDbTopicSplit errors.retry.timeout errors.tolerance exactlyOnce hostname
    ignorePartitionsWhenBatching insertFormat jdbcConnectionProperties keeperOnCluster password port proxyHost proxyPort proxyType
    reportInsertedOffsets retryCount ssl ssl_socket_sni suppressTableExistenceException tableRefreshInterval timeoutSeconds
    tolerateStateMismatch topic2TableMap username zkDatabase zkPath
"""
"""Every name of ClickHouseSinkConfig in clickhouse-kafka-connect 1.5.0."""
CONNECTS_OWN = ["errors.deadletterqueue.context.headers.enable", "errors.deadletterqueue.topic.name"]
"""Options of Kafka Connect itself that decide what becomes of records."""


def test_every_option_of_clickhouses_connect_sink_is_mapped() -> None:
    section = (ROOT / "docs" / "clickhouse.md").read_text().partition("## From ClickHouse's Kafka Connect sink")[2]
    cells = re.findall(r"^\| ((?:`[\w.]+`(?:, )?)+) \|", section, re.MULTILINE)
    assert sorted(name for cell in cells for name in re.findall(r"`([\w.]+)`", cell)) == sorted(
        [*CONNECT.split(), *CONNECTS_OWN]
    )


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


DESIGNS = (ROOT / "docs" / "five-designs.md").read_text()
NO_KEYS = {
    "steps": {"prepare", "write", "record"},
    "tables": {"landonce_deduplication", "landonce_new_events", "landonce_batches", "landonce_batches.status"}
    | {"landonce_dedup_chunk.schema_version"},
    "a snapshot's summary": {"landonce.position"},
    "columns": {"_offset", "_change"},
    "parameters of Python": {"first", "idempotent", "on_rewind", "partition", "timeout_check", "lock_seconds"},
    "members of Python": {"load", "position", "reset", "save", "save_many", "store.save", "transaction"},
    "values": {"check", "debezium", "dms", "https"},
}
"""What the page writes as it writes a key of the pipeline file. `check` is the command."""


def designs() -> list[list[str]]:
    """The rows of the page's tables."""
    rows = re.findall(r"^\| (.*) \|$", DESIGNS, re.MULTILINE)
    return [row.removesuffix(" |").split(" | ") for row in rows if row != "feature | in landonce | test"]


def test_every_test_that_a_page_names_exists() -> None:
    """`tests/FILE.py::NAME`, or the class of it: what a page says is shown by a test is shown by one."""
    named = re.findall(r"`(tests/[^`]+)`", DESIGNS)
    assert len(named) > 100
    for each in named:
        file, _, name = each.partition("::")
        assert re.search(
            rf"^(?:    )?(?:def|class) {re.escape(name)}\b" if name else "", (ROOT / file).read_text(), re.MULTILINE
        ), each


def test_every_row_of_the_designs_names_a_test() -> None:
    assert len(designs()) > 120
    assert {row[0] for row in designs() if len(row) < 3 or not re.search(r"`tests/[^`]+`", row[-1])} == set()


def test_every_key_that_the_designs_name_exists() -> None:
    """`key`, `section.key` or `key: value`, in the column that says what landonce has."""
    real = keys(Pipeline)
    parts = {".".join(key.split(".")[at:][:length]) for key in real for at in range(5) for length in range(1, 6)}
    cells = " ".join(row[1] for row in designs())
    named = set(re.findall(r"`([a-z_]+(?:\.[a-z_]+)*)(?:: [^`]*)?`", cells))
    assert len(named & parts) > 40
    assert named - parts - set().union(*NO_KEYS.values()) == set()


def test_every_option_of_a_command_that_the_designs_name_exists() -> None:
    """That the commands exist is shown above, for all pages."""
    found = 0
    for words in (each.split() for each in re.findall(r"`landonce ([a-z].*?)`", DESIGNS)):
        command: Any = get_command(app)
        while words and (known := getattr(command, "commands", None)):
            command = known[words.pop(0)]
        for word in words:
            if word.startswith("--"):
                found += 1
                assert word in [name for option in command.params for name in option.opts], (command.name, word)
    assert found > 2
