"""Types that records fill with text, nearly all of PostgreSQL: which texts are a value, one spelling of each, and the form in which
PostgreSQL's binary COPY takes it. Pure.

Records may spell a value in several ways (`1.50` and `1.5`, `P1DT2H` and `1 day 02:00:00`, `[1,4]` and `[1,5)`, `2001:DB8::1` and
`2001:db8::1`), and a database returns it in one of its own. Both are compared as `one_spelling` writes them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from functools import partial
from ipaddress import ip_interface, ip_network
from typing import Any

import pyarrow as pa

from landonce.read.schema.fields import Digits, Field, Judge
from landonce.sinks.patterns import IPV4, IPV6

_SECOND = 10**6
ANY_NUMBER = Digits(131_072, 16_383)
"""The most digits that PostgreSQL keeps."""
_EPOCH = datetime(2000, 1, 1)
"""PostgreSQL's."""
_FRACTION = r"(?:\.(?P<fraction>[0-9]{1,6})0*)?"
_ZONE = r"(?:Z|(?P<zone>[+-])(?P<zh>[0-9]{2})(?::?(?P<zm>[0-5][0-9]))?)"
_CLOCK = rf"(?P<h>[01][0-9]|2[0-3]):(?P<m>[0-5][0-9])(?::(?P<s>[0-5][0-9]){_FRACTION})?"
_TIMETZ = re.compile(_CLOCK + _ZONE)
_MOMENT = re.compile(rf"(?P<day>[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}})[T ]{_CLOCK}{_ZONE}?")
_COUNT = "[+-]?[0-9]{1,10}"
_ISO_INTERVAL = re.compile(
    rf"P(?=.)(?:(?P<years>{_COUNT})Y)?(?:(?P<months>{_COUNT})M)?(?:(?P<weeks>{_COUNT})W)?(?:(?P<days>{_COUNT})D)?"
    rf"(?:T(?=.)(?:(?P<h>{_COUNT})H)?(?:(?P<m>{_COUNT})M)?(?:(?P<s>{_COUNT}){_FRACTION}S)?)?"
)
_OWN_INTERVAL = re.compile(
    rf"(?=.)(?:(?P<years>{_COUNT}) years?)?(?: ?(?P<months>{_COUNT}) mons?)?(?: ?(?P<days>{_COUNT}) days?)?"
    rf"(?: ?(?P<sign>[+-]?)(?P<h>[0-9]{{1,10}}):(?P<m>[0-5][0-9]):(?P<s>[0-5][0-9]){_FRACTION})?"
)
"""As PostgreSQL writes it: `1 year 2 mons -3 days +04:05:06.5`."""
_INTEGER = re.compile("[+-]?[0-9]{1,19}")
_DAY = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")
_RANGE = re.compile(r'(?P<opens>[\[(])"?(?P<low>[^",]*)"?,"?(?P<high>[^",]*)"?(?P<closes>[\])])')
_EMPTY, _LOW_IN, _HIGH_IN, _NO_LOW, _NO_HIGH = 1, 2, 4, 8, 16
"""What the first byte of a range says."""


@dataclass(frozen=True)
class Value:
    """One value: as COPY takes it, and as a text that two equal values have in common."""

    encoded: bytes
    spelling: str
    order: Any = None
    """How it compares with others, as the bound of a range."""


