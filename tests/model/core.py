"""The production core, loaded as it is or with planted bugs.

A bug is a patch of a module's source text, applied in memory. Every module of the core is then executed again, so that
the others see the patched one; the modules that the rest of the test run imported are not touched.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass, is_dataclass
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType

import landonce

# In the order of their imports.
MODULES = (
    "landonce.protocol.ranges",
    "landonce.protocol.blocks",
    "landonce.protocol.packing",
    "landonce.protocol.ledger",
    "landonce.protocol.source",
    "landonce.protocol.letters",
    "landonce.protocol.reasons",
    "landonce.protocol.receipt",
    "landonce.protocol.target",
    "landonce.protocol.settle",
    "landonce.protocol.marks",
    "landonce.protocol.own_ledger",
    "landonce.protocol.block_rows",
    "landonce.protocol.cases",
    "landonce.protocol.query_refusals",
    "landonce.protocol.match_ranges",
    "landonce.protocol.steps",
    "landonce.protocol.tolerance",
    "landonce.protocol.batch",
    "landonce.protocol.deduplicating",
    "landonce.protocol.snapshot",
    "landonce.protocol.transactional",
    "landonce.protocol.claimed",
    "landonce.protocol.transact",
    "landonce.protocol.push",
    "landonce.protocol.dedup",
)


@dataclass(frozen=True)
class Patch:
    """`snippet` must occur exactly once in the module's source, so that no planted bug becomes void without notice."""

    module: str
    snippet: str
    replacement: str

    def apply(self, source: str) -> str:
        found = source.count(self.snippet)
        if found != 1:
            raise AssertionError(f"{self.module}: the snippet occurs {found} times, not once:\n{self.snippet}")
        return source.replace(self.snippet, self.replacement)


@dataclass(frozen=True)
class Core:
    """The modules that the checker drives."""

    ranges: ModuleType
    blocks: ModuleType
    packing: ModuleType
    ledger: ModuleType
    source: ModuleType
    letters: ModuleType
    reasons: ModuleType
    receipt: ModuleType
    target: ModuleType
    settle: ModuleType
    marks: ModuleType
    own_ledger: ModuleType
    block_rows: ModuleType
    cases: ModuleType
    query_refusals: ModuleType
    match_ranges: ModuleType
    steps: ModuleType
    tolerance: ModuleType
    batch: ModuleType
    deduplicating: ModuleType
    snapshot: ModuleType
    transactional: ModuleType
    claimed: ModuleType
    transact: ModuleType
    push: ModuleType
    dedup: ModuleType


def load(*patches: Patch) -> Core:
    """The core with these bugs in it."""
    before = {name: sys.modules.get(name) for name in MODULES}
    loaded: dict[str, ModuleType] = {}
    try:
        for name in MODULES:
            loaded[name] = _execute(name, [patch for patch in patches if patch.module == name])
    finally:
        for name, module in before.items():
            _place(name, module)
    return Core(*loaded.values())


def _execute(name: str, patches: list[Patch]) -> ModuleType:
    path = Path(landonce.__file__).parent.joinpath(*name.split(".")[1:]).with_suffix(".py")
    module = ModuleType(name)
    module.__file__ = str(path)
    _place(name, module)
    exec(_compiled(path, tuple(patches)), module.__dict__)
    for each in vars(module).values():
        if isinstance(each, type) and each.__module__ == name and is_dataclass(each):
            _keep_hash(each)
    return module


@cache
def _compiled(path: Path, patches: tuple[Patch, ...]) -> CodeType:
    source = path.read_text(encoding="utf-8")
    for patch in patches:
        source = patch.apply(source)
    return compile(source, str(path), "exec")


def _keep_hash(values: type) -> None:
    """Values are frozen and are hashed over and over: each keeps its hash."""
    hashed = values.__hash__
    if hashed is None:
        return

    def kept(self: object) -> int:
        known = self.__dict__.get("#")
        if known is None:
            known = self.__dict__["#"] = hashed(self)
        return known

    values.__hash__ = kept  # type: ignore[method-assign,assignment]


def _place(name: str, module: ModuleType | None) -> None:
    """Puts a module where `import` and `from package import module` both find it; None takes it away."""
    package, _, child = name.rpartition(".")
    parent = importlib.import_module(package)
    if module is None:
        sys.modules.pop(name, None)
        if hasattr(parent, child):
            delattr(parent, child)
    else:
        sys.modules[name] = module
        setattr(parent, child, module)
