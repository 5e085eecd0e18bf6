"""A real schema registry (Apicurio, by its interface that is compatible with Confluent's), and a gate before it.

The registry keeps everything in memory. The gate is what companies put before one: TLS, a user and a password, client
certificates; and it fails when a test says so.
"""

from __future__ import annotations

import json
import os
import ssl
import tarfile
import tempfile
import threading
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request

from certificates import Certificates

from landonce.jars import SCHEMA_REGISTRY, jars_of
from landonce.local.server import LOOPBACK, NO_PROXY, LocalJavaServer

_PATH = "/apis/ccompat/v7"
_KIND = "application/vnd.schemaregistry.v1+json"


def _unpacked() -> Path:
    """The archive's files, in the cache that holds the archive."""
    (archive,) = jars_of(SCHEMA_REGISTRY)
    folder = archive.parent / "unpacked"
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=archive.parent) as temporary:
            with tarfile.open(archive) as opened:
                opened.extractall(Path(temporary) / "all", filter="data")
            with suppress(OSError):  # another process was faster
                os.rename(Path(temporary) / "all", folder)
    return folder


class LocalSchemaRegistry(LocalJavaServer):
    """One registry. It forgets everything when it ends. With certificates, it listens with TLS, too."""

    name = "the schema registry"
    port_names = ("http", "https")

    def __init__(self, folder: Path, certificates: Certificates | None = None) -> None:
        super().__init__(folder, ports={})
        self._certificates = certificates

    @property
    def port(self) -> int:
        return self._port("http")

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}{_PATH}"

    @property
    def secure_url(self) -> str:
        return f"https://{LOOPBACK}:{self._port('https')}{_PATH}"

    def register(
        self, subject: str, schema: Any, kind: str = "AVRO", references: Sequence[Mapping[str, Any]] = ()
    ) -> int:
        """Adds a version to the subject; returns the id of the schema."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        asked = {"schema": text, "schemaType": kind, "references": list(references)}
        request = Request(f"{self.url}/subjects/{quote(subject, safe='')}/versions", json.dumps(asked).encode())
        request.add_header("Content-Type", _KIND)
        with NO_PROXY.open(request, timeout=30) as answer:
            return int(json.load(answer)["id"])

    def _prepare(self) -> None:
        self._prepare_java({})

    def _command(self) -> Sequence[str]:
        folder = _unpacked()
        jars = os.pathsep.join([*map(str, folder.glob("*-runner.jar")), f"{folder}/lib/*"])
        quick = ["-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        options = [f"-Dquarkus.http.host={LOOPBACK}", f"-Dquarkus.http.port={self.port}", "-Dquarkus.log.level=WARN"]
        if self._certificates is not None:
            tls = {
                "insecure-requests": "enabled",
                "ssl-port": self._port("https"),
                "ssl.certificate.files": self._certificates.server(),
                "ssl.certificate.key-files": self._certificates.server_key,
            }
            options += [f"-Dquarkus.http.{name}={value}" for name, value in tls.items()]
        return self._java(jars, *quick, *options, "io.quarkus.runner.GeneratedMain")

    def _answers(self) -> bool:
        try:
            with NO_PROXY.open(f"{self.url}/subjects", timeout=2) as answer:
                return bool(answer.status == 200)
        except (HTTPError, URLError, OSError):
            return False


class Gate:
    """Passes requests on to a registry. `failures`: what happens to the next ones instead: an HTTP status, or `reset`."""

    def __init__(
        self,
        registry: LocalSchemaRegistry,
        *,
        user: str = "",
        password: str = "",
        tls: Certificates | None = None,
        kind: str = "good",
        ask_client: bool = False,
    ) -> None:
        self.failures: list[int | str] = []
        self.asked: list[str] = []
        wanted = "Basic " + b64encode(f"{user}:{password}".encode()).decode() if user else None
        gate = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                gate.asked.append(self.path)
                if gate.failures:
                    self._fail(gate.failures.pop(0))
                elif wanted is not None and self.headers.get("Authorization") != wanted:
                    self._answer(401, b'{"error_code":401,"message":"Unauthorized"}')
                else:
                    self._pass_on()

            def _fail(self, how: int | str) -> None:
                if how == "reset":
                    self.connection.close()
                    self.close_connection = True
                else:
                    self._answer(int(how), b"<html>a proxy's page</html>")

            def _pass_on(self) -> None:
                try:
                    with NO_PROXY.open(f"http://{LOOPBACK}:{registry.port}{self.path}", timeout=30) as answer:
                        self._answer(answer.status, answer.read())
                except HTTPError as error:
                    self._answer(error.code, error.read())

            def _answer(self, status: int, data: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", _KIND)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        scheme = "http"
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls.server(kind))
            if ask_client:
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_verify_locations(tls.authority)
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
            scheme = "https"
        self.url = f"{scheme}://{LOOPBACK}:{self._server.server_address[1]}{_PATH}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
