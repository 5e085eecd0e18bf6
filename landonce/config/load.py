"""Loads a pipeline file: safe YAML, values from elsewhere (`references`), pydantic. Errors name the line, the key, and what to write instead."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from landonce.config import secrets
from landonce.config.references import References
from landonce.errors import ConfigError

_MOST_VALUES = 100_000

Keys = Callable[[tuple[str, ...]], Sequence[str]]
"""Returns the keys that the section at this place of the file may have."""
Model = TypeVar("Model", bound=BaseModel)


def read(path: Path) -> str:
    """A file's text, or a `ConfigError`."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None


def validated(text: str, path: Path, model: type[Model], keys: Keys) -> Model:
    """The model of this text, or a `ConfigError` that names every mistake in it. `path` is for messages, `keys` for hints."""
    try:
        document = _constructed(text)
    except RecursionError:
        raise ConfigError(f"{path}: is nested too deeply.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        what = (
            getattr(error, "problem", None) or "cannot be read"
        )  # it does not quote the line, which may hold a secret
        raise ConfigError(f"{path}: is not YAML: {where}{what}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: a pipeline file is a mapping that begins with `pipeline: NAME`.")
    filled = References(path).filled(document)
    try:
        return model.model_validate(filled)
    except ValidationError as error:
        lines = "\n".join(_mistakes(error, _lines(text), keys))
        raise ConfigError(secrets.redact(f"{path}:\n{lines}")) from None


def _constructed(text: str) -> Any:
    """What the YAML means. Its values are counted before they are made."""
    loader = _NoRepeats(text)
    try:
        node = loader.get_single_node()
        _refuse_vast(node)
        return None if node is None else loader.construct_document(node)
    finally:
        loader.dispose()


def _refuse_vast(document: yaml.Node | None) -> None:
    """Raises for a text whose aliases stand for more values than any pipeline has, or for themselves."""
    left, count = [document], 0
    while left:
        node, count = left.pop(), count + 1
        if count > _MOST_VALUES:
            raise yaml.constructor.ConstructorError(None, None, f"more than {_MOST_VALUES:,} values, by aliases")
        if isinstance(node, yaml.MappingNode):
            left += [each for pair in node.value for each in pair]
        elif isinstance(node, yaml.SequenceNode):
            left += node.value


class _NoRepeats(yaml.SafeLoader):
    """A safe loader that refuses a repeated key, which YAML would accept silently."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key is a name", key.start_mark)
            name = self.construct_object(key, deep=True)
            if name in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {name!r} occurs twice", key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


_Place = tuple[str, ...]


def _lines(text: str) -> dict[_Place, int]:
    """The line of every key and element of a file."""
    found: dict[_Place, int] = {}

    def walk(node: yaml.Node, place: _Place) -> None:
        inside: list[tuple[str, yaml.Node, yaml.Node]] = []
        if isinstance(node, yaml.MappingNode):
            inside = [(str(key.value), key, value) for key, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            inside = [(str(number), value, value) for number, value in enumerate(node.value)]
        for name, begins, value in inside:
            here = (*place, name)
            found[here] = begins.start_mark.line + 1
            walk(value, here)

    walk(yaml.compose(text, Loader=yaml.SafeLoader), ())
    return found


def _mistakes(error: ValidationError, lines: Mapping[_Place, int], keys: Keys) -> Iterator[str]:
    """One line each, in the order of the file. A key that may hold one of several kinds gets one line, not one per kind. A part of a place
    in parentheses is the tag of such a kind."""
    found: dict[tuple[int, str], list[str]] = {}
    for each in error.errors(include_input=False, include_url=False):
        place = tuple(str(part) for part in each["loc"] if not str(part).startswith("("))
        known = next(place[:length] for length in range(len(place), -1, -1) if not length or place[:length] in lines)
        kinds = [_KINDS[part] for part in place[len(known) :] if part in _KINDS]
        where = ".".join(known if kinds else place) or "pipeline file"
        found.setdefault((lines.get(known, 0), where), []).append(kinds[0] if kinds else _say(each, place, keys))
    for (line, where), words in sorted(found.items()):
        what = words[0] if words[0] not in _KINDS.values() else f"must be {' or '.join(dict.fromkeys(words))}"
        yield f"  line {line}: {where}: {what}" if line else f"  {where}: {what}"


_KINDS = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "dict[str,str]": "a mapping of names to types",
}
"""pydantic appends one of these to the place of a value that may be of several kinds."""
_PLAIN = {
    "missing": "is missing",
    "tuple_type": "must be a list, in brackets even if it has one element: [name]",
    "string_type": "must be text; put it in quotes",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "dict_type": "must be a mapping: names and values",
    "path_type": "must be a path, as text",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
    "string_pattern_mismatch": "must match {pattern}",
}


def _say(error: Any, place: _Place, keys: Keys) -> str:
    kind = error["type"]
    if kind == "extra_forbidden":
        known = keys(place[:-1])
        close = difflib.get_close_matches(place[-1], known, n=1, cutoff=0.5)
        if not known:
            return "unknown key"
        return f"unknown key; did you mean {close[0]!r}?" if close else f"unknown key; known here: {', '.join(known)}"
    if kind in ("model_type", "model_attributes_type"):
        return f"must be a section with keys of its own: {', '.join(keys(place))}"
    if kind in _PLAIN:
        return _PLAIN[kind].format(**error.get("ctx", {}))
    return str(error["msg"]).removeprefix("Value error, ")


def keys_of(model: type[BaseModel], where: Sequence[str]) -> tuple[str, ...]:
    """The keys of the section at this place below `model`."""
    for part in where:
        field = next((f for n, f in model.model_fields.items() if (f.alias or n) == part), None)
        inner = section(field.annotation) if field is not None else None
        if inner is None:
            return ()
        model = inner
    return tuple(field.alias or name for name, field in model.model_fields.items())


def section(annotation: Any) -> type[BaseModel] | None:
    """The model of a key's section, which may be optional; None if the key holds a value."""
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel) and get_origin(annotation) is not tuple:
            return kind
    return None
