"""The pipeline file: what it may say, and what a person reads when it says something else."""

import copy
import re
from pathlib import Path

import pytest
import yaml

from landonce.config.dedup import Dedup, KeyPart
from landonce.config.load import keys_of, validated
from landonce.config.model import DeadLetters, byte_size, seconds, share
from landonce.config.part import Part
from landonce.errors import ConfigError
from landonce.sinks.pipeline_file import load, parse

ISSUE = """
pipeline: clicks
source:
  kafka: {bootstrap_servers: "localhost:9092", topics: [clicks], format: json, start: earliest}
transform: {where: "event <> 'ping'"}        # optional
sink:
  clickhouse: {url: "http://default:${CH_PASSWORD}@localhost:8123/default", table: clicks, create: true}
ledger: {sqlite: clicks.ledger}
batch: {interval: 1s, max_rows: 1000000, block_rows: 200000}
dead_letters: {path: dead/}
"""
FILE = {
    "pipeline": "clicks",
    "source": {"kafka": {"bootstrap_servers": "localhost:9092", "topics": ["clicks"]}},
    "sink": {"clickhouse": {"url": "http://default:@localhost:8123/default", "table": "clicks"}},
}
FOLDER = Path("/somewhere/pipelines")


def read(document=FILE, **changes):
    """The file with values put at dotted places."""
    document = copy.deepcopy(document)
    for place, value in changes.items():
        *parents, last = place.split("__")
        at = document
        for each in parents:
            at = at.setdefault(each, {})
        at[last] = value
    return parse(yaml.safe_dump(document), FOLDER / "clicks.yaml")


def refusal(**changes):
    with pytest.raises(ConfigError) as refused:
        read(**changes)
    assert refused.value.exit_code == 2
    return str(refused.value)


def test_the_ten_lines_of_the_readme(monkeypatch):
    monkeypatch.setenv("CH_PASSWORD", "a secret")
    config = parse(ISSUE, FOLDER / "clicks.yaml")
    assert config.pipeline == "clicks"
    assert config.source.kafka.topics == ("clicks",)
    assert config.transform.where == "event <> 'ping'"
    assert config.batch.interval == config.batch.every(60.0).interval == 1.0
    assert config.sink.create


def test_defaults():
    config = read()
    assert config.ledger.sqlite == FOLDER / "landonce.ledger"
    assert config.dead_letters.path == FOLDER / "dead"
    assert config.source.kafka.start.edge == "earliest"
    assert not config.sink.create
    assert config.transform.empty
    assert config.batch.every(60.0).interval == 60.0, "the sink says it where the file does not"


