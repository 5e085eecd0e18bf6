"""Schemas by id, from a registry that speaks Confluent's HTTP protocol: for Avro, Protobuf and JSON.

An id means the same schema for ever, so a process asks for each once. An id that the registry does not know, also when
it is asked again after a second or two (a replica may be behind), is `UnknownSchema`; only an answer in the registry's
own words counts as that, and never one of a proxy or of another service. What may pass is asked again with growing
pauses, then it is `RegistryUnavailable`.

The client is the standard library's: it checks certificates by the system's authorities, or by those of the pipeline
file. User and password are only in the request's header: never in a message, a log line or a repr.
"""

from __future__ import annotations

import json
import re
import ssl
import threading
import time
from base64 import b64encode
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from landonce import tls
from landonce.config.secrets import remember
from landonce.config.source import SchemaRegistry
from landonce.errors import ConfigError, RegistryRefused, RegistryUnavailable

_WHO = "the schema registry"
_KEYS = tls.TlsKeys("`ca_cert` of the registry", "`client_cert` and `client_key` of the registry")
_PAUSES = (0.2, 1.0, 3.0)
_UNKNOWN_PAUSES = (0.2, 0.5, 1.0)
_MOST_WAITS = 10
"""For how many unknown ids a process waits in a minute: a topic of other bytes may hold millions."""
_FORGET_UNKNOWN = 10.0
"""Seconds for which an id counts as unknown without another question."""
_MOST_UNKNOWN = 10_000
_LARGEST = 16 * 2**20
_MOST_REFERENCES = 1_000
_DEEPEST_REFERENCE = 100
_UNWRITABLE = re.compile(r"[^!-~]")
"""What a path in a request cannot hold."""
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"
_NOT_FOUND = (40401, 40402, 40403)
"""Confluent's codes for a subject, a version and an id that do not exist."""


class UnknownSchema(Exception):
    """The registry answered that it has no such schema."""


@dataclass(frozen=True)
class Registered:
    """A schema of a registry. `referenced`: the name and the text of each schema that it uses, in the order of their
    dependencies."""

    kind: str
    text: str
    referenced: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Registry:
    """Everything needed to ask a registry: hashable, picklable, with a repr that hides secrets. Made by `registry_at`."""

    scheme: str
    host: str
    port: int
    path: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    authority: str = field(default="", repr=False)
    """Who may have signed the server's certificate, as PEM text. Empty: those that the system knows."""
    certificate: str = field(default="", repr=False)
    """The client's certificate and its key, as PEM text."""
    timeout: float = 10.0

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}{self.path}"

    def schema(self, number: int) -> Registered:
        """The schema of this id. Raises `UnknownSchema`, `RegistryUnavailable` or `RegistryRefused`."""
        return _remembered(self, f"/schemas/ids/{number}")

    def latest(self, subject: str) -> Registered:
        """The newest schema of a subject, which may change."""
        return _resolved(self, f"/subjects/{quote(subject, safe='')}/versions/latest")

    def version(self, subject: str, number: int) -> Registered:
        return _remembered(self, f"/subjects/{quote(subject, safe='')}/versions/{number}")


