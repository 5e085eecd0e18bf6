"""Names in statements of SQL databases: the one place that puts them in quotes, as each database does."""

from __future__ import annotations

from sqlalchemy import Dialect


def quoted(dialect: Dialect, *name: str, parameters: bool = False) -> str:
    """A name, perhaps with its schema. `parameters`: the Python driver reads the statement for parameters, which begin with a percent sign in
    some; such a sign is written twice there, as SQLAlchemy does."""
    text = ".".join(dialect.identifier_preparer.quote_identifier(part) for part in name)
    doubled = dialect.paramstyle in ("format", "pyformat")
    return text.replace("%%", "%") if doubled and not parameters else text
