"""A user's function or class as a sink: what it declares, how a worker opens it, and how a pipeline file names it."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from landonce.config.model import without_secrets
from landonce.config.secrets import redact
from landonce.errors import ConfigError, LandonceError
from landonce.ledger.block_ledgers import PushPlace
from landonce.ledger.claims import ClaimLedger, ClaimPlace
from landonce.ledger.entry_claims import PluginPlace
from landonce.packages import IMPORT_ENDS, plug_in
from landonce.sinks.contract import Guarantee, Sink
from landonce.sinks.wrapped.block import PushedBlock
from landonce.sinks.wrapped.config import no_claims

if TYPE_CHECKING:
    from landonce.config import model
    from landonce.sinks.checking import CheckRun, Sections
    from landonce.sinks.operations import Operations, Sessions
    from landonce.sinks.parts import Parts
    from landonce.sinks.pipeline_file import Pipeline
    from landonce.sinks.promise import Promise
    from landonce.sinks.run import Run
    from landonce.sinks.wrapped.driver import OpenWrapped

Push = Callable[[PushedBlock], None]
Probe = Callable[[PushedBlock], bool]
_BEGIN_WITHIN = 10.0
"""Seconds. A push that does not begin so soon after its claim does not begin at all."""
_YEAR = 366 * 24 * 3600
_GROUP = "landonce.sinks"
"""The entry points by which packages offer sinks."""
_KEY = "sink.wrapped.sink"


@dataclass(frozen=True)
class Delivery:
    """The user's functions, opened on a worker."""

    push: Push
    probe: Probe | None


@dataclass(frozen=True)
class WrappedSink(Sink):
    """Made by `wrap`. Picklable if what it wraps is, by PySpark's rules: functions are pickled by value."""

    wrapped: Any = field(repr=False)
    """A function, an object with `push`, or a class of such objects."""
    name: str
    idempotent: bool
    probe: Probe | None = field(default=None, repr=False)
    settles_within: float = 60.0
    origin: str = ""
    """Tells it from other sinks of its name: a hash of what the pipeline file says about it."""
    guarantee = Guarantee.WRAPPED

    def __str__(self) -> str:
        return f"{self.name} ({'idempotent' if self.idempotent else 'not idempotent'}{', with a probe' if self.can_probe else ''})"

    def open(self, run: Run) -> OpenWrapped:
        from landonce.sinks.wrapped.driver import OpenWrapped

        return OpenWrapped(needed(self), run)

    def open_named_ledger(self, named: model.LedgerSection, name: str) -> ClaimLedger:
        return claim_place(named, name).open()

    def promise(self, config: Pipeline) -> Promise:
        """The target is the user's own; its part is what its sink declares."""
        from landonce.sinks.promise import READ_IN_TIME, Promise, ledger_condition, transform_condition

        return Promise(
            "exactly once: every record is pushed and takes effect once, or is in the dead letters once, or filtered; or the pipeline "
            "halts and says which block is in doubt",
            (
                "every batch is planned in the ledger before the first block is pushed, and a block is the same bytes under the same key "
                "on every retry",
                "before an attempt is made, it is claimed in the ledger by compare-and-set; after it, the ledger says what became of it",
                "an outcome that nobody knows is never guessed: where pushing again is harmless the block is pushed again; else the "
                "attempt is waited out and the probe is asked, or a person",
                "a second driver fences the first by its epoch",
            ),
            (
                "what the sink declares is true: `idempotent`, the probe, `settles_within`, and that NotPushed means that nothing arrived",
                ledger_condition(config),
                "the ledger is not lost or restored: the target cannot be asked how far it is, so its records would be pushed again",
                *transform_condition(config),
                READ_IN_TIME,
            ),
        )

    @property
    def no_replay(self) -> str:
        return (
            f"{self.name} is a wrapped sink, which gets the records of a partition in their order: a dead letter is older than what was "
            "pushed after it, and could overwrite that."
        )

    @property
    def unreadable(self) -> str:
        return f"{self.name} is a wrapped sink: landonce can push to its target and cannot read what it holds."

    def open_query_ledger(self, where: str | Path | None, name: str) -> ClaimLedger:
        if where is None:
            raise ConfigError("ledger: say where the position is kept.")
        return PushPlace(where, name).open()

    def checks(self, run: CheckRun) -> Sections:
        from landonce.sinks.wrapped.check import sections

        return sections(run, self)

    def operations(self, parts: Parts, sessions: Sessions) -> Operations:
        from landonce.sinks.wrapped.driver import WrappedOperations

        return WrappedOperations(parts, sessions, self)

    @property
    def identity(self) -> str:
        """Which target it is. A pending plan is not pushed to another one."""
        return f"wrapped:{self.name} {self.origin}".strip()

    @property
    def can_probe(self) -> bool:
        return not self.idempotent and (self.probe is not None or callable(getattr(self.wrapped, "probe", None)))

    @property
    def begins_within(self) -> float:
        return min(_BEGIN_WITHIN, self.settles_within)

    @property
    def wait(self) -> int:
        """Milliseconds after a claim. Then its attempt can take effect no more."""
        return int((self.begins_within + self.settles_within) * 1000)

    @contextmanager
    def opened(self) -> Iterator[Delivery]:
        """Opens it on a worker, for one block. It is closed after the outcome is known, so closing cannot change the outcome."""
        target = self.wrapped() if isinstance(self.wrapped, type) else self.wrapped
        if not hasattr(target, "push"):
            yield Delivery(target, self.probe)
            return
        if hasattr(target, "open"):
            target.open()
        try:
            yield Delivery(target.push, self.probe or getattr(target, "probe", None))
        finally:
            if hasattr(target, "close"):
                with suppress(Exception):
                    target.close()