class TestYaml:
    def test_is_loaded_safely(self, tmp_path):
        """A tag that would run code is not understood, and nothing runs."""
        trap = tmp_path / "trap"
        text = f"pipeline: !!python/object/apply:os.system ['touch {trap}']"
        with pytest.raises(ConfigError, match="is not YAML"):
            parse(text, FOLDER / "clicks.yaml")
        assert not trap.exists()

    def test_is_broken(self):
        with pytest.raises(ConfigError, match="is not YAML"):
            parse("pipeline: [", FOLDER / "clicks.yaml")

    @pytest.mark.parametrize("text", ["", "clicks", "[1, 2]", "7"])
    def test_is_not_a_mapping(self, text):
        with pytest.raises(ConfigError, match="begins with `pipeline: NAME`"):
            parse(text, FOLDER / "clicks.yaml")

    @pytest.mark.parametrize(
        "text",
        ["pipeline: a\npipeline: b\n", "pipeline: a\nsource: {kafka: {topics: [a], topics: [b]}}\n"],
    )
    def test_a_key_stands_twice(self, text):
        with pytest.raises(ConfigError, match="occurs twice"):
            parse(text, FOLDER / "clicks.yaml")

    def test_there_is_no_such_file(self, tmp_path):
        with pytest.raises(ConfigError, match="there is no such file"):
            load(tmp_path / "none.yaml")

    def test_is_a_folder(self, tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            load(tmp_path)


class TestKeys:
    @pytest.mark.parametrize(
        ("place", "suggestion"),
        [
            ("pipline", "pipeline"),
            ("source__kafak", "kafka"),
            ("source__kafka__topcis", "topics"),
            ("source__kafka__shema", "schema"),
            ("transform__wher", "where"),
            ("sink__clickhous", "clickhouse"),
            ("sink__clickhouse__tabel", "table"),
            ("ledger__sqllite", "sqlite"),
            ("batch__max_row", "max_rows"),
            ("dead_letters__pth", "path"),
            ("spark__mastr", "master"),
        ],
    )
    def test_an_unknown_key_has_a_suggestion_at_each_level(self, place, suggestion):
        said = refusal(**{place: "x"})
        assert f"{place.replace('__', '.')}: unknown key; did you mean {suggestion!r}?" in said

    def test_a_key_that_resembles_nothing_gets_the_list(self):
        assert "known here:" in refusal(sink__clickhouse__zzzzzz=1)

    def test_a_missing_key_is_named_with_its_place(self):
        document = copy.deepcopy(FILE)
        del document["source"]["kafka"]["topics"]
        with pytest.raises(ConfigError, match=r"source\.kafka\.topics: is missing"):
            read(document)

    def test_every_mistake_is_named_at_once(self):
        said = refusal(pipline="x", batch__max_rows=0, source__kafka__start="yesterday")
        assert all(place in said for place in ("pipline", "batch.max_rows", "source.kafka.start"))

    @pytest.mark.parametrize("name", ["", "a b", "-x", "a/b", "x" * 101])
    def test_a_pipeline_name(self, name):
        assert "pipeline:" in refusal(pipeline=name)

    def test_one_topic_is_a_list_too(self):
        assert "source.kafka.topics: must be a list" in refusal(source__kafka__topics="clicks")

    @pytest.mark.parametrize(
        ("place", "value", "said"),
        [
            ("pipeline", 5, "pipeline: must be text"),
            (
                "source__kafka__start",
                "yesterday",
                "source.kafka.start: must be earliest, latest, {timestamp: 2026-11-01T00:00:00Z}, {offsets",
            ),
            ("source__kafka__schema", 5, "source.kafka.schema: must be text or a mapping of names to types"),
            ("source__kafka__options", {"a": [1]}, "source.kafka.options.a: must be text or a whole number"),
            ("sink__clickhouse", "here", "sink.clickhouse: must be a section with keys of its own: table, tables"),
            ("sink__clickhouse__create", "perhaps", "sink.clickhouse.create: must be true or false"),
            ("sink__clickhouse__table", "", "sink.clickhouse.table: must not be empty"),
            ("batch__max_rows", "many", "batch.max_rows: must be a whole number"),
            ("batch__max_rows", 0, "batch.max_rows: must be more than 0"),
            ("batch__block_rows", 2_000_000, "batch.block_rows: must be at most 1000000"),
            ("transform__select", "lower(x)", "transform.select: must be a list"),
            ("spark__conf", 5, "spark.conf: must be a mapping"),
        ],
    )
    def test_what_a_value_must_be_is_said_once_and_in_plain_words(self, place, value, said):
        message = refusal(**{place: value})
        assert said in message
        assert "Input should" not in message
        assert len(message.splitlines()) == 2

    def test_every_mistake_has_its_line(self):
        text = "pipeline: clicks\nsource:\n  kafka:\n    topcis: [a]\n\n    start: now\nsink:\n  clickhouse: {url: x}\n"
        with pytest.raises(ConfigError) as refused:
            parse(text, Path("clicks.yaml"))
        lines = refused.value.what.splitlines()[1:]
        assert [line.split(":")[0].strip() + ":" + line.split(":")[1] for line in lines] == [
            "line 3: source.kafka.bootstrap_servers",
            "line 3: source.kafka.topics",
            "line 4: source.kafka.topcis",
            "line 6: source.kafka.start",
            "line 8: sink.clickhouse",
        ]

    def test_a_topic_named_twice(self):
        assert "named twice" in refusal(source__kafka__topics=["a", "a"])

    def test_two_ledgers_or_none(self):
        assert "name one ledger" in refusal(ledger={"sqlite": "a", "postgres": "postgresql://h/d"})
        assert "name one ledger" in refusal(ledger={})
        assert "name one ledger" in refusal(ledger={"memory": True, "keeper_map": {"path": "/a"}})
        assert "ledger.memory" in refusal(ledger={"memory": False})

    def test_keeper_map_needs_a_path_and_a_store_for_dedup(self):
        assert read(ledger={"keeper_map": {"path": "/a/b"}}).ledger.keeper_map.table == "landonce_ledger"
        for path in ("", "a", "/", "/a/"):
            assert "ledger.keeper_map.path" in refusal(ledger={"keeper_map": {"path": path}})
        for ledger in ({"keeper_map": {"path": "/a"}}, {"memory": True}):
            assert "dedup.store: is missing" in refusal(ledger=ledger, dedup={"key": ["id"]})


@pytest.mark.parametrize(
    "option",
    [
        "bootstrap.servers",
        "group.id",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "isolation.level",
        "auto.offset.reset",
        "enable.partition.eof",
        "group.instance.id",
        "metadata.broker.list",
    ],
)
def test_what_the_guarantee_rests_on_cannot_be_set(option):
    assert f"{option} is set by landonce itself" in refusal(source__kafka__options={option: "x"})


def test_other_librdkafka_options_pass():
    config = read(source__kafka__options={"security.protocol": "SASL_SSL", "socket.keepalive.enable": True})
    assert config.source.kafka.options["security.protocol"] == "SASL_SSL"


class TestEnvironment:
    @pytest.mark.parametrize("password", ["p@ss/w:rd", "a%2Fb", "x y#z?", "ümlaut", "plain"])
    def test_any_password_will_do_in_a_url(self, monkeypatch, password):
        from landonce.sinks.clickhouse.address import parse_url

        monkeypatch.setenv("CH_PASSWORD", password)
        config = read(sink__clickhouse__url="http://me:${CH_PASSWORD}@host:8123/db")
        address = parse_url(config.sink.url.get_secret_value())
        assert (address.user, address.password, address.host, address.database) == ("me", password, "host", "db")

    def test_outside_of_a_password_it_stands_as_it_is(self, monkeypatch):
        monkeypatch.setenv("BROKERS", "a:9092,b:9092")
        assert read(source__kafka__bootstrap_servers="${BROKERS}").source.kafka.bootstrap_servers == "a:9092,b:9092"

    def test_in_lists_and_options(self, monkeypatch):
        monkeypatch.setenv("TOPIC", "clicks")
        monkeypatch.setenv("SASL_PASSWORD", "s/e@c")
        config = read(source__kafka__topics=["${TOPIC}"], source__kafka__options={"sasl.password": "${SASL_PASSWORD}"})
        assert config.source.kafka.topics == ("clicks",)
        assert config.source.kafka.options["sasl.password"] == "s/e@c"

    def test_what_is_missing_is_named(self, monkeypatch):
        monkeypatch.delenv("NOT_THERE", raising=False)
        monkeypatch.delenv("NOR_THIS", raising=False)
        said = refusal(sink__clickhouse__table="${NOT_THERE}", pipeline="${NOR_THIS}")
        assert "the environment does not have NOR_THIS, NOT_THERE" in said
        assert "export NOR_THIS=" in said

    def test_a_value_is_not_filled_again(self, monkeypatch):
        monkeypatch.setenv("ONE", "${TWO}")
        monkeypatch.setenv("TWO", "never")
        assert read(sink__clickhouse__table="${ONE}").sink.table == "${TWO}"


class TestValues:
    @pytest.mark.parametrize(
        ("said", "meant"),
        [("500ms", 0.5), ("15s", 15), ("2m", 120), ("1h", 3600), ("60d", 5_184_000), (3, 3), ("1.5", 1.5), ("0s", 0)],
    )
    def test_durations(self, said, meant):
        assert seconds(said) == meant

    @pytest.mark.parametrize("said", ["soon", "-1s", "1 day", True, None, "", "1s2m"])
    def test_what_is_no_duration(self, said):
        with pytest.raises(ValueError, match="is not a duration; write for example 500ms, 15s, 2m, 1h or 60d"):
            seconds(said)

    @pytest.mark.parametrize(
        ("said", "meant"), [("64MB", 64_000_000), ("256MiB", 2**28), ("1kb", 1000), (17, 17), ("1.5KiB", 1536)]
    )
    def test_sizes(self, said, meant):
        assert byte_size(said) == meant

    @pytest.mark.parametrize("said", ["big", "-1", "1TBs", False, None])
    def test_what_is_no_size(self, said):
        with pytest.raises(ValueError, match="not a size"):
            byte_size(said)

    def test_are_named_with_their_place(self):
        assert "batch.interval: is not a duration" in refusal(batch__interval="soon")
        assert "batch.block_bytes: is not a size" in refusal(batch__block_bytes="big")

    @pytest.mark.parametrize(
        ("place", "value"),
        [
            ("batch__max_rows", 0),
            ("batch__block_rows", 1_000_001),
            ("sink__clickhouse__deadline", "0s"),
            ("sink__clickhouse__deadline", "2h"),
            ("stall", 0),
            ("source__kafka__topics", []),
            ("dead_letters__path", "s3://bucket/dead"),
            ("pipeline", "orders\n"),
        ],
    )
    def test_limits(self, place, value):
        assert place.replace("__", ".") in refusal(**{place: value})


def test_relative_paths_are_taken_from_the_file(tmp_path, monkeypatch):
    """The command may be run from anywhere; the ledger must always be the same one."""
    (tmp_path / "conf").mkdir()
    file = tmp_path / "conf" / "clicks.yaml"
    file.write_text(yaml.safe_dump({**FILE, "ledger": {"sqlite": "l/clicks.ledger"}, "dead_letters": {"path": "dead"}}))
    monkeypatch.chdir(tmp_path)
    for named in (Path("conf/clicks.yaml"), file):
        config = load(named)
        assert config.ledger.sqlite == tmp_path / "conf" / "l" / "clicks.ledger"
        assert config.dead_letters.path == tmp_path / "conf" / "dead"


def test_absolute_paths_stay():
    config = read(ledger={"sqlite": "/var/l"}, dead_letters={"path": "/var/dead"})
    assert (config.ledger.sqlite, config.dead_letters.path) == (Path("/var/l"), Path("/var/dead"))


class DedupFile(Part):
    dedup: Dedup


def dedup(text):
    """The section `dedup` of this text, checked as a pipeline file is."""
    return validated(f"dedup: {text}", Path("clicks.yaml"), DedupFile, lambda where: keys_of(DedupFile, where)).dedup


class TestDedup:
    def test_defaults(self):
        section = dedup("{key: [project, order.id]}")
        assert section.key == (KeyPart(field="project"), KeyPart(field="order.id"))
        assert (section.scope, section.store, section.shards) == (None, None, 16)
        assert (section.ttl, section.keep_sent, section.cache) == (60 * 86_400, 86_400, 4 * 2**30)
        assert (section.late, section.on_null, section.payloads) == ("dead_letter", "dead_letter", "ttl")

    def test_parts_of_a_key(self):
        section = dedup("{key: [a, {field: b}, {kafka_key: true}, {header: h}]}")
        assert [*map(str, section.key)] == ["a", "b", "the Kafka key", "header 'h'"]

    def test_a_rule_per_value(self):
        section = dedup("{by: event_type, rules: {click: [id], purchase: [order.id, {header: h}], '*': [id]}}")
        assert section.by == "event_type"
        assert [*section.rules] == ["click", "purchase", "*"]
        assert section.rules["purchase"] == (KeyPart(field="order.id"), KeyPart(header="h"))

    def test_every_option(self):
        section = dedup(
            "{key: [id], scope: shop, ttl: 7d, late: drop, on_null: unique, shards: 1024, payloads: sent, keep_sent: 2h, cache: 1.5GiB}"
        )
        assert (section.scope, section.ttl, section.late, section.on_null) == ("shop", 604_800, "drop", "unique")
        assert (section.shards, section.payloads, section.keep_sent) == (1024, "sent", 7200)
        assert section.cache == 3 * 2**29

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("{}", "dedup: needs a key: [FIELD, …], or by: FIELD and rules: {VALUE: [FIELD, …]}"),
            ("{key: []}", "dedup.key: must not be empty"),
            ("{key: id}", "dedup.key: must be a list, in brackets even if it has one element"),
            ("{key: [a, b, a]}", "dedup.key: names a twice"),
            ("{key: [a, {field: a}]}", "dedup.key: names a twice"),
            ("{key: [{kafka_key: true}, {kafka_key: true}]}", "dedup.key: names the Kafka key twice"),
            ("{key: [{header: h}, {header: h}]}", "dedup.key: names header 'h' twice"),
            ("{key: ['']}", "dedup.key.0.field: must not be empty"),
            ("{key: [{header: ''}]}", "dedup.key.0.header: must not be empty"),
            ("{key: [{kafka_key: false}]}", "dedup.key.0: a part of a key is one of NAME, {field: NAME}"),
            ("{key: [{}]}", "dedup.key.0: a part of a key is one of NAME, {field: NAME}"),
            ("{key: [{field: a, header: h}]}", "dedup.key.0: a part of a key is one of NAME, {field: NAME}"),
            ("{key: [7]}", "dedup.key.0: a part of a key is one of NAME, {field: NAME}"),
            ("{key: [{heder: h}]}", "dedup.key.0: a part of a key is one of NAME, {field: NAME}"),
            ("{key: [a], by: b, rules: {x: [a]}}", "dedup: write key, or by and rules, not both"),
            ("{key: [a], rules: {x: [a]}}", "dedup: write key, or by and rules, not both"),
            ("{by: b}", "dedup: rules is missing: a key for each value of b"),
            ("{rules: {x: [a]}}", "dedup: by is missing: the field whose value chooses one of the rules"),
            ("{by: '', rules: {x: [a]}}", "dedup.by: must not be empty"),
            ("{by: b, rules: {}}", "dedup.rules: must not be empty"),
            ("{by: b, rules: {x: []}}", "dedup.rules.x: must not be empty"),
            ("{by: b, rules: {x: [a, a]}}", "dedup.rules.x: names a twice"),
            ("{by: b, rules: {x: [7]}}", "dedup.rules.x.0: a part of a key is one of NAME, {field: NAME}"),
            ("{by: b, rules: {'': [a]}}", "dedup: rules: the name of a rule must not be empty"),
            ("{by: b, rules: {1: [a]}}", "put it in quotes"),
            ("{key: [a], shards: 12}", "dedup: shards: must be a power of two from 1 to 1024, not 12"),
            ("{key: [a], shards: 0}", "dedup.shards: must be at least 1"),
            ("{key: [a], shards: 2048}", "dedup.shards: must be at most 1024"),
            ("{key: [a], ttl: 0s}", "dedup.ttl: must be more than 0"),
            ("{key: [a], ttl: 2 months}", "dedup.ttl: is not a duration"),
            ("{key: [a], keep_sent: -1d}", "dedup.keep_sent: is not a duration"),
            ("{key: [a], cache: 4 gigs}", "dedup.cache: is not a size"),
            ("{key: [a], cache: 0}", "dedup.cache: must be more than 0"),
            ("{key: [a], late: keep}", "dedup.late: must be 'dead_letter', 'accept' or 'drop'"),
            ("{key: [a], on_null: skip}", "dedup.on_null: must be 'dead_letter', 'unique' or 'value'"),
            ("{key: [a], payloads: never}", "dedup.payloads: must be 'ttl' or 'sent'"),
            ("{key: [a], scope: 'a b'}", "dedup.scope: must be 1 to 100 letters, digits"),
            ("{key: [a], store: {}}", "dedup.store: name one store: sqlite, postgres, mysql or ydb"),
            ("{key: [a], store: {sqlite: a, mysql: 'mysql://h/d'}}", "dedup.store: name one store"),
            ("{key: [a], tll: 1d}", "dedup.tll: unknown key; did you mean 'ttl'?"),
        ],
    )
    def test_every_mistake_is_named_once_and_in_plain_words(self, text, said):
        with pytest.raises(ConfigError) as refused:
            dedup(text)
        message = str(refused.value)
        assert said in message
        assert "Input should" not in message
        assert len(message.splitlines()) == 2

    def test_the_store(self, tmp_path):
        near = dedup("{key: [a], store: {sqlite: keys.db}}")
        assert near.beside(tmp_path).store.place == tmp_path / "keys.db"
        assert dedup("{key: [a]}").beside(tmp_path).store is None
        for name in ("postgres", "mysql"):
            far = dedup(f"{{key: [a], store: {{{name}: '{name}://u:s3cr3t-of-{name}@h/d'}}}}").beside(tmp_path)
            assert far.store.place == f"{name}://u:s3cr3t-of-{name}@h/d"
            assert "s3cr3t" not in repr(far)


