"""Offsets, names, rows and refusals of a query, without Spark and without servers."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import SecretStr

import landonce
from landonce import errors
from landonce.config.secrets import redact
from landonce.engine.outside import Logged, Outside, refuse_mistakes
from landonce.protocol.cases import OnRewind
from landonce.protocol.match_ranges import Begun, Span, begun, ranges_of, starting_offsets, topics_of
from landonce.protocol.ranges import Partition, Range
from landonce.query.examine import coordinates_of
from landonce.query.rows import numbers, ordered
from landonce.read.schema.fields import Field, Schema
from landonce.sinks.run import Run, query_columns
from landonce.testing.reference_sinks import SqliteSink

T = Partition("t", 0)


def span(start: object, end: object) -> Span:
    return Span(json.dumps(start), json.dumps(end))


class TestOffsets:
    def test_a_range_lies_between_two_entries_and_an_empty_one_is_none(self) -> None:
        found = ranges_of([span({"t": {"0": 3, "1": 5}}, {"t": {"0": 9, "1": 5}}), span({}, {"u": {"7": 2}})])
        assert found == (Range(T, 3, 9), Range(Partition("u", 7), 0, 2))

    def test_all_partitions_are_known_with_where_the_query_began(self) -> None:
        span = Span('{"t":{"0":3,"1":5}}', '{"t":{"0":9,"1":5,"2":4}}', '{"t":{"0":1,"1":5}}')
        assert begun([span]) == (Begun(T, 1, 3), Begun(Partition("t", 1), 5, 5), Begun(Partition("t", 2), 0, 0))

    def test_a_partition_that_went_back_is_refused(self) -> None:
        with pytest.raises(errors.QueryRefused, match="went back from offset 3 to 2"):
            ranges_of([span({"t": {"0": 3}}, {"t": {"0": 2}})])

    def test_a_topic_of_two_sources_is_refused(self) -> None:
        both = [span({}, {"t": {"0": 2}}), span({}, {"t": {"1": 2}})]
        with pytest.raises(errors.QueryRefused, match="two of its sources read topic 't'"):
            topics_of(both)
        with pytest.raises(errors.QueryRefused, match="two of its sources read topic 't'"):
            ranges_of([both[0], both[0]])

    @pytest.mark.parametrize("text", ["7", '{"logOffset":0}', "[]", "-"])
    def test_offsets_of_another_source_are_refused(self, text: str) -> None:
        with pytest.raises(errors.QueryRefused, match="not those of Kafka"):
            ranges_of([Span("{}", text)])

    def test_a_new_checkpoint_starts_at_the_ledger_and_unknown_partitions_at_their_beginning(self) -> None:
        text = starting_offsets({T: 7}, [Partition("t", 1), T])
        assert json.loads(text) == {"t": {"0": 7, "1": -2}}


class TestRows:
    def table(self, *offsets: int) -> pa.Table:
        count = len(offsets)
        return pa.table(
            {
                "_topic": ["t"] * count,
                "_partition": pa.array([0] * count, pa.int32()),
                "_offset": pa.array(offsets, pa.int64()),
                "id": [str(at) for at in offsets],
            }
        )

    def test_rows_of_a_block_are_in_order_whatever_order_they_came_in(self) -> None:
        assert ordered(self.table(5, 3, 9), {}).equals(ordered(self.table(9, 5, 3), {}))
        assert ordered(self.table(5, 3, 9), {}).column("id").to_pylist() == ["3", "5", "9"]

    def test_a_rebased_topic_lands_under_its_label(self) -> None:
        assert ordered(self.table(5, 3), {"t": "t@2"}).column("_topic").to_pylist() == ["t@2", "t@2"]
        assert ordered(self.table(5), {"t": "t@2", "t[0]": "t@3"}).column("_topic").to_pylist() == ["t@3"]
        assert ordered(self.table(5), {"t[1]": "t@3"}).column("_topic").to_pylist() == ["t"]

    def test_a_coordinate_that_comes_twice_is_refused(self) -> None:
        with pytest.raises(errors.QueryRefused, match=r"t\[0\], offset 5 comes more than once"):
            ordered(self.table(5, 3, 5), {})

    def test_no_rows_are_no_rows(self) -> None:
        assert ordered(self.table().cast(self.table(1).schema), {}).num_rows == 0

    @pytest.mark.parametrize("count", [1, 2, 7, 64])
    def test_each_block_has_a_number_of_its_own(self, count: int) -> None:
        assert len(set(numbers(count))) == count


def refuse_misfits(gives: pa.Schema, target: Schema, table: str) -> None:
    nothing: Any = None
    Run("q", nothing, nothing, query=gives).refuse_misfits(target, table)


class TestColumns:
    def test_coordinates_go_by_two_sets_of_names(self) -> None:
        assert coordinates_of(["id", "offset", "topic", "partition"]) == ("topic", "partition", "offset")
        assert coordinates_of(["topic", "_topic", "_partition", "_offset", "partition", "offset"])[0] == "_topic"
        with pytest.raises(errors.QueryRefused, match="have no coordinates: they need topic, partition, offset"):
            coordinates_of(["topic", "_partition", "offset"])

    def test_what_the_table_does_not_take_is_named(self) -> None:
        target = Schema((Field("id", pa.int64(), required=True), Field("word", pa.string())))
        refuse_misfits(pa.schema([("_topic", pa.string()), ("id", pa.int32())]), target, "t")
        with pytest.raises(errors.QueryRefused, match="t has no column 'key', 'value'; it has id, word"):
            refuse_misfits(pa.schema([("key", pa.binary()), ("value", pa.binary())]), target, "t")
        with pytest.raises(errors.QueryRefused, match="lack id, which t requires"):
            refuse_misfits(pa.schema([("word", pa.string())]), target, "t")
        with pytest.raises(errors.QueryRefused, match="column 'id' is of type list"):
            refuse_misfits(pa.schema([("id", pa.list_(pa.int64()))]), target, "t")

    def test_rows_that_are_nothing_but_coordinates_make_no_table(self) -> None:
        with pytest.raises(errors.QueryRefused, match="nothing but coordinates"):
            query_columns(pa.schema([("_topic", pa.string())]))


class TestNames:
    def test_sinks_travel_and_do_not_show_passwords(self) -> None:
        for made in (
            landonce.sql("postgresql://u:s3cret-pw@h/db", "t"),
            landonce.clickhouse("http://u:s3cret-pw@h:8123/db", "t", settings={"a": 1}),
            landonce.iceberg("db.t", {"type": "rest", "uri": "http://u:s3cret-pw@h:8181", "token": "s3cret-pw"}),
        ):
            assert pickle.loads(pickle.dumps(made)) == made
            assert "s3cret-pw" not in repr(made)

    def test_a_copy_of_the_function_begins_again_and_spark_connect_is_refused(self, tmp_path: Path) -> None:
        once = landonce.exactly_once(landonce.sql(f"sqlite:///{tmp_path / 'db'}", "t"), name="q")
        copied = pickle.loads(pickle.dumps(once))
        with pytest.raises(errors.QueryRefused, match="Spark Connect"):
            copied(object(), 0)

    def test_a_mapping_names_the_database_that_it_names_in_a_pipeline_file(self, tmp_path: Path) -> None:
        """A secret is no file name, and its text is in no message."""
        house, url = landonce.clickhouse("http://h:8123/db", "t"), "postgresql://u:geheim-7@h/d"
        for given, where in (
            ({"postgres": SecretStr(url)}, url),
            ({"postgres": url}, url),
            ({"sqlite": tmp_path / "l"}, tmp_path / "l"),
            ({"sqlite": str(tmp_path / "l")}, tmp_path / "l"),
            ({"sqlite": f"sqlite:///{tmp_path}/l"}, f"sqlite:///{tmp_path}/l"),
            ({"memory": True}, None),
            (url, url),
        ):
            refuse_mistakes(house, given, "drop", 1)  # type: ignore[arg-type]
            assert Outside(house, given, OnRewind.DROP, 1, 1.0, Logged()).ledger_where == where  # type: ignore[arg-type]
        assert "geheim-7" not in redact("geheim-7")

    def test_a_relative_file_is_one_of_this_folder(self, in_folder: Path) -> None:
        assert landonce.sql("sqlite:///shop.db", "t").position_place == f"sqlite:///{in_folder / 'shop.db'}"
        assert landonce.iceberg("db.t").catalog.warehouse == f"file://{in_folder / 'lake'}"

    def test_what_cannot_be_is_refused_at_once(self, tmp_path: Path) -> None:
        sql, house = landonce.sql(f"sqlite:///{tmp_path / 'db'}", "t"), landonce.clickhouse("http://h:8123/db", "t")
        with pytest.raises(errors.ConfigError, match="kept in the target database"):
            landonce.exactly_once(sql, "sqlite:///ledger")
        with pytest.raises(errors.ConfigError, match="kept in the table itself"):
            landonce.exactly_once(landonce.iceberg("db.t"), "sqlite:///ledger")
        with pytest.raises(errors.ConfigError, match="'t' needs a namespace"):
            landonce.iceberg("t")
        with pytest.raises(errors.ConfigError, match="names many"):
            landonce.iceberg("db.{kind}")
        with pytest.raises(errors.ConfigError, match="a REST catalog needs a `uri`"):
            landonce.iceberg("db.t", {"type": "rest"})
        with pytest.raises(errors.ConfigError, match="say where the position is kept"):
            landonce.exactly_once(house)
        for unknown in ({"redis": "x"}, {"sqlite": "a", "memory": True}):
            with pytest.raises(errors.ConfigError, match="name one of keeper_map, memory, plugin, postgres, sqlite"):
                landonce.exactly_once(house, unknown)
        with pytest.raises(errors.ConfigError, match=r"ledger\.keeper_map\.path: "):
            landonce.exactly_once(house, {"keeper_map": {"path": "no slash"}})
        for mapping, why in (
            ({"postgres": "db:5432/x"}, r"ledger\.postgres: is not the URL of a PostgreSQL database"),
            ({"postgres": SecretStr("sqlite:///x")}, r"ledger\.postgres: is not the URL of a PostgreSQL database"),
            ({"sqlite": SecretStr("x.ledger")}, r"ledger\.sqlite: "),
            ({"sqlite": 7}, r"ledger\.sqlite: "),
            ({"sqlite": "postgresql://h/d"}, r"ledger\.sqlite: is a URL"),
            ({"sqlite": None}, "ledger: name one ledger"),
            (SecretStr("x.ledger"), "ledger: SecretStr names no place"),
        ):
            with pytest.raises(errors.ConfigError, match=why):
                landonce.exactly_once(house, mapping)  # type: ignore[arg-type]
        with pytest.raises(errors.ConfigError, match="there is no plug-in 'nowhere'"):
            landonce.exactly_once(house, {"plugin": {"name": "nowhere"}})
        pushed = landonce.wrap(print, idempotent=True)
        for other in ({"memory": True}, {"keeper_map": {"path": "/landonce"}}):
            with pytest.raises(errors.ConfigError, match=f"ledger.{next(iter(other))}: "):
                landonce.exactly_once(pushed, other)
        with pytest.raises(errors.ConfigError, match="is a table of ClickHouse, and this sink is none"):
            landonce.exactly_once(SqliteSink(tmp_path / "t.db"), {"keeper_map": {"path": "/landonce"}})
        with pytest.raises(errors.ConfigError, match="must be 1 to 100 letters"):
            landonce.exactly_once(sql, name="no spaces")
        with pytest.raises(errors.ConfigError, match="block_rows"):
            landonce.exactly_once(sql, block_rows=0)
        with pytest.raises(errors.ConfigError, match="is not a sink for queries"):
            landonce.exactly_once("clicks", name="q")  # type: ignore[arg-type]
        with pytest.raises(errors.ConfigError, match="between 1 and 3600"):
            landonce.clickhouse("http://h:8123/db", "t", deadline=0.1)
        with pytest.raises(errors.ConfigError, match="not to 'oracle'"):
            landonce.sql("oracle://h/db", "t")
        with pytest.raises(errors.ConfigError, match="`starting_offsets` needs it"):
            landonce.exactly_once(sql).starting_offsets("h:9092", ["t"])
        with pytest.raises(errors.ConfigError, match="drop or error, not 'skip'"):
            landonce.exactly_once(sql, on_rewind="skip")  # type: ignore[arg-type]
