"""Loading a pipeline file: safe YAML, `${ENV}`, pydantic, and errors that say which key and what to write instead."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path
from typing import Any, get_args, get_origin
from urllib.parse import quote

import yaml
from pydantic import BaseModel, ValidationError

from landonce.config import secrets
from landonce.config.model import Pipeline
from landonce.errors import ConfigError

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_USERINFO = re.compile(r"://[^/\s]*@")
_SECRET_NAME = re.compile(r"pass|secret|token|key|credential", re.IGNORECASE)


def load(path: Path) -> Pipeline:
    """The pipeline of this file, or a `ConfigError` that names every mistake in it."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    return parse(text, path)


def parse(text: str, path: Path) -> Pipeline:
    """As `load`, from text; `path` is for messages and for relative paths."""
    try:
        told = yaml.load(text, Loader=_NoRepeats)  # noqa: S506  a SafeLoader
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: is not YAML: {_where_and_what(error)}") from None
    if not isinstance(told, dict):
        raise ConfigError(f"{path}: a pipeline file is a mapping that begins with `pipeline: NAME`.")
    missing: set[str] = set()
    filled = _fill(told, missing)
    if missing:
        names = ", ".join(sorted(missing))
        raise ConfigError(f"{path}: the environment does not have {names}.", command=f"export {names.split(',')[0]}=…")
    try:
        return Pipeline.model_validate(filled).beside(path.resolve().parent)
    except ValidationError as error:
        lines = "\n".join(f"  {_say(each)}" for each in error.errors(include_input=False, include_url=False))
        raise ConfigError(secrets.redact(f"{path}:\n{lines}")) from None


def _where_and_what(error: yaml.YAMLError) -> str:
    """Without the line itself, which may hold a secret."""
    mark = getattr(error, "problem_mark", None)
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
    return f"{where}{getattr(error, 'problem', None) or 'cannot be read'}"


class _NoRepeats(yaml.SafeLoader):
    """A safe loader that does not let a key stand twice, which YAML would take silently."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            name = self.construct_object(key, deep=True)
            if name in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {name!r} stands twice", key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


def _fill(value: Any, missing: set[str]) -> Any:
    """`${NAME}` in any string, from the environment."""
    if isinstance(value, dict):
        return {key: _fill(each, missing) for key, each in value.items()}
    if isinstance(value, list):
        return [_fill(each, missing) for each in value]
    if isinstance(value, str):
        userinfo = _USERINFO.search(value)
        encoded = userinfo.span() if userinfo else (0, 0)
        return _VARIABLE.sub(
            lambda found: _variable(found[1], missing, percent=encoded[0] <= found.start() < encoded[1]), value
        )
    return value


def _variable(name: str, missing: set[str], *, percent: bool) -> str:
    """One variable's value; percent-encoded inside a URL's `user:password@`, so that any password will do."""
    value = os.environ.get(name)
    if value is None:
        missing.add(name)
        return ""
    if percent or _SECRET_NAME.search(name):
        secrets.remember(value)
    return quote(value, safe="") if percent else value


def _say(error: Any) -> str:
    where = [str(part) for part in error["loc"]]
    if error["type"] == "extra_forbidden":
        close = difflib.get_close_matches(where[-1], _keys_beside(where[:-1]), n=1, cutoff=0.5)
        hint = f"; did you mean {close[0]!r}?" if close else f"; known here: {', '.join(_keys_beside(where[:-1]))}"
        return f"{'.'.join(where)}: unknown key{hint}"
    if error["type"] == "missing":
        return f"{'.'.join(where)}: is missing"
    if error["type"] == "tuple_type":
        return f"{'.'.join(where)}: is to be a list, in brackets though it be one: [name]"
    message = str(error["msg"]).removeprefix("Value error, ")
    return f"{'.'.join(where) or 'pipeline file'}: {message}"


def _keys_beside(where: list[str]) -> list[str]:
    """The keys that a section may have."""
    model: type[BaseModel] = Pipeline
    for part in where:
        field = next((f for n, f in model.model_fields.items() if (f.alias or n) == part), None)
        inner = section(field.annotation) if field is not None else None
        if inner is None:
            return []
        model = inner
    return [field.alias or name for name, field in model.model_fields.items()]


def section(annotation: Any) -> type[BaseModel] | None:
    """The section that a key holds, which may be optional; None if it holds a value."""
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel) and get_origin(annotation) is not tuple:
            return kind
    return None
