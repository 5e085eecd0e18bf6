"""Whatever a start refuses, `check` says first: every place in the code where landonce refuses is asked by a check of some sink, or
is listed here with the reason why a check cannot know it."""

from __future__ import annotations

import ast
import json
import sqlite3
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest
import yaml
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, NestedField, StringType
from sqlalchemy import make_url

import landonce
from landonce import errors
from landonce.check import check_pipeline
from landonce.config.dedup import Dedup
from landonce.dedup.rule import key_rule
from landonce.dedup.store import StorePlace
from landonce.engine.retention import Retention
from landonce.ledger.block_ledgers import TargetLedger
from landonce.protocol.ledger import LedgerState, TableMark
from landonce.protocol.ranges import Partition
from landonce.protocol.source import Extent, GroupOffsets, SourceView
from landonce.read.schema.ddl import parse_schema
from landonce.sinks.contract import Level
from landonce.sinks.iceberg.check import table_findings
from landonce.sinks.iceberg.config import Iceberg
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import load
from landonce.sinks.sql.sink import open_database

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

ROOT = Path(landonce.__file__).parent
FOLDERS = ("config", "protocol", "read", "ledger", "sinks", "engine", "dedup")
ELSEWHERE = (
    *(
        "protocol/operate",
        "sinks/operations",
        "sinks/iceberg/operations",
    ),
    *("sinks/iceberg/maintain", "sinks/iceberg/move_in", "sinks/iceberg/held"),
    *("protocol/cases", "protocol/match_ranges", "protocol/query_refusals"),
    *("dedup/rebuild", "dedup/rekey", "dedup/look"),
    *("engine/letter_choice", "engine/replay", "protocol/letters"),
    "sinks/clickhouse",
)
"""What operators decide; what only an audit or queries meet; and ClickHouse, whose checks are tried with a server (`test_check.py`,
`test_clickhouse_check.py`)."""
REFUSALS = {
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, (errors.Halt, errors.ConfigError))
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Refusing:
    """A function that makes a refusal: its file, its name, the line where it begins, and the names of what it calls."""

    file: str
    name: str
    line: int
    calls: frozenset[str]

    @property
    def site(self) -> str:
        return f"{self.file}:{self.name}"


def all_functions() -> Iterator[Refusing]:
    """Of all that a start may run."""
    for path in sorted(ROOT.rglob("*.py")):
        file = str(path.relative_to(ROOT))
        if file.startswith((*FOLDERS, "check")) and not file.startswith(ELSEWHERE):
            for name, node in functions(ast.parse(path.read_text())):
                line = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                yield Refusing(file, name, line, frozenset(filter(None, map(called, own(node)))))


def functions(tree: ast.AST, before: str = "") -> Iterator[tuple[str, Function]]:
    for node in ast.iter_child_nodes(tree):
        name = f"{before}{getattr(node, 'name', '')}"
        if isinstance(node, Function):
            yield name, node
        yield from functions(node, f"{name}." if isinstance(node, (Function, ast.ClassDef)) else before)


def own(function: Function) -> Iterator[ast.AST]:
    """All that is in a function, and not in one inside of it."""
    left: list[ast.AST] = [each for each in function.body if not isinstance(each, Function)]
    while left:
        node = left.pop()
        yield node
        left += [each for each in ast.iter_child_nodes(node) if not isinstance(each, Function)]


