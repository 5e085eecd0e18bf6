"""The production core, loaded as it is or with planted bugs.

A bug is a patch of a module's source text, applied in memory. Every module of the core is then executed anew, so that
the others see the patched one; the modules that the rest of the test run imported are not touched.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import landonce

# In the order of their imports.
MODULES = (
    "landonce.plan.ranges",
    "landonce.plan.blocks",
    "landonce.plan.packing",
    "landonce.record.ledger",
    "landonce.record.swap",
    "landonce.read.source",
    "landonce.write.receipt",
    "landonce.write.target",
    "landonce.write.settle",
    "landonce.run.steps",
    "landonce.run.inserts",
    "landonce.write.marks",
    "landonce.write.own",
    "landonce.run.snapshots",
    "landonce.record.blocks",
    "landonce.write.transact",
    "landonce.run.transactions",
    "landonce.record.pushes",
    "landonce.write.push",
    "landonce.plan.keys",
    "landonce.run.pushes",
    "landonce.plan.cases",
    "landonce.query.refusals",
    "landonce.query.offsets",
    "landonce.query.judging",
    "landonce.query.protocol",
)


@dataclass(frozen=True)
class Patch:
    """`snippet` must stand exactly once in the module's source, so that a planted bug cannot rot unseen."""

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
    swap: ModuleType
    source: ModuleType
    receipt: ModuleType
    target: ModuleType
    settle: ModuleType
    steps: ModuleType
    inserts: ModuleType
    marks: ModuleType
    own: ModuleType
    snapshots: ModuleType
    marks_of_blocks: ModuleType
    transact: ModuleType
    transactions: ModuleType
    marks_of_pushes: ModuleType
    push: ModuleType
    keys: ModuleType
    pushes: ModuleType
    cases: ModuleType
    refusals: ModuleType
    offsets: ModuleType
    judging: ModuleType
    queries: ModuleType


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
    source = path.read_text(encoding="utf-8")
    for patch in patches:
        source = patch.apply(source)
    module = ModuleType(name)
    module.__file__ = str(path)
    _place(name, module)
    exec(compile(source, str(path), "exec"), module.__dict__)
    return module


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
