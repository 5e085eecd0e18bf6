"""The audit, against a real topic and a real table: it finds every fault that is planted, and no other."""

import json

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from pipelines import SmallPipeline, landonce
from said import says

from landonce.local import LocalKafka

pytestmark = pytest.mark.integration

RECORDS = 100
BROKEN = (10, 20, 21)
GOOD = [at for at in range(RECORDS) if at not in BROKEN]


def value(at):
    return b"{broken" if at in BROKEN else json.dumps({"id": at}).encode()


@pytest.fixture
def verify(capsys, monkeypatch):
    return lambda pipeline, *options: landonce(capsys, monkeypatch, "verify", pipeline.file, *options)


@pytest.fixture
def empty(kafka, clickhouse, new_topic, new_table, tmp_path):
    """A pipeline of which nothing ran yet."""
    pipeline = SmallPipeline(kafka, clickhouse, tmp_path, new_topic(), new_table())
    pipeline.write_file()
    pipeline.make_table()
    return pipeline


@pytest.fixture
def exact(empty):
    """A pipeline that did everything right: 97 rows, three dead letters, all committed."""
    empty.produce(value(at) for at in range(RECORDS))
    empty.land(GOOD)
    empty.bury(BROKEN)
    empty.commit({0: (0, RECORDS)})
    return empty


def only(said, fault, where, ranges):
    """Exactly this is wrong."""
    assert said.code == 1
    document = said.json
    assert not document["exact"]
    (partition,) = document["partitions"]
    found = [(each["fault"], each["where"], [tuple(run[:2]) for run in each["listed"]]) for each in partition["ranges"]]
    assert found == [(fault, where, ranges)]


def test_what_is_exact_is_said_to_be(exact, verify):
    said = verify(exact)
    assert said.code == 0
    assert says(said.out, "exactly once: 100 read, 97 landed, 3 dead-lettered, 0 filtered, 0 duplicated, 0 missing")
    assert "NOT exactly once" not in said.out


def test_the_document(exact, verify):
    document = verify(exact, "--json").json
    assert document["exact"] is True
    assert document["totals"] == {
        "read": 100,
        "expected": 97,
        "landed": 97,
        "dead_lettered": 3,
        "filtered": 0,
        "in_flight": 0,
        "before": 0,
        "vanished": 0,
        "missing": 0,
        "duplicated": 0,
        "unexpected": 0,
    }
    (partition,) = document["partitions"]
    assert partition["judged"] == [0, 100]
    assert partition["ranges"] == []
    assert partition["unprovable"] is None
    assert document["strays"] == []


def test_a_deleted_row(exact, verify):
    exact.forget("_offset = 42")
    only(verify(exact, "--json"), "missing", "target", [(42, 43)])


def test_deleted_rows_are_collapsed_into_runs(exact, verify):
    """The broken record at 10 is no row, but it was not missed either: it is where a run ends."""
    exact.forget("_offset BETWEEN 8 AND 12 OR _offset >= 90")
    only(verify(exact, "--json"), "missing", "target", [(8, 10), (11, 13), (90, 100)])


def test_a_duplicated_row(exact, verify):
    exact.land([42, 43])
    said = verify(exact, "--json")
    only(said, "duplicated", "target", [(42, 44)])
    assert said.json["totals"]["landed"] == 97


def test_an_extra_row_where_a_record_is_broken(exact, verify):
    """It is in the target and in the dead letters: one record, two places."""
    exact.land([20])
    only(verify(exact, "--json"), "duplicated", "both", [(20, 21)])


def test_an_extra_row_of_a_record_that_never_was(exact, verify):
    exact.land([7], partition=3)
    said = verify(exact, "--json")
    assert said.code == 1
    assert said.json["strays"] == [{"label": exact.topic, "partition": 3, "rows": 1}]
    assert said.json["totals"]["unexpected"] == 1


def test_a_missing_dead_letter(exact, verify):
    exact.bury([10, 21])
    only(verify(exact, "--json"), "missing", "dead letters", [(20, 21)])


def test_a_dead_letter_that_is_only_staged_does_not_count(exact, verify):
    exact.bury([10, 21])
    exact.bury([20], batch=2, ending=".staged")
    only(verify(exact, "--json"), "missing", "dead letters", [(20, 21)])


def test_a_duplicated_dead_letter(exact, verify):
    exact.bury([20], batch=2)
    only(verify(exact, "--json"), "duplicated", "dead letters", [(20, 21)])


def test_a_dead_letter_of_a_record_that_landed(exact, verify):
    exact.bury([50], batch=2)
    only(verify(exact, "--json"), "duplicated", "both", [(50, 51)])


def test_a_row_that_became_a_dead_letter(exact, verify):
    exact.forget("_offset = 50")
    exact.bury([50], batch=2)
    said = verify(exact, "--json")
    assert said.code == 1
    assert {(each["fault"], each["where"]) for each in said.json["partitions"][0]["ranges"]} == {
        ("missing", "target"),
        ("unexpected", "dead letters"),
    }


