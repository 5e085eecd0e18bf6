"""Real servers with TLS and logins: a Kafka with a listener for each, a PostgreSQL whose certificate can be changed, and a gate that ends TLS
before servers that have none of their own here."""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
import threading
import time
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from certificates import REFUSED, Certificates
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from landonce.local import LocalKafka
from landonce.local.postgres import LocalPostgres
from landonce.local.server import LOOPBACK

USER = "ann"
_TLS = ("tls", "mutual", *REFUSED)
_SASL = {"sasl_tls": "SASL_SSL", "sasl": "SASL_PLAINTEXT"}
_MODULES = "org.apache.kafka.common.security"


class SecureKafka(LocalKafka):
    """A broker with a plain listener for its owner, and these: `tls`; `mutual`, which asks for the client's certificate; one for each
    certificate that is refused; `sasl_tls` and `sasl`, with each mechanism. The password is the same in all of them."""

    port_names = (*LocalKafka.port_names, *_TLS, *_SASL)

    def __init__(self, folder: Path, certificates: Certificates, password: str) -> None:
        super().__init__(folder)
        self.certificates, self.password = certificates, password

    def at(self, listener: str) -> str:
        return f"{LOOPBACK}:{self._port(listener)}"

    def options(self, listener: str, mechanism: str = "") -> dict[str, str]:
        """What a client needs."""
        options = {"security.protocol": _SASL.get(listener, "SSL")}
        if "SSL" in options["security.protocol"]:
            options["ssl.ca.location"] = str(self.certificates.authority)
        if listener == "mutual":
            options["ssl.certificate.location"] = str(self.certificates.client)
            options["ssl.key.location"] = str(self.certificates.client_key)
        if mechanism == "OAUTHBEARER":
            options |= {"enable.sasl.oauthbearer.unsecure.jwt": "true", "sasl.oauthbearer.config": f"principal={USER}"}
        elif mechanism:
            options |= {"sasl.username": USER, "sasl.password": self.password}
        return options | ({"sasl.mechanism": mechanism} if mechanism else {})

    def config(self) -> dict[str, str]:
        config = super().config()
        listeners = {**dict.fromkeys(_TLS, "SSL"), **_SASL}
        for name in ("listeners", "advertised.listeners"):
            config[name] += "".join(f",{each.upper()}://{self.at(each)}" for each in listeners)
        kinds = "".join(f",{name.upper()}:{kind}" for name, kind in listeners.items())
        config["listener.security.protocol.map"] += kinds
        config["inter.broker.listener.name"] = "PLAINTEXT"
        for name in listeners:
            config |= self._keystore(name)
        for name in _SASL:
            config |= self._logins(f"listener.name.{name}.")
        return config

    def _keystore(self, listener: str) -> dict[str, str]:
        server = self.certificates.server(listener if listener in REFUSED else "good")
        options = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(server)}
        if listener == "mutual":
            options |= {"ssl.client.auth": "required", "ssl.truststore.type": "PEM"}
            options |= {"ssl.truststore.location": str(self.certificates.authority)}
        return {f"listener.name.{listener}.{name}": value for name, value in options.items()}

    def _logins(self, before: str) -> dict[str, str]:
        login = "sasl.jaas.config"
        scram = f"{_MODULES}.scram.ScramLoginModule required;"
        bearer = f"{_MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub={USER};"
        return {
            f"{before}sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            f"{before}plain.{login}": f'{_MODULES}.plain.PlainLoginModule required user_{USER}="{self.password}";',
            f"{before}scram-sha-256.{login}": scram,
            f"{before}scram-sha-512.{login}": scram,
            f"{before}oauthbearer.{login}": bearer,
        }

    def wait_ready(self, timeout: float = 60.0) -> None:
        super().wait_ready(timeout)
        mechanisms = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
        asked = [
            UserScramCredentialUpsertion(USER, ScramCredentialInfo(each, 4096), self.password.encode())
            for each in mechanisms
        ]
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        for each in asked:  # one request may change a user once
            for answer in admin.alter_user_scram_credentials([each]).values():
                answer.result(30)

    def make_topic(self, name: str, partitions: int = 2) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)