def registry_at(
    url: str, *, user: str = "", password: str = "", authority: str = "", certificate: str = "", timeout: float = 10.0
) -> Registry:
    """Reads `http(s)://user:password@host:port/path`. No error shows the URL, because it may hold a secret."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _bad_url("cannot be read") from None
    if parts.scheme not in ("http", "https"):
        raise _bad_url("must begin with http:// or https://")
    if not parts.hostname:
        raise _bad_url("names no host")
    try:
        exists = _UNWRITABLE.search(parts.hostname.encode("idna").decode()) is None
    except UnicodeError:
        exists = False
    if not exists:
        raise _bad_url("names a host that cannot exist")
    if _UNWRITABLE.search(parts.path):
        raise _bad_url("has a path with spaces or other characters that must be percent-encoded")
    if parts.query or parts.fragment:
        raise _bad_url("must end with the path")
    user, password = user or unquote(parts.username or ""), password or unquote(parts.password or "")
    if password:
        remember(password)
    made = Registry(
        parts.scheme,
        parts.hostname,
        port or (443 if parts.scheme == "https" else 80),
        parts.path.rstrip("/"),
        user,
        password,
        authority,
        certificate,
        timeout,
    )
    if parts.scheme == "https":
        _context(made)
    return made


def registry_of(section: SchemaRegistry) -> Registry:
    """The registry of this section, with the texts of its files: workers on other machines do not have them."""
    certificate = "".join(tls.pem(each, _WHO) for each in (section.client_cert, section.client_key))
    return registry_at(
        section.url.get_secret_value(),
        user=section.user,
        password=section.password.get_secret_value(),
        authority=tls.pem(section.ca_cert, _WHO),
        certificate=certificate,
    )


def _bad_url(problem: str) -> ConfigError:
    return ConfigError(
        f"the URL of the schema registry {problem}.", command="write it as http(s)://host:port, and the user beside it"
    )


_known: dict[tuple[Registry, str], Registered] = {}
_unknown: dict[tuple[Registry, str], float] = {}
"""Until when an id counts as unknown, the oldest first."""
_waits: deque[float] = deque(maxlen=_MOST_WAITS)
"""When the process last waited for unknown ids."""
_lock = threading.Lock()


def _remembered(registry: Registry, path: str) -> Registered:
    """Asks once in a process: what the path names does not change."""
    key = registry, path
    with _lock:
        if key in _known:
            return _known[key]
        if time.monotonic() < _unknown.get(key, 0.0):
            raise UnknownSchema
    try:
        found = _awaited(registry, path)
    except UnknownSchema:
        with _lock:
            _unknown.pop(key, None)
            _unknown[key] = time.monotonic() + _FORGET_UNKNOWN
            while len(_unknown) > _MOST_UNKNOWN:
                del _unknown[next(iter(_unknown))]
        raise
    with _lock:
        _known[key] = found
    return found


def _awaited(registry: Registry, path: str) -> Registered:
    """What was registered a moment ago may not be known to every replica of the registry yet."""
    try:
        return _resolved(registry, path)
    except UnknownSchema:
        with _lock:
            now = time.monotonic()
            if len(_waits) == _MOST_WAITS and now - _waits[0] < 60:
                raise
            _waits.append(now)
    for pause in _UNKNOWN_PAUSES:
        time.sleep(pause)
        with suppress(UnknownSchema):
            return _resolved(registry, path)
    raise UnknownSchema


def _resolved(registry: Registry, path: str) -> Registered:
    """A schema with everything that it refers to."""
    answer = _ask(registry, path)
    names: dict[str, str] = {}
    _collect(registry, answer, names, ())
    kind = answer.get("schemaType") or "AVRO"
    if kind not in ("AVRO", "PROTOBUF", "JSON"):
        raise _strange(registry, "a schema of an unknown kind")
    return Registered(kind, _text(registry, answer), tuple(names.items()))


def _collect(registry: Registry, answer: Mapping[str, Any], names: dict[str, str], above: tuple[str, ...]) -> None:
    """Adds the schemas that an answer refers to, those first that others need."""
    references = answer.get("references") or []
    if not isinstance(references, list):
        raise _strange(registry, "references that are not a list")
    for each in references:
        try:
            name, version = str(each["name"]), int(each["version"])
            path = f"/subjects/{quote(str(each['subject']), safe='')}/versions/{version}"
        except (KeyError, TypeError, ValueError, OverflowError):
            raise _strange(registry, "a reference without a name, a subject or a version") from None
        if name in names:
            continue
        if name in above or len(above) >= _DEEPEST_REFERENCE or len(names) >= _MOST_REFERENCES:
            raise _strange(registry, "references without an end")
        found = _ask(registry, path)
        _collect(registry, found, names, (*above, name))
        names[name] = _text(registry, found)


def _text(registry: Registry, answer: Mapping[str, Any]) -> str:
    text = answer.get("schema")
    if not isinstance(text, str):
        raise _strange(registry, "no schema")
    return text


def _ask(registry: Registry, path: str) -> Mapping[str, Any]:
    """One question, asked again after failures that may pass."""
    for pause in (*_PAUSES, None):
        try:
            status, data = _get(registry, path)
            problem = f"answered {status}"
            if status < 500 and status not in (408, 429):
                return _judged(registry, status, data)
        except (OSError, HTTPException) as error:
            if registry.scheme == "https":
                again = partial(tls.examine, registry.host, registry.port, _context(registry))
                refused = tls.refusal(error, f"{_WHO} {registry}", registry.host, _KEYS, again)
                if refused is not None:
                    raise refused from None
            problem = f"did not answer ({type(error).__name__})"
        if pause is not None:
            time.sleep(pause)
    raise RegistryUnavailable(f"the schema registry {registry} {problem}.")


def _judged(registry: Registry, status: int, data: bytes) -> Mapping[str, Any]:
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        answer = None
    if status == 200 and isinstance(answer, dict):
        return answer
    if status == 404 and isinstance(answer, dict) and answer.get("error_code") in _NOT_FOUND:
        raise UnknownSchema
    if status in (401, 403):
        raise RegistryRefused(
            f"the schema registry {registry} refused the user (HTTP {status}).",
            safe="Nothing was skipped.",
            command="correct the user and the password of the registry in {file}",
        )
    raise _strange(registry, f"HTTP {status}, and nothing in its protocol")


def _strange(registry: Registry, what: str) -> RegistryRefused:
    return RegistryRefused(
        f"the schema registry {registry} answered with {what}.",
        safe="Nothing was skipped.",
        command="check the URL of the registry in {file}, with its path",
    )


def _get(registry: Registry, path: str) -> tuple[int, bytes]:
    connection: HTTPConnection
    if registry.scheme == "https":
        connection = HTTPSConnection(registry.host, registry.port, timeout=registry.timeout, context=_context(registry))
    else:
        connection = HTTPConnection(registry.host, registry.port, timeout=registry.timeout)
    headers = {"Accept": _ACCEPT}
    if registry.user or registry.password:
        headers["Authorization"] = "Basic " + b64encode(f"{registry.user}:{registry.password}".encode()).decode()
    try:
        connection.request("GET", registry.path + path, headers=headers)
        response = connection.getresponse()
        data = response.read(_LARGEST + 1)
    finally:
        connection.close()
    if len(data) > _LARGEST:
        raise _strange(registry, f"more than {_LARGEST} bytes")
    return response.status, data


def _context(registry: Registry) -> ssl.SSLContext:
    try:
        return tls.context(registry.authority, registry.certificate)
    except ValueError as error:
        raise ConfigError(
            f"the authority, or the client's certificate or key, of the schema registry is not valid PEM ({error}).",
            command="correct them in the pipeline file",
        ) from None