HANDED_OVER = WrappedSink(None, "the sink that a program hands over", idempotent=False)
"""Replaces it in commands that only read the pipeline file. Nothing is pushed with it."""


def claim_place(named: model.LedgerSection, name: str) -> ClaimPlace:
    """Where workers claim the blocks of a pipeline of this name."""
    if reason := no_claims(named):
        raise ConfigError(f"{reason}.", command="name `sqlite`, `postgres` or `plugin`")
    if named.plugin is not None:
        return PluginPlace(named.plugin.name, name, named.plugin.folder, tuple(named.plugin.options.items()))
    return PushPlace(named.place, name)


def needed(sink: WrappedSink) -> WrappedSink:
    """The sink, unless the file leaves it to a program."""
    if sink is HANDED_OVER:
        raise ConfigError(
            "sink.wrapped.sink: is missing. The file leaves the sink to a program, and this command needs it.",
            command='run_pipeline(config, sink=…), or name the sink in {file}: `sink: {wrapped: {sink: "module:name"}}`',
        )
    return sink


def wrap(
    push: Any,
    *,
    idempotent: bool | None = None,
    probe: Probe | None = None,
    settles_within: float = 60.0,
    name: str | None = None,
) -> WrappedSink:
    """Turns a function or a class into a sink that landonce drives: every block is pushed, and none takes effect twice.

    `push(block)` gets a `PushedBlock`. If it returns None, all of the block landed. If it raises `landonce.NotPushed`, nothing of it landed; if it
    raises `landonce.errors.TargetRefused`, it can never land. Any other exception is an unknown outcome. Instead of a function: an
    object with `push`, or a class of such objects that takes no arguments. Both may also have `open`, `close` and `probe`.

    `idempotent=True`: pushing the same block again, at any later time, changes nothing. `idempotent=False`: every attempt is claimed in the
    ledger first. If its outcome is unknown, landonce waits until it can take effect no more, which is `settles_within` seconds after
    `push` was called. Then `probe(block)` says whether the block is there. Without a probe the pipeline halts with
    `OutcomeUnknown`, and a person decides.

    `name`: which target this is. A pending plan is not pushed to another one. Default: the name of the function or class.
    """
    if not isinstance(idempotent, bool):
        raise ConfigError(
            "wrap: say whether pushing the same block again is harmless (`idempotent`): landonce cannot guess it.",
            command="wrap(push, idempotent=True), or wrap(push, idempotent=False, probe=…)",
        )
    if not callable(getattr(push, "push", None)) and (isinstance(push, type) or not callable(push)):
        raise ConfigError(f"wrap: {push!r} is neither a function nor something with `push`.")
    if probe is not None and not callable(probe):
        raise ConfigError("wrap: `probe` is a function that takes a block and says whether it is there.")
    functions = {"push": getattr(push, "push", push), "probe": probe or getattr(push, "probe", None)}
    for what, given in functions.items():
        _refuse_deferred(what, given)
    if isinstance(push, type):
        _refuse_unless_takes("the class", push)
    for what, given in functions.items():
        if given is not None:
            method = isinstance(push, type) and inspect.isfunction(inspect.getattr_static(push, what, None))
            _refuse_unless_takes(f"`{what}`", given, *((None, None) if method and given is not probe else (None,)))
    number = isinstance(settles_within, int | float) and not isinstance(settles_within, bool)
    if not number or not 0 < settles_within <= _YEAR:
        raise ConfigError("wrap: `settles_within` is a number of seconds above zero, and at most a year.")
    named = name or str(getattr(push, "__name__", None) or type(push).__name__).strip("<>")
    return WrappedSink(push, named, idempotent, probe, float(settles_within))


