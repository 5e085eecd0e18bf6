"""What other packages offer by entry point. A name means one thing, or nothing is opened."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from landonce.config.secrets import redact
from landonce.errors import ConfigError

IMPORT_ENDS = (Exception, SystemExit)
"""How importing somebody's module may end: a script without a guard leaves by `sys.exit`."""


def plug_in(group: str, name: str, *, key: str, instead: str) -> Any:
    """What the one entry point of this name stands for. `key`: where the file says it; `instead`: what else one may write."""
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
            f"{key}: {len(found)} packages offer a plug-in {name!r}: {'; '.join(sorted(map(_origin, found)))}. Which of them is "
            "meant cannot be told.",
            command=f"uninstall all but one of them, or {instead}",
        )
    try:
        return found[0].load()
    except IMPORT_ENDS as error:
        raise ConfigError(
            redact(
                f"{key}: the plug-in {name!r} ({_origin(found[0])}) cannot be loaded: {type(error).__name__}: {error}"
            ),
            command="mend or reinstall the package",
        ) from None


def _origin(point: EntryPoint) -> str:
    return f"{point.value} of {point.dist.name} {point.dist.version}" if point.dist is not None else point.value
