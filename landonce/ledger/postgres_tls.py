"""Why a connection to PostgreSQL fails if a certificate is the reason. libpq names another host, and no other reason."""

from __future__ import annotations

import re
import socket
import ssl
import struct
from pathlib import Path

from sqlalchemy import URL

from landonce.errors import CertificateRefused
from landonce.tls import TlsKeys, examine, not_for, refusal

_FAILED = re.compile(r'connection to server at "([^"]+)"(?: \([^)]*\))?, port (\d+) failed: (.*)')
_OTHER_HOST = re.compile(r'does not match host name "([^"]+)"')
_OF_CERTIFICATES = ("certificate verify failed", " alert ")
_KEYS = TlsKeys("`sslrootcert` in the URL", "`sslcert` and `sslkey` in the URL")
_ASK_FOR_TLS = struct.pack("!ii", 8, 80877103)
"""PostgreSQL's SSLRequest. The server answers with `S`, and TLS begins."""
_HOME = Path("~/.postgresql")


def certificate_refusal(reason: str, where: URL, place: str) -> CertificateRefused | None:
    """The error if the server's certificate is not trusted, or the server does not accept the client's. `reason`: libpq's message; `place`:
    the server's name in messages."""
    failed = _FAILED.search(reason)
    if failed is None:
        return None
    host, port, why = failed[1], int(failed[2]), failed[3]
    other = _OTHER_HOST.search(why)
    if other is not None:
        return not_for(other[1], place)
    if not any(each in why for each in _OF_CERTIFICATES):
        return None
    try:
        found = examine(host, port, _context(where), greet=_greet)
    except (OSError, ValueError):
        return None
    return refusal(found, place, host, _KEYS) if found is not None else None


def _greet(line: socket.socket) -> None:
    line.sendall(_ASK_FOR_TLS)
    if line.recv(1) != b"S":
        raise OSError("the server has no TLS")


def _context(where: URL) -> ssl.SSLContext:
    """As libpq has it. It compares host names itself, and says so."""
    named = {name: value for name, value in where.query.items() if isinstance(value, str)}
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname = False
    authority = named.get("sslrootcert", str(_HOME.expanduser() / "root.crt"))
    if authority == "system":
        tls.load_default_certs()
    else:
        tls.load_verify_locations(authority)
    if "sslcert" in named:
        tls.load_cert_chain(named["sslcert"], named.get("sslkey"), named.get("sslpassword", ""))
    return tls