def _refuse_deferred(what: str, given: Any) -> None:
    """A call of a coroutine function or a generator function runs none of its code: every block would count as landed, and none would."""
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if any(kind(each) for kind in kinds for each in (given, getattr(given, "__call__", None))):  # noqa: B004
        raise ConfigError(
            f"wrap: `{what}` is a coroutine or a generator: calling it does not run it.",
            command=f"an ordinary function that returns when it is done, such as one that calls asyncio.run({what}_async(block))",
        )


def _refuse_unless_takes(what: str, given: Any, *arguments: None) -> None:
    """A call with wrong arguments would count as a push that may have arrived."""
    try:
        inspect.signature(given).bind(*arguments)
    except ValueError:  # some functions in C have no signature
        return
    except TypeError as error:
        wanted = "takes one argument, the block" if arguments else "is called without arguments"
        raise ConfigError(f"wrap: {what} {wanted}: {error}.") from None


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


# A sink that a pipeline file names.


def find_sink(name: str, options: Mapping[str, Any], folder: Path) -> WrappedSink:
    """`name`: `module:name`, or the name of an entry point. The module may be beside the pipeline file, in `folder`."""
    if ":" in name:
        module_name, _, attribute = name.partition(":")
        module = _module(module_name, folder)
        if not hasattr(module, attribute):
            raise ConfigError(f"{_KEY}: {module.__file__} has no {attribute!r}.")
        offered = getattr(module, attribute)
    else:
        offered = plug_in(_GROUP, name, key=_KEY, instead="write `module:name`")
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
    # Which target it is: the name, the package and the options. Another package may offer the same name later.
    package = str(getattr(offered, "__module__", "")).partition(".")[0]
    config = json.dumps([package, without_secrets(options)], sort_keys=True, default=str)
    return replace(found, origin=f"{name} {hashlib.sha256(config.encode()).hexdigest()[:8]}")


def _made(name: str, factory: Any, options: Mapping[str, Any]) -> Any:
    if not callable(factory):
        raise ConfigError(f"{_KEY}: {name} is neither a sink nor a function that makes one.")
    try:
        return factory(**options)
    except LandonceError:
        raise
    except IMPORT_ENDS as error:
        raise ConfigError(redact(f"{_KEY}: {name} failed: {type(error).__name__}: {error}")) from None


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
    stem = folder.joinpath(*name.split("."))
    beside = [path for path in (stem.with_suffix(".py"), stem / "__init__.py") if path.exists()]
    if beside and not any(path.samefile(module.__file__ or "/") for path in beside):
        raise ConfigError(  # it would push to another target
            f"{_KEY}: {name} is {beside[0]}, but a module of that name was loaded from {module.__file__} before.",
            command="give the module a name of its own",
        )
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
