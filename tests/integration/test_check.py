"""`landonce check` with real servers: it says what to change, promises only what holds, and creates nothing."""

import json
from pathlib import Path

import pytest
from pipelines import SmallPipeline, landonce

from landonce.local import LocalClickHouse, LocalUser
from landonce.local.server import free_ports

pytestmark = pytest.mark.integration

READER = LocalUser("reader", "read-only-pw", ("GRANT SELECT ON *.*", "GRANT SHOW ON *.*"))


@pytest.fixture
def check(capsys, monkeypatch):
    return lambda pipeline, *options: landonce(capsys, monkeypatch, "check", pipeline.file, *options)


@pytest.fixture
def pipeline(kafka, clickhouse, new_topic, new_table, tmp_path):
    made = SmallPipeline(kafka, clickhouse, tmp_path, new_topic(partitions=2), new_table())
    made.write_file()
    made.produce(json.dumps({"id": at}).encode() for at in range(10))
    return made


def tables(clickhouse) -> set[str]:
    return set(clickhouse.ask("SELECT name FROM system.tables WHERE database = 'default'").split())


def findings(said):
    return [each for section in said.json["sections"] for each in section["findings"]]


def refused(said):
    return [each for each in findings(said) if each["level"] == "refused"]


def test_a_pipeline_that_is_fit(pipeline, check):
    pipeline.make_table()
    before = sorted(pipeline.folder.iterdir())
    said = check(pipeline)
    assert said.code == 0, said.out
    assert "guaranteed: exactly once" in said.out
    assert "because" in said.out
    assert "as long as" in said.out
    assert "none yet: the first run creates" in said.out
    assert "at most 10 records behind the end of 2 partitions" in said.out
    assert sorted(pipeline.folder.iterdir()) == before, "no ledger, no folder"


def test_the_document(pipeline, check):
    pipeline.make_table()
    document = check(pipeline, "--json").json
    assert document["refused"] is False
    names = [section["name"] for section in document["sections"]]
    assert names == ["pipeline file", "Kafka", "ledger", "table", "records", "position", "Spark", "dead letters"]
    assert document["guarantee"]["what"].startswith("exactly once")


def test_a_table_that_forgets_tokens_is_refused_with_the_statement_to_run(pipeline, check):
    pipeline.make_table(settings="non_replicated_deduplication_window = 0")
    said = check(pipeline, "--json")
    assert said.code == 1
    assert said.json["guarantee"] is None
    (finding,) = refused(said)
    assert finding["change"].startswith("ALTER TABLE")
    pipeline.clickhouse.ask(finding["change"].split(";")[0])
    assert check(pipeline).code == 0, "what it says is what to do"


def test_a_table_without_coordinates_is_refused_with_the_statement_to_run(pipeline, check):
    pipeline.clickhouse.ask(
        f"CREATE TABLE {pipeline.table} (id Int64) ENGINE = MergeTree ORDER BY id "
        "SETTINGS non_replicated_deduplication_window = 10000"
    )
    said = check(pipeline, "--json")
    assert said.code == 1
    (finding,) = refused(said)
    pipeline.clickhouse.ask(finding["change"].split(";")[0])
    assert check(pipeline).code == 0


def test_an_engine_that_merges_rows_away_is_refused(pipeline, check):
    pipeline.clickhouse.ask(
        f"CREATE TABLE {pipeline.table} (id Int64, _topic String, _partition Int32, _offset Int64) "
        "ENGINE = SummingMergeTree ORDER BY id"
    )
    said = check(pipeline)
    assert said.code == 1
    assert "SummingMergeTree" in said.out
    assert "the pipeline does not start until that is changed" in said.out


def test_a_missing_table_is_not_created(pipeline, check):
    before = tables(pipeline.clickhouse)
    said = check(pipeline, "--json")
    assert said.code == 1
    assert "create: true" in refused(said)[0]["change"]
    assert tables(pipeline.clickhouse) == before


def test_with_create_it_says_what_it_would_create_and_does_not(pipeline, check):
    pipeline.write_file(sink={"clickhouse": {"url": pipeline.clickhouse.url, "table": pipeline.table, "create": True}})
    before = tables(pipeline.clickhouse)
    said = check(pipeline, "--json")
    assert said.code == 0, said.out
    (statement,) = [each["what"] for each in findings(said) if "CREATE TABLE" in each["what"]]
    assert "`id`" in statement
    assert "_offset" in statement
    assert tables(pipeline.clickhouse) == before
    assert not (pipeline.folder / "clicks.ledger").exists()


def test_a_restricted_user(kafka, new_topic, tmp_path, check):
    with LocalClickHouse(tmp_path / "clickhouse", extra_users=[READER]) as server:
        pipeline = SmallPipeline(kafka, server, tmp_path, new_topic(), "restricted")
        pipeline.make_table()
        pipeline.write_file(sink={"clickhouse": {"url": server.url_for(READER), "table": "restricted"}})
        said = check(pipeline, "--json")
        assert said.code == 1
        assert any("INSERT" in each["change"] and "GRANT" in each["change"] for each in refused(said))
        assert READER.password not in said.out + said.err
        pipeline.write_file(sink={"clickhouse": {"url": server.url_for(READER), "table": "none", "create": True}})
        said = check(pipeline, "--json")
        assert said.code == 1
        assert any("GRANT CREATE TABLE" in each["change"] for each in refused(said))