def called(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def unasked(run: set[tuple[str, int]]) -> set[str]:
    """Functions that refuse, and that no check runs. One that only words a refusal is asked by those that call it."""
    everything = list(all_functions())
    asked = {each.site for each in everything if (str(ROOT / each.file), each.line) in run}
    left = {each.site: each for each in everything if each.calls & REFUSALS and each.site not in asked}
    while True:
        found = {site for site, each in left.items() if any(_words_for(each, other, asked) for other in everything)}
        if not found:
            return set(left)
        asked |= found
        left = {site: each for site, each in left.items() if site not in found}


def _words_for(wording: Refusing, caller: Refusing, asked: set[str]) -> bool:
    name = wording.name.rpartition(".")[2]
    near = caller.file == wording.file or not name.startswith("_")
    return near and caller.site in asked and name in caller.calls


UNKNOWABLE = {
    "it depends on records, which a check does not read": """
        read/block.py:too_large  engine/workers.py:SparkWorkers._run  engine/task.py:_letters  engine/task.py:refuse_bad
        protocol/tolerance.py:Tolerance._refusal  protocol/tolerance.py:bad_record  protocol/receipt.py:unbalanced
        sinks/transactional.py:as_error  sinks/wrapped/worker.py:_no_answer  sinks/iceberg/files.py:_unfit  sinks/iceberg/table.py:whole_number
        sinks/iceberg/files.py:write_files  sinks/iceberg/evolve.py:apply
        sinks/iceberg/driver.py:OpenIceberg._made_of  sinks/deduplicating.py:OpenTables._made_of  sinks/worker.py:named
        sinks/deduplicating.py:refuse_gone
        read/formats/avro/decode.py:_suggested  read/formats/protobuf/format.py:Protobuf.fields  dedup/rule.py:require_marks
    """,
    "a registry is asked for the schemas of records": """
        read/formats/protobuf/source.py:compile_text  read/formats/protobuf/source.py:_compile_text
        read/schema/registry.py:_judged  read/schema/registry.py:_strange
    """,
    "it is what others do while a batch is written": """
        read/kafka/broker.py:require_same  protocol/deduplicating.py:refuse_not_kept  sinks/sql/driver.py:OpenSql.examine_again  engine/committing.py:_different
        engine/driver.py:Driver._judged  protocol/target.py:nobody_else  sinks/deduplicating.py:verdict
        sinks/iceberg/commit.py:_too_new  sinks/snapshot.py:TableLedger._known  sinks/snapshot.py:no_such_table
        sinks/iceberg/spark.py:_Staging.finish  sinks/iceberg/commit.py:check_visible
        protocol/own_ledger.py:own_verdict  protocol/ledger.py:fenced
    """,
    "it is a change of the ledger, and a check makes none": """
        protocol/block_rows.py:_keeps_receipts  protocol/block_rows.py:_may_go  protocol/block_rows.py:claims_may_change
        ledger/entry_claims.py:_there
    """,
    "it is about a plan that is pending or a position that was lost: sinks/checking.py and the position of each sink say it": """
        protocol/deduplicating.py:Deduplicating.plan_changed  protocol/claimed.py:Claimed.plan_changed
        protocol/snapshot.py:Snapshot.plan_changed  protocol/transactional.py:Transactional.plan_changed
        protocol/claimed.py:outcome_unknown  protocol/snapshot.py:Snapshot.owed  protocol/snapshot.py:refuse_unmarked
        protocol/transactional.py:Transactional.after_look  protocol/target.py:_gap_behind
        protocol/target.py:_lost_ledger  protocol/target.py:refuse_below_start  protocol/target.py:_readable  protocol/marks.py:_same_table  protocol/marks.py:status_of
    """,
    "the check says it in words of its own, as a finding": """
        engine/pipeline.py:dead_letters_reachable  sinks/run.py:refuse_unfit  sinks/run.py:refuse_conversions
        sinks/iceberg/table.py:no_table  sinks/iceberg/table.py:require_spec  sinks/iceberg/table.py:create_table
        sinks/iceberg/commit.py:TableBranch.ensure_branch.step
    """,
    "it takes a Spark session: `landonce check --spark`, or the session's own settings": """
        engine/spark/session.py:_refuse_speculation
        sinks/run.py:Run._made_usable
        engine/transform.py:widened  sinks/iceberg/spark.py:_iceberg
        sinks/iceberg/spark.py:_named
    """,
    "Kafka is a stand-in here; a check asks the real one": """
        read/kafka/broker.py:Broker._named  read/kafka/broker.py:Broker._describe  read/kafka/broker.py:Broker._chosen  read/sample.py:_nothing  read/kafka/records.py:_reached  read/kafka/broker.py:source_error
        protocol/source.py:_refused
    """,
    "a database that fails is not part of this test, and each is asked by its own ledger's": """
        ledger/database.py:refused
    """,
    "it is about dead letters that are there already, and a check reads none": """
        engine/dead_letters.py:letters_in  engine/dead_letters.py:_staged  engine/dead_letters.py:_published
        engine/pipeline.py:refuse_replay  dedup/replay.py:refuse_unaccepted  dedup/replay.py:AcceptedEvents.require_same
        protocol/snapshot.py:Snapshot.refuse_letters
    """,
    "it is about letters on their way to a topic; of the topic itself a check asks the real brokers (`test_letter_topic.py`)": """
        engine/letter_topic.py:LetterTopic._named  engine/letter_topic.py:LetterTopic._producer
        engine/letter_topic.py:LetterTopic._unsure  engine/letter_topic.py:_make
    """,
    "it is about bytes in the store of `dedup`, or in a worker's files, and a check reads none": """
        dedup/chunks.py:StoredRecords._require_kept  dedup/chunks.py:StoredRecords.require_same
        dedup/runs.py:damaged  dedup/scratch.py:_private  dedup/contents.py:Contents.block  dedup/contents.py:Contents.chunk_content
        dedup/chunks.py:block_from_bytes
    """,
    "only a program, a query or a push asks for it, and there is no pipeline file to check": """
        sinks/run.py:Run.columns  engine/task.py:_sorted  engine/pipeline.py:run_pipeline  ledger/open.py:named_ledger  sinks/contract.py:Sink.open_query_ledger  sinks/iceberg/config.py:iceberg
        sinks/section.py:from_program  sinks/sql/driver.py:OpenSql.__init__  sinks/wrapped/sink.py:WrappedSink.open_query_ledger
        sinks/snapshot.py:OpenSnapshot.__init__  sinks/iceberg/driver.py:OpenIceberg._refuse_for_query
        engine/outside.py:refuse_mistakes  engine/outside.py:_check_ledger  engine/outside.py:sound_name
        engine/outside.py:_database  engine/outside.py:_validated
    """,
    "a check opens the ledger of a plug-in as a start does; no plug-in is installed here": """
        ledger/open.py:plugged_ledger
    """,
    "a sink that deduplicates asks for it, and its checks are tried with a server": """
        sinks/run.py:declared_in  sinks/deduplicating.py:refuse_key  sinks/deduplicating.py:tables_recipe
    """,
    "a sink of another package asks for it (`test_asking_any_sink.py`)": """
        sinks/checking.py:_snapshot_position  sinks/snapshot.py:_OneTable.columns_to_make  sinks/snapshot.py:SnapshotTable._seen
    """,
    "an audit alone asks for it": """
        sinks/contract.py:Sink.held
    """,
    "operators' commands alone ask for it": """
        sinks/iceberg/marks.py:last_rows  sinks/iceberg/commit.py:returning.build
    """,
}
"""Why a check cannot know, or how it says it otherwise; and the functions that refuse."""


class Watching:
    """Which functions of landonce were run."""

    def __init__(self) -> None:
        self.run: set[tuple[str, int]] = set()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            self.run.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

    def __enter__(self) -> Watching:
        sys.setprofile(self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)


COORDINATES = "_topic text, _partition int, _offset bigint"
SCHEMA = "id BIGINT NOT NULL, word STRING"
CATALOG = {"catalog": {"type": "sql", "uri": "sqlite:///lake.db", "warehouse": "lake"}}
LAKE = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "word", StringType()),
    NestedField(11, "_topic", StringType()),
    NestedField(12, "_kafka_partition", IntegerType()),
    NestedField(13, "_offset", LongType()),
)
KEYS = {"by": "word", "rules": {"a": ["id"], "*": [{"header": "h"}]}}
EVENTS: dict[str, Any] = {"sink": {"sql": {"url": "sqlite:///t.db", "table": "events"}}}
FILES: dict[str, dict[str, Any]] = {
    "sqlite": EVENTS,
    "sqlite, with a key": {"sink": {"sql": {"url": "sqlite:///t.db", "table": "keyed", "mode": "upsert", "key": "id"}}},
    "sqlite, made": {
        "sink": {"sql": {"url": "sqlite:///t.db", "table": "new", "create": True, "mode": "upsert", "key": "id"}}
    },
    "sqlite, with dedup": {
        "sink": {"sql": {"url": "sqlite:///t.db", "table": "events"}},
        "dedup": {**KEYS, "ttl": "1d", "store": {"sqlite": "keys"}},
    },
    "iceberg": {"sink": {"iceberg": {"table": "db.events", **CATALOG}}},
    "iceberg, made": {"sink": {"iceberg": {"table": "db.new", "create": True, **CATALOG}}},
    "iceberg, changed": {
        "sink": {"iceberg": {"table": "db.views", "identity": ["id"], "changes": {"mode": "upsert"}, **CATALOG}}
    },
    "iceberg, changed by equality deletes": {
        "sink": {
            "iceberg": {
                "table": "db.views",
                "identity": ["id"],
                "changes": {"mode": "upsert"},
                "write": "equality",
                **CATALOG,
            }
        }
    },
    "iceberg, made with partitions": {
        "sink": {"iceberg": {"table": "db.new", "create": True, "partition_by": ["bucket(4, id)"], **CATALOG}}
    },
    "wrapped": {"sink": {"wrapped": {"sink": "checked_sink:sink"}}, "ledger": {"sqlite": "ledger"}},
    "Avro": {**EVENTS, "kafka": {"format": {"avro": {"schema": "event.avsc"}}}},
    "Avro, by a registry": {**EVENTS, "kafka": {"format": {"avro": {"registry": {"url": "https://127.0.0.1:1"}}}}},
    "Protobuf": {**EVENTS, "kafka": {"format": {"protobuf": {"schema": "event.proto"}}}},
    "Avro, with a marked key": {
        "kafka": {"format": {"avro": {"schema": "event.avsc"}}},
        "sink": {"sql": {"url": "sqlite:///t.db", "table": "events"}},
        "dedup": {"key": "schema", "store": {"sqlite": "keys of Avro"}},
    },
    "Protobuf, with a marked key": {
        "kafka": {"format": {"protobuf": {"schema": "event.proto"}}},
        "sink": {"sql": {"url": "sqlite:///t.db", "table": "events"}},
        "dedup": {"key": "schema", "store": {"sqlite": "keys of Protobuf"}},
    },
    "keys, not decoded": {
        "kafka": {"schema": f"{SCHEMA}, _key BINARY", "key_format": {"csv": {"columns": ["id"]}}},
        "sink": {"sql": {"url": "sqlite:///t.db", "table": "new", "create": True}},
    },
    "conversions": {**EVENTS, "kafka": {"convert": {"fields": {"id": "fit"}}}},
}


