"""Addresses of networks and devices: which texts are one, one spelling of each, and the form in which PostgreSQL's COPY takes it. Pure.

Records may spell an address as they like (`2001:DB8::1`, `00-00-5E-00-53-01`). A database returns it in its own spelling, so both
are compared as `one_spelling` writes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_interface, ip_network
from typing import Any

import pyarrow as pa

from landonce.read.schema.fields import Field, Judge
from landonce.sinks.patterns import IPV4, IPV6

_IPV6 = IPV6.removeprefix("(?i)")
_PAIR, _MORE = "[0-9A-Fa-f]{2}", "(?::[0-9A-Fa-f]{2})"
_DASHED = "(?:-[0-9A-Fa-f]{2})"
_PREFIXED = rf"(?i)(?:{IPV4}(?:/(?:3[0-2]|[12]?[0-9]))?|{_IPV6}(?:/(?:12[0-8]|1[01][0-9]|[1-9]?[0-9]))?)"
_PATTERNS = {
    "inet": _PREFIXED,
    "cidr": _PREFIXED,
    "macaddr": f"{_PAIR}(?:{_MORE}{{5}}|{_DASHED}{{5}})",
    "macaddr8": f"{_PAIR}(?:{_MORE}{{7}}|{_DASHED}{{7}})",
    "inet4": IPV4,
    "inet6": IPV6,
}
"""PostgreSQL would make eight bytes of a `macaddr8` with six, and MariaDB an IPv6 address of one of IPv4."""
KINDS = frozenset(_PATTERNS)
_FAMILY = {4: 2, 6: 3}
"""As PostgreSQL numbers them."""


@dataclass(frozen=True)
class WholeNetwork(Judge):
    """A CIDR has no bit to the right of its prefix."""

    def __call__(self, texts: pa.StringArray) -> pa.StringArray:
        return pa.array([None if each is None else self._problem(each) for each in texts.to_pylist()], pa.string())

    def decisive(self) -> object:
        return "a whole network"

    def _problem(self, text: str) -> str | None:
        try:
            ip_network(text)
        except ValueError:
            return "is not a valid CIDR: it has bits to the right of its prefix, or is no address"
        return None


def kind_of(type_: Any) -> str:
    """The name of a type of addresses; empty for any other type."""
    name = type(type_).__name__.lower()
    return name if name in _PATTERNS else ""


def address_field(name: str, kind: str, *, required: bool) -> Field:
    """The field that fills a column of addresses."""
    judge = WholeNetwork() if kind == "cidr" else None
    return Field(name, pa.string(), required, pattern=_PATTERNS[kind], called=kind.upper(), judge=judge)


def one_spelling(text: str, kind: str) -> str:
    """The address in one spelling; a text that is none, unchanged."""
    if kind in ("macaddr", "macaddr8"):
        return text.replace("-", ":").lower()
    try:
        return str(ip_interface(text))
    except ValueError:
        return text


def in_postgres(text: str, kind: str) -> bytes:
    """The address as PostgreSQL's binary COPY takes it."""
    if kind in ("macaddr", "macaddr8"):
        return bytes.fromhex(text.replace("-", "").replace(":", ""))
    address = ip_interface(text)
    raw = address.ip.packed
    return bytes([_FAMILY[address.version], address.network.prefixlen, kind == "cidr", len(raw)]) + raw