def numeric(text: str) -> Value:
    """The digits are sent in groups of four, with as many after the point as the text has."""
    if ANY_NUMBER.problem(text):
        raise ValueError(text)
    number = Decimal(text)
    whole, _, rest = format(number.copy_abs(), "f").partition(".")  # `abs` would round
    rest = rest[: ANY_NUMBER.after]  # zeros
    digits = whole.zfill(-(-len(whole) // 4) * 4) + rest.ljust(-(-len(rest) // 4) * 4, "0")
    groups = [int(digits[at : at + 4]) for at in range(0, len(digits), 4)]
    weight = -(-len(whole) // 4) - 1
    while groups and not groups[0]:
        groups, weight = groups[1:], weight - 1
    while groups and not groups[-1]:
        groups.pop()
    sign = 0x4000 if number < 0 else 0
    head = struct.pack(">HhHH", len(groups), weight if groups else 0, sign, len(rest))
    spelling = f"{'-' if number < 0 else ''}{whole}" + (f".{left}" if (left := rest.rstrip("0")) else "")
    return Value(head + struct.pack(f">{len(groups)}h", *groups), spelling, number)


def interval(text: str) -> Value:
    """Months, days and microseconds: PostgreSQL keeps the three apart."""
    found = _ISO_INTERVAL.fullmatch(text) or _OWN_INTERVAL.fullmatch(text)
    if found is None:
        raise ValueError(text)
    parts = found.groupdict()
    months = 12 * int(parts["years"] or 0) + int(parts["months"] or 0)
    days = 7 * int(parts.get("weeks") or 0) + int(parts["days"] or 0)
    ticks = (3600 * int(parts["h"] or 0) + 60 * int(parts["m"] or 0) + int(parts["s"] or 0)) * _SECOND
    fraction = _ticks(parts["fraction"])
    ticks += -fraction if (parts["s"] or "").startswith("-") else fraction
    ticks = -ticks if parts.get("sign") == "-" else ticks
    spelling = f"{months} months {days} days {Decimal(ticks).scaleb(-6):f} seconds"
    return Value(struct.pack(">qii", ticks, days, months), spelling)


def timetz(text: str) -> Value:
    found = _TIMETZ.fullmatch(text)
    if found is None:
        raise ValueError(text)
    ticks, east = _of_day(found), _east(found)
    spelling = f"{(datetime.min + timedelta(microseconds=ticks)).time().isoformat()} {east} seconds east of UTC"
    return Value(struct.pack(">qi", ticks, -east), spelling)


def bits(text: str) -> Value:
    whole = text.ljust(-(-len(text) // 8) * 8, "0")
    return Value(struct.pack(">i", len(text)) + int(whole or "0", 2).to_bytes(len(whole) // 8, "big"), text)


def _integer(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError(text)
    return int(text)


def _day(text: str) -> int:
    """Days from the first of January 2000 on."""
    if not _DAY.fullmatch(text):
        raise ValueError(text)
    return (date.fromisoformat(text) - _EPOCH.date()).days


def _moment(text: str) -> Value:
    """A time without a zone is in UTC."""
    found = _MOMENT.fullmatch(text)
    if found is None:
        raise ValueError(text)
    day = (date.fromisoformat(found["day"]) - _EPOCH.date()).days
    ticks = day * 86_400 * _SECOND + _of_day(found) - _east(found) * _SECOND
    return Value(struct.pack(">q", ticks), f"{_EPOCH + timedelta(microseconds=ticks)}", ticks)


def _ticks(fraction: str | None) -> int:
    """Microseconds of the digits after the point."""
    return int((fraction or "").ljust(6, "0"))


def _of_day(found: re.Match[str]) -> int:
    return (int(found["h"]) * 3600 + int(found["m"]) * 60 + int(found["s"] or 0)) * _SECOND + _ticks(found["fraction"])


def _east(found: re.Match[str]) -> int:
    """Seconds by which the zone is ahead of UTC."""
    if found["zone"] is None:
        return 0
    hours = int(found["zh"])
    if hours > 15:
        raise ValueError(found[0])
    return (hours * 3600 + int(found["zm"] or 0) * 60) * (-1 if found["zone"] == "-" else 1)


def _discrete(order: Callable[[str], int], form: str, spell: Callable[[int], object] = str) -> Callable[[str], Value]:
    """A range of integers or days is kept with its first value and without its last one."""

    def made(number: int) -> Value:
        return Value(struct.pack(form, number), str(spell(number)), number)

    return partial(_range, bound=lambda text: made(order(text)), after=lambda last: made(last.order + 1))


def _range(text: str, bound: Callable[[str], Value], after: Callable[[Value], Value] | None = None) -> Value:
    if text == "empty":
        return Value(bytes([_EMPTY]), text)
    found = _RANGE.fullmatch(text)
    if found is None or '""' in text:
        raise ValueError(text)
    low, high = (bound(found[each]) if found[each] else None for each in ("low", "high"))
    low_in, high_in = low is not None and found["opens"] == "[", high is not None and found["closes"] == "]"
    if low is not None and high is not None and low.order > high.order:
        raise ValueError(text)
    if after is not None and low is not None and not low_in:
        low, low_in = after(low), True
    if after is not None and high is not None and high_in:
        high, high_in = after(high), False
    if low is not None and high is not None and low.order >= high.order and not (low_in and high_in):
        return Value(bytes([_EMPTY]), "empty")
    flags = low_in * _LOW_IN | high_in * _HIGH_IN | (low is None) * _NO_LOW | (high is None) * _NO_HIGH
    encoded = b"".join(_sized(each.encoded) for each in (low, high) if each is not None)
    ends = ",".join("" if each is None else each.spelling for each in (low, high))
    return Value(bytes([flags]) + encoded, f"{'[' if low_in else '('}{ends}{']' if high_in else ')'}")


def _sized(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def _device(text: str) -> Value:
    digits = text.replace("-", ":").lower()
    return Value(bytes.fromhex(digits.replace(":", "")), digits)


def _network(text: str, *, whole: bool = False) -> Value:
    """The address of a host or a network. `whole`: of a CIDR."""
    address = ip_interface(text)
    raw = address.ip.packed
    family = 2 if address.version == 4 else 3  # as PostgreSQL numbers them
    return Value(bytes([family, address.network.prefixlen, whole, len(raw)]) + raw, str(address))


_PARSED: dict[str, Callable[[str], Value]] = {
    "numeric": numeric,
    "interval": interval,
    "timetz": timetz,
    "bit": bits,
    "int4range": _discrete(_integer, ">i"),
    "int8range": _discrete(_integer, ">q"),
    "numrange": partial(_range, bound=numeric),
    "daterange": _discrete(_day, ">i", lambda days: _EPOCH.date() + timedelta(days=days)),
    "tsrange": partial(_range, bound=_moment),
    "tstzrange": partial(_range, bound=_moment),
    "macaddr": _device,
    "macaddr8": _device,
    "inet": _network,
    "cidr": partial(_network, whole=True),
    "inet4": _network,
    "inet6": _network,
}
RANGES = frozenset(each for each in _PARSED if each.endswith("range"))


@dataclass(frozen=True)
class Parsed(Judge):
    """Which texts are a value of a type."""

    kind: str

    def __call__(self, texts: pa.StringArray) -> pa.StringArray:
        return pa.array([None if each is None else self._problem(each) for each in texts.to_pylist()], pa.string())

    def decisive(self) -> object:
        return self.kind

    def _problem(self, text: str) -> str | None:
        try:
            _parse(text, self.kind)
        except ValueError:
            return f"is not a valid {self.kind.upper()}"
        return None


def _parse(text: str, kind: str) -> Value:
    try:
        return _PARSED[kind](text)
    except (struct.error, OverflowError, InvalidOperation) as error:  # outside of the range of the type
        raise ValueError(text) from error


def one_spelling(text: str, kind: str) -> str:
    """The value in one spelling; a text that is none, unchanged."""
    try:
        return _parse(text, kind).spelling if kind in _PARSED else text
    except ValueError:
        return text


def in_postgres(text: str, kind: str) -> bytes:
    """The value as COPY takes it. A text of another kind is sent as it is, a JSONB document with its version before it."""
    if kind in _PARSED:
        return _parse(text, kind).encoded
    return (b"\x01" if kind == "jsonb" else b"") + text.encode()


def array_in_postgres(texts: Sequence[str | None], kind: str, element: int) -> bytes:
    """An array of one dimension. `element`: the oid of its elements' type."""
    if not texts:
        return struct.pack(">iii", 0, 0, element)
    head = struct.pack(">iiiii", 1, None in texts, element, len(texts), 1)
    missing = struct.pack(">i", -1)
    return head + b"".join(missing if each is None else _sized(in_postgres(each, kind)) for each in texts)


# Addresses of networks and devices.

_IPV6 = IPV6.removeprefix("(?i)")
_PAIR = "[0-9A-Fa-f]{2}"
_PREFIXED = rf"(?i)(?:{IPV4}(?:/(?:3[0-2]|[12]?[0-9]))?|{_IPV6}(?:/(?:12[0-8]|1[01][0-9]|[1-9]?[0-9]))?)"
_PATTERNS = {
    "inet": _PREFIXED,
    "cidr": _PREFIXED,
    "macaddr": f"{_PAIR}(?:(?::{_PAIR}){{5}}|(?:-{_PAIR}){{5}})",
    "macaddr8": f"{_PAIR}(?:(?::{_PAIR}){{7}}|(?:-{_PAIR}){{7}})",
    "inet4": IPV4,
    "inet6": IPV6,
}
"""PostgreSQL would make eight bytes of a `macaddr8` with six, and MariaDB an IPv6 address of one of IPv4."""


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