class Brokers:
    """Kafka, as far as a check asks it: one partition, with records."""

    def survey(self, topics: tuple[str, ...]) -> SourceView:
        extents = tuple((Partition(topic, 0), Extent(0, 10)) for topic in topics)
        return SourceView("cluster", tuple((topic, "id") for topic in topics), extents)

    def since(self, partitions: Iterable[Partition], moment: int) -> dict[Partition, int]:
        return dict.fromkeys(partitions, 0) if moment else {}

    def group(self, name: str, partitions: object) -> GroupOffsets:
        return GroupOffsets(0, {}, {})

    def first_times(self, positions: dict[Partition, int]) -> dict[Partition, int]:
        return dict.fromkeys(positions, 1_000)

    def record_bytes(self, ranges: object) -> float:
        assert ranges
        return 100.0


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[set[tuple[str, int]]]:
    """All that checks of pipelines with every kind of sink run."""
    folder = tmp_path_factory.mktemp("checked")
    with sqlite3.connect(folder / "t.db") as made:
        made.execute(f"CREATE TABLE events (id bigint NOT NULL, word text, {COORDINATES})")
        made.execute(f"CREATE TABLE keyed (id bigint PRIMARY KEY, word text, {COORDINATES})")
    catalog = load_catalog("landonce", type="sql", uri=f"sqlite:///{folder}/lake.db", warehouse=f"file://{folder}/lake")
    (folder / "lake").mkdir()
    catalog.create_namespace("db")
    for table in ("events", "views"):
        catalog.create_table(f"db.{table}", LAKE)
    (folder / "checked_sink.py").write_text(
        "import landonce\n\n\ndef push(block): ...\n\n\nsink = landonce.wrap(push, idempotent=True)\n"
    )
    fields = [{"name": "id", "type": "long", "landonce.dedup_key": 1}, {"name": "word", "type": "string"}]
    (folder / "event.avsc").write_text(json.dumps({"type": "record", "name": "Event", "fields": fields}))
    (folder / "event.proto").write_text(
        'syntax = "proto3";\nimport "landonce/dedup.proto";\n'
        "message Event { int64 id = 1 [(landonce.dedup_key) = 1]; string word = 2; }\n"
    )
    for pipeline in ("sqlite", "sqlite-with-a-key"):
        ledger = TargetLedger(open_database(make_url(f"sqlite:///{folder}/t.db")), pipeline)
        ledger.create(LedgerState(pipeline, "lineage", tables=(("events", TableMark("schema 0", 1)),)))
        ledger.close()
    rule = key_rule(Dedup.model_validate(KEYS), parse_schema(SCHEMA))
    store = StorePlace(folder / "keys", "sqlite-with-dedup").open()
    store.make(rule.fingerprint(), rule.describe(), 16, 2 * 86_400)
    watching, patch = Watching(), pytest.MonkeyPatch()
    patch.setattr(Retention, "findings", lambda *_: ())
    patch.chdir(folder)
    for name, parts in FILES.items():
        file = folder / "p.yaml"
        kafka = {"bootstrap_servers": "127.0.0.1:1", "topics": ["t"], "schema": SCHEMA, **parts.get("kafka", {})}
        sections = {"pipeline": name.replace(", ", "-").replace(" ", "-"), "source": {"kafka": kafka}}
        sections |= {section: given for section, given in parts.items() if section != "kafka"}
        file.write_text(yaml.safe_dump(sections))
        with watching:
            parts = replace(open_parts(load(file)), broker=Brokers())  # type: ignore[arg-type]
            found = check_pipeline(parts)
        parts.ledger.close()
        refused = [each.what for section in found.sections for each in section.findings if each.level is Level.REFUSED]
        assert refused == [], name
    yield watching.run
    patch.undo()


