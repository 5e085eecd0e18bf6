"""From a name in a pipeline file to the sink that it stands for, and whether workers will be able to load it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from landonce.config.secrets import redact
from landonce.errors import ConfigError, LandonceError
from landonce.write.wrapped.sink import WrappedSink

GROUP = "landonce.sinks"
"""The entry points by which packages offer sinks."""
_KEY = "sink.wrapped.sink"


def find_sink(name: str, options: Mapping[str, Any], folder: Path) -> WrappedSink:
    """`module:name`, or the name of an entry point. A module may lie beside the pipeline file, in `folder`."""
    found = _attribute(name, folder) if ":" in name else _plug_in(name)
    if not isinstance(found, WrappedSink):
        found = _made(name, found, options)
    elif options:
        raise ConfigError(f"sink.wrapped.options: {name} is a sink already, and takes no options.")
    if not isinstance(found, WrappedSink):
        raise ConfigError(
            f"{_KEY}: {name} gives {type(found).__name__}, which is no sink.",
            command="give back what `landonce.wrap` gives",
        )
    return found


def need_picklable(sink: WrappedSink) -> None:
    """One clear sentence before the start instead of a failed job."""
    try:
        _cloudpickle().dumps(sink)
    except Exception as error:
        raise ConfigError(
            redact(f"the sink {sink.name} cannot be sent to workers: {type(error).__name__}: {error}"),
            command="make connections, locks and files in `open` of a class and not before: wrap(MySink, …)",
        ) from None


def _cloudpickle() -> Any:
    """As PySpark pickles functions."""
    return importlib.import_module("pyspark.cloudpickle")


def _made(name: str, factory: Any, options: Mapping[str, Any]) -> Any:
    if not callable(factory):
        raise ConfigError(f"{_KEY}: {name} is neither a sink nor a function that makes one.")
    try:
        return factory(**options)
    except LandonceError:
        raise
    except Exception as error:
        raise ConfigError(redact(f"{_KEY}: {name} failed: {type(error).__name__}: {error}")) from None


def _attribute(name: str, folder: Path) -> Any:
    module_name, _, attribute = name.partition(":")
    module = _module(module_name, folder)
    if not hasattr(module, attribute):
        raise ConfigError(f"{_KEY}: {module.__file__} has no {attribute!r}.")
    return getattr(module, attribute)


def _module(name: str, folder: Path) -> ModuleType:
    """One that lies beside the pipeline file goes to the workers by value: it need not be installed there."""
    sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module(name)
    except Exception as error:
        raise ConfigError(
            redact(f"{_KEY}: {name} cannot be imported: {type(error).__name__}: {error}"),
            command=f"write it as `module:name`, with the module installed or in {folder}",
        ) from None
    finally:
        sys.path.remove(str(folder))
    if Path(module.__file__ or "/").resolve().is_relative_to(folder.resolve()):
        _cloudpickle().register_pickle_by_value(module)
    return module


def _plug_in(name: str) -> Any:
    known: dict[str, EntryPoint] = {each.name: each for each in entry_points(group=GROUP)}
    if name not in known:
        offered = f"installed packages offer {', '.join(sorted(known))}" if known else "no installed package offers any"
        raise ConfigError(
            f"{_KEY}: there is no plug-in {name!r}; {offered}.", command="write `module:name`, or install the package"
        )
    try:
        return known[name].load()
    except Exception as error:
        raise ConfigError(
            redact(f"{_KEY}: the plug-in {name!r} cannot be loaded: {type(error).__name__}: {error}")
        ) from None
