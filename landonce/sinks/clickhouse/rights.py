"""Whether the user may do what the guarantee needs, and sees all rows."""

from __future__ import annotations

from collections.abc import Iterator

from landonce.sinks.clickhouse.connection import Connection
from landonce.sinks.clickhouse.tables import Table
from landonce.sinks.contract import Finding, Level

_POLICIES = """
SELECT short_name FROM system.row_policies
WHERE database = {database:String} AND table IN ({name:String}, '')
  AND (has(apply_to_list, currentUser()) OR hasAny(apply_to_list, currentRoles())
       OR (apply_to_all AND NOT has(apply_to_except, currentUser())))
"""


def check_rights(connection: Connection, table: Table) -> Iterator[Finding]:
    """Grants and row policies of the user who asks."""
    user = connection.one("SELECT currentUser()")
    needed = [f"INSERT ON {table.name.sql}", f"SELECT ON {table.name.sql}", "SELECT ON system.processes"]
    if table.replicated:
        needed.append(f"SYSTEM SYNC REPLICA ON {table.name.sql}")
    missing = [right for right in needed if not connection.granted(right)]
    for right in missing:
        yield Finding(Level.REFUSED, f"user {user} lacks {right.replace('`', '')}", f"GRANT {right} TO {user}")
    if not missing:
        yield Finding(Level.OK, f"user {user} may insert, select, and see running inserts")
    if not connection.granted("KILL QUERY ON *.*"):
        yield Finding(
            Level.WARNING,
            f"user {user} lacks KILL QUERY: it can end only inserts that it sent itself",
            f"GRANT KILL QUERY ON *.* TO {user}, before the pipeline ever changes its user",
        )
    yield from _policies(connection, table, user)


def _policies(connection: Connection, table: Table, user: str) -> Iterator[Finding]:
    found = connection.ask_if_allowed(_POLICIES, {"database": table.name.database, "name": table.name.name})
    if found is None:
        yield Finding(
            Level.WARNING,
            f"user {user} may not see row policies: rows could be hidden from it, and would be written again",
            f"GRANT SELECT ON system.row_policies TO {user}; GRANT SHOW ROW POLICIES ON {table.name.sql} TO {user}",
        )
        return
    for name in found.column(0).to_pylist():
        yield Finding(
            Level.REFUSED,
            f"row policy {name} can hide rows from {user}, which would then be written again",
            f"ALTER ROW POLICY so that it does not apply to {user}",
        )
