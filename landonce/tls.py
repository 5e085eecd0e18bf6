"""Certificates: contexts of TLS from PEM text, and what is wrong with a certificate, in a sentence with the next step.

A client library may say that a certificate is refused, and not why. Then the server is asked once more, by Python's own TLS
(`examine`), which tells the reasons apart. Nothing is sent to it but a greeting.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from landonce.errors import CertificateRefused, ConfigError

_SECONDS = 5.0
_ALERT_SECONDS = 1.0
"""A server that asks for a client's certificate complains of it only after the handshake."""
_EXPIRED, _NOT_YET, _REVOKED = 10, 9, 23
_SELF_SIGNED = 18
_UNKNOWN_AUTHORITY = (2, 19, 20, 21)
_OTHER_HOST = (62, 64)
"""OpenSSL's numbers, X509_V_ERR_…"""
_CUT = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
_ALERTS = re.compile(r"ALERT_(NO_|BAD_|UNKNOWN_|UNSUPPORTED_)?(CERTIFICATE|CA)|ALERT_ACCESS_DENIED")
"""What a server says that does not accept the client's certificate, or asks for one."""
_FAILURE = "ALERT_HANDSHAKE_FAILURE"
"""The same of a server with TLS 1.2, but also what any server says that shares no cipher with the client."""

_JAVAS_ALERT = re.compile(r"Received fatal alert: (\w*certificate\w*|unknown_ca|access_denied|handshake_failure)")
_JAVAS_WORDS = {
    r"CertificateExpiredException": _EXPIRED,
    r"CertificateNotYetValidException": _NOT_YET,
    r"CertificateRevokedException": _REVOKED,
    r"No (?:subject alternative|name).*? matching (?:IP address )?(\S+) found": _OTHER_HOST[0],
    r"No subject alternative names present": _OTHER_HOST[0],
    r"PKIX path building failed|signature check failed": _UNKNOWN_AUTHORITY[0],
}
"""What Java says of a certificate, and OpenSSL's number for it."""


@dataclass(frozen=True)
class TlsKeys:
    """The keys of a pipeline file that a next step names: who may sign the server's certificate, and the client's certificate."""

    authority: str
    client: str


_contexts: dict[tuple[str, str], ssl.SSLContext] = {}
_lock = threading.Lock()


def context(authority: str = "", certificate: str = "") -> ssl.SSLContext:
    """For connections to a server. `authority`: who may have signed its certificate, as PEM text; empty: those that the system knows.
    `certificate`: the client's, with its key. Raises `ValueError` if one of them is no PEM. The same texts give the same context."""
    key = authority, certificate
    with _lock:
        if key not in _contexts:
            try:
                made = ssl.create_default_context(cadata=authority or None)
                if certificate:
                    load_certificate(made, certificate)
            except (ssl.SSLError, ValueError) as error:
                raise ValueError(getattr(error, "reason", None) or "it is not PEM") from None
            _contexts[key] = made
        return _contexts[key]


def load_certificate(made: ssl.SSLContext, text: str, passphrase: str = "") -> None:
    """OpenSSL reads a key only from a file: this one is in memory, and nobody else can open it. A key with another passphrase is refused,
    where OpenSSL would ask for it on the terminal."""
    with os.fdopen(os.memfd_create("landonce-certificate"), "wb") as file:
        file.write(text.encode())
        file.flush()
        made.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password=passphrase)


def pem(path: Path | None, what: str) -> str:
    """The text of a PEM file, or a `ConfigError` that begins with `what`. Empty if no file is named."""
    if path is None:
        return ""
    try:
        text = path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        problem = f"cannot be read: {getattr(error, 'strerror', None) or 'it is not PEM'}"
    else:
        if "-----BEGIN" in text:
            return text if text.endswith("\n") else text + "\n"
        problem = "is not PEM" if text.strip() else "is empty"
    raise ConfigError(f"{what}: {path} {problem}.", command="name a PEM file, which begins with -----BEGIN")


