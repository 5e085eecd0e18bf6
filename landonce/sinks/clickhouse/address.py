"""Names: the server, the table, the query ids. Pure.

The password is only in `Address.password`; no repr and no message shows it. Every identifier in a statement goes through `quoted`; values
are parameters or integers, never text in a statement.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import quote, unquote, urlsplit

from landonce.errors import ConfigError

_PORTS = {"http": 8123, "https": 8443}
_NAME = re.compile(r"`(?:[^`\\]|\\.)+`|[^`.\s][^`.]*")


@dataclass(frozen=True)
class Address:
    """A server's HTTP interface, and the user."""

    scheme: str
    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.user}@{self.host}:{self.port}"


@dataclass(frozen=True)
class TableName:
    """A table by its full name."""

    database: str
    name: str

    def __str__(self) -> str:
        return f"{self.database}.{self.name}"

    @property
    def sql(self) -> str:
        return f"{quoted(self.database)}.{quoted(self.name)}"


def parse_url(url: str) -> Address:
    """Reads `http(s)://user:password@host:port/database`. No error shows the URL, because it holds a secret."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _bad_url("cannot be read") from None
    if parts.scheme not in _PORTS:
        raise _bad_url("must begin with http:// or https://")
    if not parts.hostname:
        raise _bad_url("names no host")
    if parts.query or parts.fragment:
        raise _bad_url("must end after the database; settings belong under `settings`")
    database = unquote(parts.path.strip("/"))
    if "/" in database:
        raise _bad_url("must end after the database")
    return Address(
        scheme=parts.scheme,
        host=parts.hostname,
        port=port or _PORTS[parts.scheme],
        user=unquote(parts.username or "") or "default",
        password=unquote(parts.password or ""),
        database=database or "default",
    )


def parse_table(table: str, database: str) -> TableName:
    """`table` or `database.table`; a part that holds a dot is put in backticks."""
    found = _NAME.findall(table)
    if not 1 <= len(found) <= 2 or ".".join(found) != table:
        raise ConfigError(f"{table!r} is not a table: write `table` or `database.table`, with backticks around dots")
    names = [re.sub(r"\\(.)", r"\1", name[1:-1]) if name.startswith("`") else name for name in found]
    return TableName(names[0] if len(names) == 2 else database, names[-1])


def quoted(identifier: str) -> str:
    """An identifier, quoted for a statement."""
    if not identifier or "\0" in identifier:
        raise ConfigError(f"{identifier!r} cannot be a name in ClickHouse")
    escaped = identifier.replace("\\", "\\\\").replace("`", "\\`")
    return f"`{escaped}`"


def quoted_user(name: str) -> str:
    """A user, for a statement that a person is to run."""
    return name if re.fullmatch(r"[A-Za-z0-9_]*", name) else quoted(name)


def literal(text: str) -> str:
    """A string literal, for statements that take no parameters, such as DDL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def query_prefix(pipeline: str, table: TableName) -> str:
    """The beginning of the query ids of this pipeline's inserts into this table, and of no others."""
    return f"landonce:{quote(pipeline, safe='')}:{quote(str(table), safe='')}:"


def _bad_url(why: str) -> ConfigError:
    return ConfigError(f"the ClickHouse url {why}.", command="write it as http(s)://user:password@host:port/database")