def test_every_refusal_is_asked_for_by_a_check(asked: set[tuple[str, int]]) -> None:
    """A new refusal is run by the check, or is listed here with the reason why it cannot be."""
    left, listed = unasked(asked), [site for names in UNKNOWABLE.values() for site in names.split()]
    assert left - set(listed) == set(), "a start may refuse this, and no check asks for it"
    assert set(listed) - left == set(), "a check asks for this, or it is gone"
    assert len(listed) == len(set(listed))


def test_a_refusal_that_no_check_runs_is_found(asked: set[tuple[str, int]]) -> None:
    """The test itself: without what SQL's check ran, SQL's refusals are missed."""
    others = {(file, line) for file, line in asked if "sql" not in file.rpartition("landonce/")[2]}
    missed = unasked(others)
    assert {"sinks/sql/driver.py:_source", "sinks/sql/fingerprint.py:refuse_replaced"} <= missed


def test_what_iceberg_refuses_at_a_start_is_a_finding(tmp_path: Path) -> None:
    """A tag is no branch to write to."""
    catalog = load_catalog("c", type="sql", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}/lake")
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", Schema(NestedField(1, "id", LongType()), *LAKE.fields[2:]))
    table.append(pa.table({"id": [1]}))
    table.manage_snapshots().create_tag(table.snapshots()[0].snapshot_id, "audit").commit()
    config = Iceberg(table="db.t", branch="audit")
    refused = [each.what for each in table_findings(config, "db.t", table) if each.level is Level.REFUSED]
    assert refused == ["audit is a tag of the table, not a branch"]