class TestTopics:
    def test_a_regular_expression_matches_whole_names_and_never_internal_topics(self):
        topics = read(source__kafka__topics={"match": r"shop\..*|.*offsets"}).source.kafka.topics
        names = ["shop.orders", "workshop.orders", "__consumer_offsets", "my_offsets"]
        assert [each for each in names if topics.takes(each)] == ["shop.orders", "my_offsets"]

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"match": "("}, "source.kafka.topics: match: is not a regular expression"),
            ({"match": ""}, "source.kafka.topics.match: must not be empty"),
            ({"mtach": "x"}, "source.kafka.topics.mtach: unknown key"),
            ([], "source.kafka.topics: must not be empty"),
            (["a", 5], "source.kafka.topics.1: must be text"),
        ],
    )
    def test_what_is_refused(self, given, said):
        assert said in refusal(source__kafka__topics=given)


@pytest.mark.parametrize(
    ("written", "part"), [("1%", 0.01), ("0.5 %", 0.005), ("100%", 1.0), (0.1, 0.1), ("0", 0.0), (1, 1.0)]
)
def test_a_share_is_written_as_percent_or_as_a_number(written: object, part: float) -> None:
    assert share(written) == pytest.approx(part)


@pytest.mark.parametrize("written", ["101%", "-1%", 2, True, "a few", "1e-3", None])
def test_what_is_no_share_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="is not a share of the records"):
        share(written)