class TokenEndpoint:
    """Gives tokens to clients that know the secret, over TLS. They are not signed: that is what the broker takes."""

    def __init__(self, certificates: Certificates, secret: str) -> None:
        login = "Basic " + b64encode(f"{USER}:{secret}".encode()).decode()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                known = self.headers.get("Authorization") == login
                answer = {"access_token": _token(), "expires_in": 600, "token_type": "Bearer"}
                self._answer(200, answer) if known else self._answer(401, {"error": "invalid_client"})

            def _answer(self, status: int, document: dict[str, Any]) -> None:
                data = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificates.server())
        self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._certificates = certificates
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def options(self, secret: str) -> dict[str, str]:
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self._certificates.authority),
            "https.ca.location": str(self._certificates.authority),
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": f"https://{LOOPBACK}:{self._server.server_address[1]}/token",
            "sasl.oauthbearer.client.id": USER,
            "sasl.oauthbearer.client.secret": secret,
        }

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _token() -> str:
    now = int(time.time())
    claims = ({"alg": "none"}, {"sub": USER, "iat": now, "exp": now + 600})
    return ".".join([*(urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=") for each in claims), ""])


class SecurePostgres(LocalPostgres):
    """A server with TLS. `show` changes its certificate. The user `ann` logs in with the client's certificate, and with nothing else."""

    def __init__(self, folder: Path, certificates: Certificates) -> None:
        super().__init__(folder, fsync=False)
        self.certificates = certificates

    def secure_url(self, *, host: str = LOOPBACK, authority: str | Path | None = None, password: str = "") -> str:
        """`verify-full`."""
        root = self.certificates.authority if authority is None else authority
        login = f"landonce:{password or self.password}"
        return f"postgresql://{login}@{host}:{self.port}/landonce?sslmode=verify-full&sslrootcert={root}"

    def certificate_url(self, *, shown: bool = True) -> str:
        """Of `ann`."""
        own = f"&sslcert={self.certificates.client}&sslkey={self.certificates.client_key}" if shown else ""
        root = self.certificates.authority
        return f"postgresql://{USER}@{LOOPBACK}:{self.port}/landonce?sslmode=verify-full&sslrootcert={root}{own}"

    def wait_ready(self, timeout: float = 60.0) -> None:
        super().wait_ready(timeout)
        with self._connect("landonce") as connection:
            connection.execute(f"CREATE USER {USER} SUPERUSER")

    def show(self, kind: str) -> None:
        """From now on the server has this certificate."""
        self._put(kind)
        with self._connect("postgres") as connection:
            before = connection.execute("SELECT pg_conf_load_time()").fetchone()
            connection.execute("SELECT pg_reload_conf()")
            until = time.monotonic() + 10
            while connection.execute("SELECT pg_conf_load_time()").fetchone() == before and time.monotonic() < until:
                time.sleep(0.02)

    def _prepare(self) -> None:
        super()._prepare()
        self._put("good")
        rules = self._data / "pg_hba.conf"
        rules.write_text(f"hostssl all {USER} all cert\n{rules.read_text()}")

    def _put(self, kind: str) -> None:
        server = self.certificates.server(kind)
        for name, source in {"server.pem": server, "server.key": server, "ca.pem": self.certificates.authority}.items():
            file = self._data / name
            file.write_text(source.read_text())
            file.chmod(0o600)
            if self._account is not None:
                os.chown(file, self._account.pw_uid, self._account.pw_gid)

    def _command(self) -> Sequence[str]:
        files = {"ssl_cert_file": "server.pem", "ssl_key_file": "server.key", "ssl_ca_file": "ca.pem", "ssl": "on"}
        return [*super()._command(), *(part for name, value in files.items() for part in ("-c", f"{name}={value}"))]


class TlsGate:
    """Ends TLS before a server of this machine, as a proxy in a company does, and passes bytes on. `login`: what every request must hold;
    others are answered with 401."""

    def __init__(
        self,
        upstream: int,
        certificates: Certificates,
        *,
        kind: str = "good",
        ask_client: bool = False,
        login: bytes = b"",
    ) -> None:
        self._upstream, self._login = upstream, login
        self.requests = 0
        """How many were passed on, or refused for their login."""
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(certificates.server(kind))
        if ask_client:
            self._tls.verify_mode = ssl.CERT_REQUIRED
            self._tls.load_verify_locations(certificates.authority)
        self._listening = socket.create_server((LOOPBACK, 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with (
            suppress(OSError),
            self._tls.wrap_socket(client, server_side=True) as secure,
            socket.create_connection((LOOPBACK, self._upstream)) as server,
        ):
            threading.Thread(target=_copy, args=(server, secure), daemon=True).start()
            while data := secure.recv(65536):
                if _REQUEST.match(data):
                    self.requests += 1
                    if self._login not in data:
                        secure.sendall(_NOT_YOU)
                        return
                server.sendall(data)


_REQUEST = re.compile(rb"(GET|POST|PUT|DELETE|HEAD) /")
_NOT_YOU = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def https(url: str, port: int) -> str:
    """The same URL, by way of a gate at this port."""
    address, _, rest = url.partition("://")[2].partition("/")
    login, mark, _ = address.rpartition("@")
    return f"https://{login}{mark}{LOOPBACK}:{port}/{rest}"
