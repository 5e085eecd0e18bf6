"""Finds the sink that a pipeline file names, and checks that workers can load it."""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from landonce.config.model import without_secrets
from landonce.config.secrets import redact
from landonce.errors import ConfigError, LandonceError
from landonce.packages import IMPORT_ENDS, plug_in
from landonce.sinks.wrapped.sink import WrappedSink

GROUP = "landonce.sinks"
"""The entry points by which packages offer sinks."""
_KEY = "sink.wrapped.sink"


def find_sink(name: str, options: Mapping[str, Any], folder: Path) -> WrappedSink:
    """`name`: `module:name`, or the name of an entry point. The module may be beside the pipeline file, in `folder`."""
    offered = _attribute(name, folder) if ":" in name else plug_in(GROUP, name, key=_KEY, instead="write `module:name`")
    found = offered
    if not isinstance(found, WrappedSink):
        found = _made(name, found, options)
    elif options:
        raise ConfigError(f"sink.wrapped.options: {name} is a sink already, and takes no options.")
    if not isinstance(found, WrappedSink):
        raise ConfigError(
            f"{_KEY}: {name} returns {type(found).__name__}, which is not a sink.",
            command="return what `landonce.wrap` returns",
        )
    return replace(found, origin=_origin(name, offered, options))


def _origin(name: str, offered: Any, options: Mapping[str, Any]) -> str:
    """Which target it is: the name, the package and the options. Another package may offer the same name later."""
    package = str(getattr(offered, "__module__", "")).partition(".")[0]
    config = json.dumps([package, without_secrets(options)], sort_keys=True, default=str)
    return f"{name} {hashlib.sha256(config.encode()).hexdigest()[:8]}"


def need_picklable(sink: WrappedSink) -> None:
    """Raises before the start, with one clear sentence, instead of in a Spark job."""
    try:
        _cloudpickle().dumps(sink)
    except Exception as error:
        raise ConfigError(
            redact(f"the sink {sink.name} cannot be sent to workers: {type(error).__name__}: {error}"),
            command="open connections, locks and files in the method `open` of a class: wrap(MySink, …)",
        ) from None


def _cloudpickle() -> Any:
    """PySpark pickles functions with it."""
    return importlib.import_module("pyspark.cloudpickle")


def _made(name: str, factory: Any, options: Mapping[str, Any]) -> Any:
    if not callable(factory):
        raise ConfigError(f"{_KEY}: {name} is neither a sink nor a function that makes one.")
    try:
        return factory(**options)
    except LandonceError:
        raise
    except IMPORT_ENDS as error:
        raise ConfigError(redact(f"{_KEY}: {name} failed: {type(error).__name__}: {error}")) from None


def _attribute(name: str, folder: Path) -> Any:
    module_name, _, attribute = name.partition(":")
    module = _module(module_name, folder)
    if not hasattr(module, attribute):
        raise ConfigError(f"{_KEY}: {module.__file__} has no {attribute!r}.")
    return getattr(module, attribute)


def _module(name: str, folder: Path) -> ModuleType:
    """Imports a module. One beside the pipeline file is pickled by value, with the modules beside it that it imports."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module(name)
    except IMPORT_ENDS as error:
        raise ConfigError(
            redact(f"{_KEY}: {name} cannot be imported: {type(error).__name__}: {error}"),
            command=f"write it as `module:name`, with the module installed or in {folder}",
        ) from None
    finally:
        sys.path.remove(str(folder))
    _refuse_another(module, name, folder)
    for each in (module, *(sys.modules[new] for new in sorted(set(sys.modules) - before))):
        if _lies_in(each, folder):
            _cloudpickle().register_pickle_by_value(each)
    return module


def _lies_in(module: ModuleType, folder: Path) -> bool:
    """Whether it is beside the pipeline file, and neither in a virtual environment there, nor a part of landonce."""
    path, place = Path(getattr(module, "__file__", None) or "/").resolve(), folder.resolve()
    if not path.is_relative_to(place) or module.__name__.partition(".")[0] == "landonce":
        return False
    return "site-packages" not in path.relative_to(place).parts


def _refuse_another(module: ModuleType, name: str, folder: Path) -> None:
    """Refuses a module of the same name that was loaded from another place: it would push to another target."""
    stem = folder.joinpath(*name.split("."))
    beside = [path for path in (stem.with_suffix(".py"), stem / "__init__.py") if path.exists()]
    if beside and not any(path.samefile(module.__file__ or "/") for path in beside):
        raise ConfigError(
            f"{_KEY}: {name} is {beside[0]}, but a module of that name was loaded from {module.__file__} before.",
            command="give the module a name of its own",
        )
