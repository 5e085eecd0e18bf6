"""No secret is ever read by a person: not in a repr, an error, a log line or a document."""

import json
import logging
import pickle

import pytest
import yaml

from landonce.cli.command import err, say_error
from landonce.config import secrets
from landonce.config.secrets import RedactingFilter, redact, remember, remember_url
from landonce.errors import ConfigError, Halt
from landonce.sinks.parts import open_parts
from landonce.sinks.pipeline_file import parse

PASSWORD = "hunter2/with@odd:chars"
ENCODED = "hunter2%2Fwith%40odd%3Achars"
FILE = """
pipeline: clicks
source:
  kafka:
    bootstrap_servers: "localhost:9092"
    topics: [clicks]
    options: {sasl.password: "${SASL}", security.protocol: SASL_PLAINTEXT, sasl.mechanism: PLAIN, sasl.username: me}
sink:
  clickhouse: {url: "http://me:${CH_PASSWORD}@localhost:8123/default", table: clicks}
ledger: {postgres: "postgresql://me:written-down@localhost/db"}
"""


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    """Each test begins with nothing known, and leaves nothing known to others."""
    monkeypatch.setattr(secrets, "_known", set())
    monkeypatch.setenv("CH_PASSWORD", PASSWORD)
    monkeypatch.setenv("SASL", "sasl-s3cret")


@pytest.fixture
def config(tmp_path):
    return parse(FILE, tmp_path / "clicks.yaml")


def clean(text: str) -> bool:
    return not any(each in text for each in (PASSWORD, ENCODED, "hunter2", "sasl-s3cret", "written-down"))


def test_a_config_says_none(config):
    assert clean(repr(config))
    assert clean(str(config))
    assert clean(repr(config.source.kafka))


def test_the_parts_say_none(config):
    parts = open_parts(config)
    assert clean(repr(parts.sink))
    assert clean(str(parts.sink))
    assert clean(repr(parts))
    assert PASSWORD.encode() in pickle.dumps(parts.sink) or ENCODED.encode() in pickle.dumps(parts.sink)


@pytest.mark.parametrize("secret", [PASSWORD, ENCODED, "sasl-s3cret", "written-down"])
def test_whatever_the_file_holds_is_blotted_out(config, secret):
    assert redact(f"it was {secret}, was it not") == "it was ***, was it not"


def test_an_error_about_the_file_says_none(tmp_path):
    broken = yaml.safe_load(FILE)
    broken["sink"]["clickhouse"]["tabel"] = "x"
    broken["ledger"]["sqlite"] = "y"
    with pytest.raises(ConfigError) as refused:
        parse(yaml.safe_dump(broken), tmp_path / "clicks.yaml")
    assert clean(str(refused.value))
    assert refused.value.__cause__ is None


def test_a_value_of_the_wrong_type_is_not_shown(tmp_path):
    broken = yaml.safe_load(FILE)
    broken["source"]["kafka"]["options"] = "${SASL}"
    with pytest.raises(ConfigError) as refused:
        parse(yaml.safe_dump(broken), tmp_path / "clicks.yaml")
    assert clean(str(refused.value))


def test_yaml_that_is_broken_beside_a_password(tmp_path):
    with pytest.raises(ConfigError) as refused:
        parse('sink: {clickhouse: {url: "http://me:hunter2@h/d"}', tmp_path / "clicks.yaml")
    assert clean(str(refused.value))


def test_passwords_in_urls_without_being_named():
    assert redact("no http://me:hunter2@host/db there") == "no http://me:***@host/db there"
    assert redact("postgresql+psycopg://u:p@ss@h/d") == "postgresql+psycopg://u:***@h/d"
    assert redact("http://me:a/b@c@host/db") == "http://me:***@host/db"
    assert redact("http://host:8123/db and a@b") == "http://host:8123/db and a@b"


def test_the_longer_secret_goes_first():
    remember("secret")
    remember("secret-and-more")
    assert redact("secret-and-more") == "***"


