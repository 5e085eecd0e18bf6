"""The kinds of values of an unknown field, from which a column can be made. Pure, picklable, mergeable."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

BOOLEAN, LONG, DOUBLE, STRING, LIST, STRUCT = "boolean", "long", "double", "string", "list", "struct"
_TYPES = {BOOLEAN: pa.bool_(), LONG: pa.int64(), DOUBLE: pa.float64(), STRING: pa.string()}
_FIRST = (STRUCT, LIST, STRING, DOUBLE, LONG, BOOLEAN)


def distinct(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """Leaves out names that differ only in case from an earlier or a taken one: most readers cannot tell such
    columns apart."""
    known, kept = {each.lower() for each in taken}, []
    for name in names:
        if name.lower() not in known:
            known.add(name.lower())
            kept.append(name)
    return kept


@dataclass(frozen=True)
class Shape:
    """The kinds of values that were seen in one place, and inside them. Nulls are ignored."""

    kinds: frozenset[str] = frozenset()
    fields: tuple[tuple[str, Shape], ...] = ()
    """Of objects, by name."""
    element: Shape | None = None
    """Of arrays."""

    def type(self) -> pa.DataType | None:
        """Its column; None as long as no value was seen.

        Integers among fractions are fractions. Of incompatible kinds, the first in `_FIRST` gets the column,
        whatever the order in which they came; records with another kind do not fit.
        """
        for kind in (each for each in _FIRST if each in self.kinds):
            found = self._of_kind(kind)
            if found is not None:
                return found
        return None

    def _of_kind(self, kind: str) -> pa.DataType | None:
        if kind == STRUCT:
            children = [(name, shape.type()) for name, shape in self.fields]
            known = {name: pa.field(name, type_) for name, type_ in children if type_ is not None}
            return pa.struct([known[name] for name in distinct(known)]) if known else None
        if kind == LIST:
            inner = self.element.type() if self.element is not None else None
            return pa.list_(inner) if inner is not None else None
        return _TYPES[kind]


def merged(shapes: Iterable[Shape]) -> Shape:
    """The union of both. The order does not matter."""
    listed = list(shapes)
    fields: dict[str, list[Shape]] = {}
    for shape in listed:
        for name, each in shape.fields:
            fields.setdefault(name, []).append(each)
    elements = [shape.element for shape in listed if shape.element is not None]
    return Shape(
        frozenset().union(*(shape.kinds for shape in listed)),
        tuple((name, merged(fields[name])) for name in sorted(fields)),
        merged(elements) if elements else None,
    )