def test_a_wrong_password_is_not_repeated(pipeline, check):
    pipeline.make_table()
    url = f"http://nobody:wr0ng-pw@127.0.0.1:{pipeline.clickhouse.http_port}/default"
    pipeline.write_file(sink={"clickhouse": {"url": url, "table": pipeline.table}})
    said = check(pipeline)
    assert said.code == 1
    assert "wr0ng-pw" not in said.out + said.err


def test_a_topic_that_is_not_there_does_not_hide_the_rest(pipeline, check):
    pipeline.make_table()
    kafka = {"bootstrap_servers": pipeline.kafka.bootstrap_servers, "topics": ["not-there"]}
    pipeline.write_file(source={"kafka": kafka})
    said = check(pipeline)
    assert said.code == 1
    assert "'not-there' does not exist" in said.out
    assert f"correct `source.kafka.topics` in {pipeline.file}" in said.out
    assert "coordinate columns" in said.out, "the table was looked at all the same"


def test_an_overrun_position_is_refused(pipeline, check):
    pipeline.make_table()
    pipeline.commit({0: (0, 2), 1: (0, 0)})
    pipeline.delete_records(before=5)
    said = check(pipeline)
    assert said.code == 1
    assert f"landonce state accept-gap {pipeline.file}" in said.out


def test_a_target_that_is_ahead_of_a_lost_ledger_is_a_warning(pipeline, check):
    pipeline.make_table()
    pipeline.land(range(4))
    said = check(pipeline)
    assert said.code == 0
    assert "the ledger does not know of" in said.out


def test_expressions_that_could_not_be_examined_are_not_called_sound(pipeline, check):
    pipeline.write_file(transform={"where": "no_such_column > 1"})
    said = check(pipeline, "--spark")
    assert "were not checked" in said.out
    assert "checks them before it creates the table" in said.out


def test_a_table_that_select_makes_is_shown_where_spark_may_be_asked(pipeline, check):
    select = {"select": ["id", "customer.name AS name"], "where": "id > 1"}
    schema = {"schema": "id BIGINT NOT NULL, customer STRUCT<name: STRING>"}
    source = {"bootstrap_servers": pipeline.kafka.bootstrap_servers, "topics": [pipeline.topic], **schema}
    sink = {"url": pipeline.clickhouse.url, "table": pipeline.table, "create": True}
    pipeline.write_file(transform=select, source={"kafka": source}, sink={"clickhouse": sink})
    said = check(pipeline)
    assert said.code == 0, said.out
    assert "with the columns of `select`: `landonce check --spark` shows them" in said.out
    said = check(pipeline, "--spark")
    assert said.code == 0, said.out
    assert "`name` Nullable(String)" in said.out
    pipeline.write_file(transform={"select": ["nothing"]}, source={"kafka": source}, sink={"clickhouse": sink})
    assert check(pipeline, "--spark").code == 1
    assert pipeline.table not in tables(pipeline.clickhouse)


def test_a_changed_file_before_a_pending_plan_is_refused(pipeline, check):
    pipeline.make_table()
    pipeline.commit({0: (0, 2), 1: (0, 0)})
    pipeline.prepare((0, 2, 5), fingerprint="of another file")
    said = check(pipeline)
    assert said.code == 1
    assert "the pipeline file or the table's columns were changed since" in said.out
    assert f"landonce state accept-change {pipeline.file}" in said.out


def test_dead_letters_of_workers_on_other_machines(pipeline, check):
    pipeline.make_table()
    pipeline.write_file(spark={"master": "spark://elsewhere:7077"})
    said = check(pipeline)
    assert said.code == 1
    assert "shared: true" in said.out
    pipeline.write_file(
        spark={"master": "spark://elsewhere:7077"}, dead_letters={"path": str(pipeline.folder), "shared": True}
    )
    assert check(pipeline).code == 0


def test_a_ledger_in_a_folder_that_is_not_there(pipeline, check):
    pipeline.make_table()
    pipeline.write_file(ledger={"sqlite": "nowhere/clicks.ledger"})
    said = check(pipeline)
    assert said.code == 1
    assert f"mkdir -p {pipeline.folder}/nowhere" in said.out
    assert not Path(pipeline.folder / "nowhere").exists()


def test_a_database_in_a_folder_that_is_not_there(pipeline, check):
    pipeline.write_file(sink={"sql": {"url": "sqlite:///nowhere/t.db", "table": "t", "create": True}}, ledger=None)
    said = check(pipeline)
    assert said.code == 1
    assert f"mkdir -p {pipeline.folder}/nowhere" in said.out


def test_kafka_that_is_away_and_options_that_are_wrong(pipeline, check):
    away = {"bootstrap_servers": f"127.0.0.1:{free_ports(1)[0]}", "topics": [pipeline.topic]}
    pipeline.write_file(source={"kafka": away})
    said = check(pipeline)
    assert said.code == 1
    assert "make sure that Kafka runs" in said.out
    pipeline.write_file(source={"kafka": {**away, "options": {"bogus.option": 1}}})
    said = check(pipeline)
    assert said.code == 2
    assert 'No such configuration property: "bogus.option"' in said.err


def test_coordinates_are_always_kept(pipeline, check):
    pipeline.make_table()
    clickhouse = {"url": pipeline.clickhouse.url, "table": pipeline.table, "coordinates": False}
    pipeline.write_file(sink={"clickhouse": clickhouse})
    said = check(pipeline)
    assert said.code == 2
    assert "coordinates: landonce always keeps the coordinates of rows; delete this key" in said.err


def test_a_file_that_is_wrong(pipeline, check):
    pipeline.file.write_text("pipeline: x\nsouce: {}\n")
    said = check(pipeline)
    assert said.code == 2
    assert "did you mean 'source'?" in said.err
