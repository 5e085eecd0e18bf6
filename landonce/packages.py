"""Other packages: those that only some pipelines need, and those that offer plug-ins by entry point.

An error about a missing package names the command that installs it, before anything is imported. A plug-in name that
two packages offer is refused.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any

from landonce.config.secrets import redact
from landonce.errors import ConfigError

_MODULES = {
    "iceberg": ("pyiceberg", "fastavro", "pyroaring"),
    "postgres": ("psycopg", "adbc_driver_manager", "adbc_driver_postgresql"),
    "mysql": ("pymysql",),
    "ydb": ("ydb_sqlalchemy",),
    "protobuf": ("grpc_tools", "ptars"),
    "local": ("chdb", "clickhouse_connect"),
}
"""The modules that each extra of pyproject.toml brings. `clickhouse` brings none."""
_OF_DIALECT = {"postgresql": "postgres", "mysql": "mysql", "mariadb": "mysql", "yql": "ydb"}


def require(extra: str, what: str) -> None:
    """Raises `ConfigError` if packages of the extra are missing. `what`: the key of the pipeline file, or the command, that
    needs them."""
    missing = [name for name in _MODULES[extra] if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"{what} needs Python packages that are not installed ({', '.join(missing)}).",
            command=f'pip install "landonce[{extra}]"',
        )


def require_driver(dialect: str, what: str) -> None:
    """Like `require`, for a database by SQLAlchemy's name. SQLite comes with Python."""
    if dialect in _OF_DIALECT:
        require(_OF_DIALECT[dialect], what)


IMPORT_ENDS = (Exception, SystemExit)
"""The errors of importing a module of other people: a script without a `__main__` guard may call `sys.exit`."""


def plug_in(group: str, name: str, *, key: str, instead: str) -> Any:
    """Loads the one entry point of this name. `key`: its key in the pipeline file; `instead`: what else the user may write."""
    offered = entry_points(group=group)
    found = [each for each in offered if each.name == name]
    if not found:
        known = sorted({each.name for each in offered})
        words = f"installed packages offer {', '.join(known)}" if known else "no installed package offers any"
        raise ConfigError(
            f"{key}: there is no plug-in {name!r}; {words}.", command=f"install the package, or {instead}"
        )
    if len({each.value for each in found}) > 1:
        raise ConfigError(
            f"{key}: {len(found)} packages offer a plug-in {name!r}: {'; '.join(sorted(map(_origin, found)))}. landonce cannot "
            "know which one is meant.",
            command=f"uninstall all but one of them, or {instead}",
        )
    try:
        return found[0].load()
    except IMPORT_ENDS as error:
        raise ConfigError(
            redact(
                f"{key}: the plug-in {name!r} ({_origin(found[0])}) cannot be loaded: {type(error).__name__}: {error}"
            ),
            command="fix or reinstall the package",
        ) from None


def _origin(point: EntryPoint) -> str:
    return f"{point.value} of {point.dist.name} {point.dist.version}" if point.dist is not None else point.value
