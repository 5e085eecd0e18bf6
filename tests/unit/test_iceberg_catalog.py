"""The settings by which Spark opens a catalog: the same one, with its secrets where Spark hides them."""

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from landonce.config.secrets import redact
from landonce.errors import ConfigError, TargetRefused, TargetUnavailable
from landonce.sinks.iceberg import catalog
from landonce.sinks.iceberg.catalog import CatalogSpec
from landonce.sinks.iceberg.config import Catalog


def spark_settings(properties: dict[str, str], **spark: str) -> dict[str, str]:
    """The settings of the catalog `c`, without those that every catalog gets."""
    conf = CatalogSpec("c", properties, spark).spark_conf()
    assert conf["spark.sql.catalog.c"] == "org.apache.iceberg.spark.SparkCatalog"
    start = "spark.sql.catalog.c."
    return {name.removeprefix(start): value for name, value in conf.items() if name.startswith(start)}


def test_sqlite_is_the_same_file() -> None:
    conf = spark_settings({"type": "sql", "uri": "sqlite:////a folder/catalog.db", "warehouse": "file:///w"})
    assert conf["type"] == "jdbc"
    assert conf["uri"] == "jdbc:sqlite:/a folder/catalog.db"
    assert conf["jdbc.schema-version"] == "V1"
    assert conf["warehouse"] == "file:///w"


def test_postgresql_keeps_its_settings_and_the_password_stays_out_of_the_address() -> None:
    conf = spark_settings({"uri": "postgresql+psycopg://u:p%40w@host:6000/db?sslmode=verify-full&sslrootcert=/ca.pem"})
    assert conf["uri"] == "jdbc:postgresql://host:6000/db?sslmode=verify-full&sslrootcert=%2Fca.pem"
    assert (conf["jdbc.user"], conf["jdbc.password"]) == ("u", "p@w")


def test_a_rest_catalog_gets_pyicebergs_properties() -> None:
    conf = spark_settings({"type": "rest", "uri": "http://host/api", "credential": "a:b", "py-io-impl": "x.Y"})
    assert (conf["type"], conf["uri"], conf["credential"]) == ("rest", "http://host/api", "a:b")
    assert "py-io-impl" not in conf


def test_a_bucket_is_opened_by_icebergs_own_client() -> None:
    """Its region has two names. A disk is none."""
    keys = {"s3.endpoint": "http://host", "s3.region": "here", "s3.access-key-id": "k"}
    conf = spark_settings({"type": "sql", "uri": "sqlite:////c.db", "warehouse": "s3://b/w", **keys})
    assert conf["io-impl"] == "org.apache.iceberg.aws.s3.S3FileIO"
    assert (conf["client.region"], conf["s3.endpoint"], conf["s3.access-key-id"]) == ("here", "http://host", "k")
    rest = {"type": "rest", "uri": "http://host"}
    assert spark_settings({**rest, "s3.region": "here", "io-impl": "x.Y"})["io-impl"] == "x.Y"
    assert "io-impl" not in spark_settings(rest)


def test_a_setting_for_spark_alone_wins() -> None:
    assert spark_settings({"type": "rest", "uri": "http://host"}, uri="http://gate")["uri"] == "http://gate"


@pytest.mark.parametrize("uri", ["sqlite://", "sqlite:///:memory:", "mysql://host/db"])
def test_a_database_that_spark_cannot_open_is_refused(uri: str) -> None:
    with pytest.raises(ConfigError, match="catalog"):
        spark_settings({"type": "sql", "uri": uri})


def test_the_identity_of_a_catalog_holds_no_password() -> None:
    assert "word" not in CatalogSpec("c", {"type": "sql", "uri": "postgresql://u:word@host/db"}).identity


@pytest.mark.parametrize("login", ["none", "credential", "auth"])
def test_a_rest_catalog_that_never_answers_is_unreachable_from_the_first_request_on(
    monkeypatch: pytest.MonkeyPatch, login: str
) -> None:
    monkeypatch.setattr(catalog, "_TIMEOUTS", (1.0, 0.3))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(TargetUnavailable):
            CatalogSpec("c", {"type": "rest", "uri": uri, **_login(login, uri)}).open()


def _login(how: str, uri: str) -> dict[str, Any]:
    """In each of the ways in which PyIceberg asks for a token."""
    tokens = {"client_id": "id", "client_secret": "word", "token_url": f"{uri}/tokens"}
    ways: dict[str, dict[str, Any]] = {
        "credential": {"credential": "id:word"},
        "auth": {"auth": {"type": "oauth2", "oauth2": tokens}},
    }
    return ways.get(how, {})


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({"type": "nonsense"}, "nonsense"),
        ({"type": "bigquery"}, "pip install 'pyiceberg"),
        ({"type": "sql", "uri": "no url", "warehouse": "w"}, "URL"),
        ({"type": "sql", "uri": "nonsense://host/db", "warehouse": "w"}, "nonsense"),
        ({"type": "sql", "uri": "postgresql+psycopg2://host/db", "warehouse": "w"}, "sql-postgres"),
        ({"type": "rest", "uri": "host:8181"}, "host:8181"),
    ],
)
def test_a_catalog_that_cannot_be_opened_is_a_mistake_in_the_file(properties: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        CatalogSpec("c", properties).open()


class _TokenServer(BaseHTTPRequestHandler):
    """A REST catalog whose tokens are not for everybody."""

    def do_GET(self) -> None:
        self._answer(200, {"defaults": {}, "overrides": {}})

    def do_POST(self) -> None:
        self._answer(401, {"error": "invalid_client"})

    def _answer(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.mark.parametrize("how", ["credential", "auth"])
def test_a_wrong_credential_is_refused_and_not_waited_for(how: str) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _TokenServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        uri = f"http://127.0.0.1:{server.server_port}"
        try:
            with pytest.raises(TargetRefused, match="refused"):
                CatalogSpec("c", {"type": "rest", "uri": uri, **_login(how, uri)}).open()
        finally:
            server.shutdown()


def test_properties_may_hold_others_and_their_secrets_are_known() -> None:
    auth = {"type": "basic", "basic": {"username": "me", "password": "s3same"}}
    catalog = Catalog.model_validate({"type": "rest", "uri": "https://h", "auth": auth, "ssl": {"cabundle": "/ca"}})
    spec = CatalogSpec("c", catalog.properties())
    assert (spec.properties["auth"], spec.properties["ssl"]) == (auth, {"cabundle": "/ca"})
    assert not [name for name in spec.spark_conf() if "auth" in name or "ssl" in name], "Spark knows other ones"
    assert redact("it said s3same") == "it said ***"
    Catalog.model_validate(
        {"type": "rest", "uri": "https://h", "token-refresh-enabled": False, "auth-uri": "https://i"}
    )
    assert redact("false https://i") == "false https://i"
