"""Packages that only some pipelines need. What is missing is named with the command that installs it, before anything is imported."""

from __future__ import annotations

from importlib.util import find_spec

from landonce.errors import ConfigError

_MODULES = {
    "iceberg": ("pyiceberg", "fastavro", "pyroaring"),
    "postgres": ("psycopg", "adbc_driver_manager", "adbc_driver_postgresql"),
    "mysql": ("pymysql",),
    "ydb": ("ydb_sqlalchemy",),
    "local": ("chdb", "clickhouse_connect"),
}
"""The modules that each extra of pyproject.toml brings. `clickhouse` brings none."""
_OF_DIALECT = {"postgresql": "postgres", "mysql": "mysql", "mariadb": "mysql", "yql": "ydb"}


def require(extra: str, what: str) -> None:
    """Raises `ConfigError` if packages of the extra are missing. `what` needs them: a key of the pipeline file, or a command."""
    missing = [name for name in _MODULES[extra] if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"{what} needs Python packages that are not installed ({', '.join(missing)}).",
            command=f'pip install "landonce[{extra}]"',
        )


def require_driver(dialect: str, what: str) -> None:
    """As `require`, for a database by SQLAlchemy's name of it. SQLite comes with Python."""
    if dialect in _OF_DIALECT:
        require(_OF_DIALECT[dialect], what)
