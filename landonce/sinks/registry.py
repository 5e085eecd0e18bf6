"""The sinks that a pipeline file may name: landonce's own, and those of other packages by entry point.

A sink's modules are imported when a file names it: a pipeline to ClickHouse does not wait for PyIceberg.
"""

from __future__ import annotations

import importlib
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from pydantic import ValidationError, create_model

from landonce.config.part import Part
from landonce.packages import plug_in
from landonce.sinks.section import SinkSection

GROUP = "landonce.sinks"
"""The entry points by which packages offer sinks: subclasses of `SinkSection` under the name that a file gives them."""
_BUILT_IN = {
    "clickhouse": ("landonce.sinks.clickhouse.config", "ClickHouse"),
    "iceberg": ("landonce.sinks.iceberg.config", "Iceberg"),
    "sql": ("landonce.sinks.sql.config", "Sql"),
    "wrapped": ("landonce.sinks.wrapped.config", "Wrapped"),
}


def names() -> tuple[str, ...]:
    """What may be below `sink:` in a pipeline file. Reads the metadata of every installed package."""
    offered = {each.name for each in entry_points(group=GROUP)}
    return (*_BUILT_IN, *sorted(offered - set(_BUILT_IN)))


def section(name: str) -> type[SinkSection]:
    """The section of this name, or `ValueError` where the entry point offers something else."""
    if name in _BUILT_IN:
        module, attribute = _BUILT_IN[name]
        found = getattr(importlib.import_module(module), attribute)
    else:
        found = plug_in(GROUP, name, key=f"sink.{name}", instead="name another sink")
    if not (isinstance(found, type) and issubclass(found, SinkSection)):
        raise ValueError(f"the plug-in {name!r} is a wrapped sink; write `sink: {{wrapped: {{sink: {name}}}}}`")
    return found


def section_of(given: Any) -> SinkSection:
    """The one section that a pipeline file has below `sink:`. Mistakes keep their place in the file."""
    if isinstance(given, SinkSection):
        return given
    if not isinstance(given, dict):
        raise ValidationError.from_exception_data(
            "Sink", [{"type": "model_type", "input": None, "ctx": {"class_name": "Sink"}}]
        )
    known = tuple(_BUILT_IN) if given.keys() <= _BUILT_IN.keys() else names()
    unknown = [name for name in given if name not in known]
    if unknown:
        raise ValidationError.from_exception_data(
            "Sink", [{"type": "extra_forbidden", "loc": (name,), "input": None} for name in unknown]
        )
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        *others, last = _BUILT_IN
        raise ValueError(f"name one sink: {', '.join(others)} or {last}")
    chosen = _alone(named[0], section(named[0])).model_validate({named[0]: given[named[0]]})
    found: SinkSection = getattr(chosen, named[0])
    return found


@cache
def _alone(name: str, kind: type[SinkSection]) -> type[Part]:
    """A model of `sink:` with this key alone, so that pydantic names the place of each mistake."""
    fields: dict[str, Any] = {name: (kind, ...)}
    return create_model("Sink", __base__=Part, **fields)