def test_a_damaged_file_of_dead_letters_is_named(exact, verify):
    (exact.dead / exact.letters(3)).write_text('{"topic": ')
    said = verify(exact)
    assert said.code == 3
    assert "LettersUnreadable" in said.err
    assert "line 1" in said.err


def test_faults_in_words(exact, verify):
    exact.forget("_offset >= 97")
    exact.land([5])
    said = verify(exact)
    assert said.code == 1
    assert says(said.out, "3 missing in the target: [97, 100)")
    assert says(said.out, "1 duplicated in the target: [5, 6)")
    assert "NOT exactly once" in said.out


def test_many_runs_are_counted_and_not_all_listed(exact, verify):
    exact.forget("_offset % 2 = 0")
    said = verify(exact, "--json")
    (ranges,) = said.json["partitions"][0]["ranges"]
    assert ranges["records"] == 48
    assert len(ranges["listed"]) + ranges["more"] == len([at for at in GOOD if at % 2 == 0])
    assert "more" in verify(exact).out


class TestBounds:
    def test_above_the_position_is_in_flight(self, exact, verify):
        """Rows of a batch that is at work are not judged, complete or not."""
        exact.produce(json.dumps({"id": at}).encode() for at in range(20))
        exact.land(range(100, 110))
        said = verify(exact, "--json")
        assert said.code == 0
        assert said.json["totals"]["in_flight"] == 10
        only(verify(exact, "--json", "--to-end"), "missing", "target", [(110, 120)])

    def test_without_a_ledger_to_the_stable_end(self, empty, verify):
        empty.produce(value(at) for at in range(RECORDS))
        empty.land([at for at in GOOD if at < 99])
        empty.bury(BROKEN)
        said = verify(empty, "--json")
        only(said, "missing", "target", [(99, 100)])
        assert "no ledger" in said.json["notes"][0]
        assert not (empty.folder / "clicks.ledger").exists()

    def test_before_the_first_offset_only_duplicates_count(self, exact, verify):
        """The pipeline began at 50: rows below are somebody else's business, unless they are there twice."""
        (exact.folder / "clicks.ledger").unlink()
        exact.commit({0: (50, RECORDS)})
        exact.forget("_offset = 10")
        said = verify(exact, "--json")
        assert said.code == 0
        assert said.json["totals"]["before"] == 47
        exact.land([7, 9])
        only(verify(exact, "--json"), "duplicated", "target", [(7, 8), (9, 10)])

    def test_what_retention_made_unprovable_is_said(self, exact, verify):
        exact.delete_records(before=30)
        exact.forget("_offset = 5")
        said = verify(exact, "--json")
        assert said.code == 0
        (partition,) = said.json["partitions"]
        assert partition["unprovable"] == {"first": 0, "end": 30, "rows": 26}
        assert partition["judged"] == [30, 100]
        assert partition["read"] == 70
        assert "retention has deleted [0, 30)" in verify(exact).out
        exact.land([6])
        only(verify(exact, "--json"), "duplicated", "target", [(6, 7)])

    def test_a_topic_made_again_is_not_compared(self, exact, verify):
        exact.recreate_topic()
        said = verify(exact)
        assert said.code == 3
        assert "TopicRecreated" in said.err
        assert f"landonce state rebase {exact.file}" in said.err

    def test_a_rebased_topic_is_judged_under_its_label(self, empty, verify):
        label = f"{empty.topic}@12345678"
        empty.land([0, 1, 2])
        empty.produce(json.dumps({"id": at}).encode() for at in range(5))
        empty.land(range(5), topic=label)
        empty.commit({0: (0, 5)}, labels=((empty.topic, label),))
        said = verify(empty, "--json")
        assert said.code == 0
        assert said.json["totals"]["landed"] == 5


class TestOffsetsWithoutRecords:
    def test_aborted_transactions_are_not_missing(self, empty, verify):
        producer = Producer({"bootstrap.servers": empty.kafka.bootstrap_servers, "transactional.id": empty.topic})
        producer.init_transactions(30)
        landed = []
        at = 0
        for commits in (True, False, True, False):
            producer.begin_transaction()
            for _ in range(5):
                producer.produce(empty.topic, value=json.dumps({"id": at}).encode(), partition=0)
                if commits:
                    landed.append(at)
                at += 1
            producer.flush(30)  # or an abort would throw away what was not sent yet, and leave no trace of it
            producer.commit_transaction(30) if commits else producer.abort_transaction(30)
            at += 1
        empty.land(landed)
        empty.commit({0: (0, at)})
        said = verify(empty, "--json")
        assert said.code == 0
        assert said.json["totals"]["read"] == 10
        empty.land([6])
        only(verify(empty, "--json"), "unexpected", "target", [(6, 7)])

    def test_a_compacted_topic(self, kafka, clickhouse, new_topic, new_table, tmp_path, verify):
        topic = new_topic(
            cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.01", max_compaction_lag_ms="200"
        )
        pipeline = SmallPipeline(kafka, clickhouse, tmp_path, topic, new_table())
        pipeline.write_file()
        pipeline.make_table()
        values = [json.dumps({"id": at}).encode() for at in range(50)]
        pipeline.produce(values, keys=[b"same"] * 49 + [b"other"])
        kept = _wait_for_compaction(pipeline)
        pipeline.land(kept)
        pipeline.commit({0: (0, 50)})
        said = verify(pipeline, "--json")
        assert said.code == 0
        assert said.json["totals"]["read"] == len(kept) < 50
        # A row whose record was compacted away since it landed is no fault, unless it is there twice.
        gone = next(at for at in range(50) if at not in kept)
        pipeline.land([gone])
        said = verify(pipeline, "--json")
        assert said.code == 0
        assert said.json["totals"]["vanished"] == 1
        pipeline.land([gone])
        only(verify(pipeline, "--json"), "duplicated", "target", [(gone, gone + 1)])