def test_the_policy_on_the_page_is_the_default() -> None:
    page = (Path(__file__).parents[2] / "docs" / "dead-letters.md").read_text()
    [shown] = re.findall(r"```yaml\n(dead_letters:.*?)```", page, re.DOTALL)
    section = DeadLetters.model_validate(yaml.safe_load(shown)["dead_letters"])
    assert section == DeadLetters(path=Path("dead"))


class TestTables:
    """The grammar of `table` and `tables` is one for all sinks that have it."""

    @pytest.mark.parametrize(
        ("section", "said"),
        [
            ({}, "name one `table`, or a list of `tables`"),
            ({"table": "t", "tables": [{"table": "u"}]}, "name one `table`, or a list of `tables`"),
            ({"tables": [{"table": "u", "equals": "x"}]}, "need a `route_field`"),
            ({"table": "t", "route_field": "kind"}, "goes with a list of `tables`"),
            ({"tables": [{"table": "u"}], "route_field": "_topic"}, "give each of the `tables` its `topics`"),
            ({"table": "{a}_{b}"}, "names two fields"),
            ({"tables": [{"table": "u", "topics": ["other"]}]}, "no table takes the topic clicks"),
            (
                {"tables": [{"table": "u"}, {"table": "v", "topics": ["other"]}]},
                "other is not one of source.kafka.topics",
            ),
            ({"tables": [{"table": "u", "topics": {"match": "("}}]}, "is not a regular expression"),
            ({"table": "{kind}", "mode": "upsert", "key": "id"}, "upsert goes with one table"),
            ({"table": "t", "evolve": True, "mode": "upsert", "key": "id"}, "upsert goes with one table"),
        ],
    )
    def test_what_is_refused(self, section, said):
        assert said in refusal(sink={"clickhouse": {"url": "http://h/d", **section}})

    def test_dedup_takes_one_table(self):
        in_lists = {"tables": [{"table": "d.t"}, {"table": "d.u"}]}
        for tables in ({"table": "d.t_{kind}"}, {"table": "d.{_topic}"}, in_lists):
            for many in ({"clickhouse": {"url": "http://h/d", **tables}}, {"iceberg": tables}):
                said = refusal(sink=many, ledger={"sqlite": "ledger"}, dedup={"key": ["id"], "ttl": "1d"})
                assert "dedup: takes one table, and the sink writes to several" in said

    def test_expressions_do_not_go_with_evolve(self):
        evolving = {"clickhouse": {"url": "http://h/d", "table": "t", "evolve": True}}
        assert "nor `evolve`" in refusal(sink=evolving, transform={"where": "id > 0"})

    def test_a_topic_map_and_templates(self):
        tables = [{"table": "a", "topics": ["clicks"]}, {"table": "b", "topics": {"match": "c.*"}, "equals": "x"}]
        config = read(sink={"clickhouse": {"url": "http://h/d", "tables": tables, "route_field": "kind"}})
        assert config.sink.routing.static == ("a", "b")
        for table, field in (("{_topic}", None), ("e_{kind}", "kind"), ("{_topic}_{kind}", "kind")):
            assert read(sink={"clickhouse": {"url": "http://h/d", "table": table}}).sink.routing.field == field