def refusal(
    error: BaseException, server: str, host: str, keys: TlsKeys, again: Callable[[], ssl.SSLError | None] | None = None
) -> CertificateRefused | None:
    """What a person should read, if a certificate is the cause of the error; otherwise None. `host`: the name that was asked for. `again`
    examines a server that only ended the connection: its complaint of the client's certificate gets lost if a request is on its way."""
    causes = list(_causes(error, set()))
    if again is not None and any(isinstance(each, _CUT) for each in causes) and (found := again()) is not None:
        causes = [found]
    for each in causes:
        if isinstance(each, ssl.SSLCertVerificationError):
            what, step = _wrong(each.verify_code, each.verify_message, host, keys)
            return _refused(server, f"the certificate of the server {what}", step)
        if isinstance(each, ssl.SSLError) and _ALERTS.search(each.reason or ""):
            return _asks_for_client(server, keys)
        if isinstance(each, ssl.SSLError) and _FAILURE in (each.reason or ""):
            return _asks_for_something(server, keys)
    return None


def refusal_of_java(said: str, server: str, keys: TlsKeys) -> CertificateRefused | None:
    """The same for what Java says: the texts of an error and of its causes. It does not tell a certificate that is signed by itself from one
    of an unknown authority."""
    if (alert := _JAVAS_ALERT.search(said)) is not None:
        return _asks_for_something(server, keys) if alert[1] == "handshake_failure" else _asks_for_client(server, keys)
    for text, code in _JAVAS_WORDS.items():
        if (found := re.search(text, said)) is not None:
            what, step = _wrong(code, "", found[1] if found.groups() else "of the broker", keys)
            return _refused(server, f"the certificate of the server {what}", step)
    return None


def _asks_for_client(server: str, keys: TlsKeys) -> CertificateRefused:
    return _refused(
        server,
        "the server asks for a certificate of the client, and there is none that it accepts",
        f"name a certificate that the server accepts, and its key, in {{file}} ({keys.client})",
    )


def _asks_for_something(server: str, keys: TlsKeys) -> CertificateRefused:
    return _refused(
        server,
        "the server ended the handshake: either it asks for a certificate of the client, and there is none that it accepts, "
        "or both share no cipher or version of TLS",
        f"name a certificate that the server accepts, and its key, in {{file}} ({keys.client}), or compare the ciphers",
    )


def not_for(host: str, server: str) -> CertificateRefused:
    """Where a client library says itself that the certificate is for other hosts."""
    what, step = _not_named(host)
    return _refused(server, f"the certificate of the server {what}", step)


def _not_named(host: str) -> tuple[str, str]:
    return (
        f"does not name the host {host}",
        f"use a name of the host that the certificate holds in {{file}}, or give the server a certificate for {host}",
    )


def _causes(error: object, seen: set[int]) -> Iterator[BaseException]:
    """The error, and what it was made of: libraries wrap errors, as causes, as arguments or as a reason."""
    if not isinstance(error, BaseException) or id(error) in seen:
        return
    seen.add(id(error))
    yield error
    for each in (error.__cause__, error.__context__, getattr(error, "reason", None), *error.args):
        yield from _causes(each, seen)


def _refused(server: str, what: str, step: str) -> CertificateRefused:
    return CertificateRefused(f"{server}: {what}.", safe="Nothing was sent to it.", command=step)


def _wrong(code: int, message: str, host: str, keys: TlsKeys) -> tuple[str, str]:
    renew = "renew the certificate of the server, then run again"
    name = f"name the certificate of the authority that signed it in {{file}} ({keys.authority})"
    if code == _EXPIRED:
        return "has expired", renew
    if code == _NOT_YET:
        return "is not valid yet", "correct the clock of this machine, or the certificate of the server, then run again"
    if code == _REVOKED:
        return "was revoked", renew
    if code in _OTHER_HOST:
        return _not_named(host)
    if code == _SELF_SIGNED:
        return "is signed by itself, and not by an authority that is known here", name
    if code in _UNKNOWN_AUTHORITY:
        return "is signed by an authority that is not known here", name
    return f"is not trusted: {message}", name


def examine(
    host: str, port: int, tls: ssl.SSLContext, *, greet: Callable[[socket.socket], None] | None = None
) -> ssl.SSLError | None:
    """How a handshake with the server fails because of a certificate; None if it does not, or not for that. `greet`: what comes before the
    handshake in the protocol of the server."""
    with suppress(OSError):
        try:
            with socket.create_connection((host, port), timeout=_SECONDS) as line:
                if greet is not None:
                    greet(line)
                with tls.wrap_socket(line, server_hostname=host) as secure, suppress(TimeoutError):
                    secure.settimeout(_ALERT_SECONDS)
                    secure.recv(1)
        except ssl.SSLError as error:
            return error
    return None