def test_short_words_are_not_blotted_out():
    remember("on")
    remember_url("http://u:x@h")
    assert redact("the position on x") == "the position on x"


def test_a_user_beside_a_password_is_shown(tmp_path):
    login = {"type": "basic", "basic": {"username": "ann", "password": "hunter2"}}
    catalog = {"type": "rest", "uri": "http://h", "auth": login}
    document = yaml.safe_load(FILE) | {"sink": {"iceberg": {"table": "db.t", "catalog": catalog}}}
    del document["ledger"]
    parse(yaml.safe_dump(document), tmp_path / "clicks.yaml")
    assert redact("ann cannot log in with hunter2") == "ann cannot log in with ***"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.kubernetes.authenticate.driver.serviceAccountName", "spark"),
        ("spark.network.crypto.keyLength", "128"),
        ("spark.network.crypto.keyFactoryAlgorithm", "PBKDF2WithHmacSHA1"),
        ("spark.ssl.keyStoreType", "PKCS12"),
        ("spark.hadoop.fs.s3a.aws.credentials.provider", "com.example.Provider"),
        ("spark.hadoop.hadoop.security.authentication", "kerberos"),
        ("spark.yarn.keytab", "/etc/landonce.keytab"),
        ("spark.security.credentials.renewalRatio", "0.75"),
        ("spark.authenticate", "true"),
    ],
)
def test_a_setting_of_spark_that_only_sounds_secret_is_shown(tmp_path, name, value):
    parse(yaml.safe_dump(yaml.safe_load(FILE) | {"spark": {"conf": {name: value}}}), tmp_path / "clicks.yaml")
    said = f"{name} is {value}, and spark ran 128 tasks"
    assert redact(said) == said


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.authenticate.secret", "hunter2hunter2"),
        ("spark.ssl.keyPassword", "12345678"),
        ("spark.hadoop.fs.s3a.access.key", "AKIA5"),
        ("spark.hadoop.fs.azure.account.key.data.dfs.core.windows.net", "bG9uZw=="),
        ("spark.sql.catalog.lake.token", "31415926"),
        ("spark.sql.catalog.lake.header.X-Auth-Type", "kept"),
    ],
)
def test_a_secret_setting_of_spark_is_hidden(tmp_path, name, value):
    parse(yaml.safe_dump(yaml.safe_load(FILE) | {"spark": {"conf": {name: value}}}), tmp_path / "clicks.yaml")
    assert redact(f"it is {value}.") == "it is ***."


def test_a_url_without_a_password_or_without_sense():
    remember_url("http://host/db")
    remember_url("http://[broken")
    assert redact("host") == "host"


def test_log_lines_arguments_and_tracebacks(config):
    lines = []

    class Keep(logging.Handler):
        def emit(self, record):
            lines.append(self.format(record))

    handler = Keep()
    handler.addFilter(RedactingFilter())
    logger = logging.getLogger("test_secrets")
    logger.addHandler(handler)
    logger.propagate = False
    try:
        logger.warning("with %s in it", PASSWORD)
        try:
            raise ValueError(f"no entry for {PASSWORD}")
        except ValueError:
            logger.exception("failed with %s", "sasl-s3cret")
    finally:
        logger.removeHandler(handler)
    assert lines[0] == "with *** in it"
    assert "Traceback" in lines[1]
    assert clean("\n".join(lines))


def test_an_error_on_the_command_line(config):
    with err.capture() as said:
        say_error(Halt(f"no: {PASSWORD}", safe=f"{ENCODED}", command=f"run {{file}} {PASSWORD}"), ["run", "a.yaml"])
    assert clean(said.get())
    assert "run a.yaml ***" in said.get()


def test_a_document(config):
    from landonce.cli.command import out, print_json

    with out.capture() as said:
        print_json({"what": f"with {PASSWORD}", "url": "http://me:other@host/db"})
    assert json.loads(said.get()) == {"what": "with ***", "url": "http://me:***@host/db"}