def _wait_for_compaction(pipeline):
    """The offsets that are left once fewer are left than were produced, read twice alike. More records roll segments."""
    import time

    from confluent_kafka import Consumer, TopicPartition

    def left():
        consumer = Consumer({"bootstrap.servers": pipeline.kafka.bootstrap_servers, "group.id": "test"})
        consumer.assign([TopicPartition(pipeline.topic, 0, 0)])
        found = []
        while not found or found[-1] < 49:
            found += [each.offset() for each in consumer.consume(100, 1) if each.error() is None]
        consumer.close()
        return [at for at in found if at < 50]

    until = time.monotonic() + 40
    while time.monotonic() < until:
        found = left()
        if len(found) < 50:
            time.sleep(1)
            if left() == found:
                return found
        pipeline.produce([b'{"id": 0}'], keys=[b"tick"])
        time.sleep(0.5)
    pytest.fail("the broker did not compact in time")


def test_two_partitions_are_told_apart(kafka, clickhouse, new_topic, new_table, tmp_path, verify):
    pipeline = SmallPipeline(kafka, clickhouse, tmp_path, new_topic(partitions=2), new_table())
    pipeline.write_file()
    pipeline.make_table()
    for partition, count in ((0, 10), (1, 20)):
        pipeline.produce((json.dumps({"id": at}).encode() for at in range(count)), partition)
        pipeline.land(range(count), partition)
    pipeline.commit({0: (0, 10), 1: (0, 20)})
    pipeline.forget("_partition = 1 AND _offset = 5")
    said = verify(pipeline, "--json")
    assert said.code == 1
    assert [each["missing"] for each in said.json["partitions"]] == [0, 1]


def test_select_and_where_are_applied_by_spark(empty, verify):
    """Filtered records are no rows, records that do not fit the table are dead letters."""
    empty.produce(json.dumps({"a": at, "event": "ping" if at % 5 == 0 else "click"}).encode() for at in range(50))
    empty.produce([json.dumps({"a": 2**62, "event": "click"}).encode(), b"{broken"])
    empty.write_file(
        source={
            "kafka": {
                "bootstrap_servers": empty.kafka.bootstrap_servers,
                "topics": [empty.topic],
                "schema": "a BIGINT, event STRING",
            }
        },
        transform={"where": "event <> 'ping'", "select": ["CAST(a AS DECIMAL(20, 0)) * 4 AS id"]},
    )
    empty.land([5, *(at for at in range(50) if at % 5)])
    empty.bury([50, 51])
    empty.commit({0: (0, 52)})
    said = verify(empty, "--json")
    assert said.json["totals"] | {"read": 52, "landed": 40, "dead_lettered": 2, "filtered": 10} == said.json["totals"]
    only(said, "unexpected", "target", [(5, 6)])


def test_a_user_who_may_read_the_topic_and_not_its_settings_can_audit(clickhouse, new_table, tmp_path, verify):
    """READ and DESCRIBE are what a pipeline needs."""
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    config = {"authorizer.class.name": authorizer, "allow.everyone.if.no.acl.found": "true"}
    with LocalKafka(tmp_path / "kafka", extra_config=config) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        admin.create_topics([NewTopic("clicks", 1, 1)])["clicks"].result(30)
        rights = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
        of_topic = ResourceType.TOPIC, "clicks", ResourcePatternType.LITERAL, "User:ANONYMOUS", "*"
        for done in admin.create_acls(
            [AclBinding(*of_topic, each, AclPermissionType.ALLOW) for each in rights]
        ).values():
            done.result(30)
        pipeline = SmallPipeline(kafka, clickhouse, tmp_path, "clicks", new_table())
        pipeline.write_file()
        pipeline.make_table()
        pipeline.produce(value(at) for at in range(10))
        pipeline.land(range(10))
        pipeline.commit({0: (0, 10)})
        said = verify(pipeline, "--json")
        assert said.code == 0, said.err
        assert "whether it is compacted cannot be asked" in said.json["notes"][0]
