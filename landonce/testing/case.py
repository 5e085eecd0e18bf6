"""A case of the contract: its name, what a user would lose if it failed, the check, and what it needs to apply.

Only what a site declares decides whether a case applies. A case that does not apply is never left out silently: `excused`
gives the reason, and pytest shows it as a skip with that reason.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Site = TypeVar("Site")


@dataclass(frozen=True)
class Need(Generic[Site]):
    """What a case needs of a site, and what to say of a site that does not have it."""

    met: Callable[[Site], bool]
    otherwise: str


SECRET: Need[Any] = Need(lambda site: bool(site.secret), "the site names no secret")


def overrides(base: type, name: str, otherwise: str) -> Need[Any]:
    """The site has this method of its own."""
    return Need(lambda site: getattr(type(site), name) is not getattr(base, name), f"{otherwise} ({name})")


@dataclass(frozen=True)
class Case(Generic[Site]):
    """`check` raises `AssertionError` for a site that does not keep the promise."""

    name: str
    loses: str
    """What a user would lose."""
    check: Callable[[Site], None]
    needs: tuple[Need[Site], ...] = ()

    def __str__(self) -> str:
        return self.name

    def excused(self, site: Site) -> str:
        """Why the case does not apply to this site; empty if it does."""
        return "; ".join(need.otherwise for need in self.needs if not need.met(site))


class Suite(Generic[Site]):
    """The cases of one kind of plug-in, in order. Each name is there once."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._cases: dict[str, Case[Site]] = {}

    def case(self, *needs: Need[Site]) -> Callable[[Callable[[Site], None]], Callable[[Site], None]]:
        """Adds a function: its name is the case's, its docstring says what a user would lose."""

        def added(check: Callable[[Site], None]) -> Callable[[Site], None]:
            self.add(check.__name__, check, *needs, loses=inspect.cleandoc(check.__doc__ or ""))
            return check

        return added

    def add(self, name: str, check: Callable[[Site], None], *needs: Need[Site], loses: str) -> None:
        if name in self._cases or not loses:
            raise ValueError(f"case {name!r} is there twice, or does not say what a user would lose")
        self._cases[name] = Case(name, loses, check, needs)

    def excused(self, site: Site) -> dict[str, str]:
        """The cases that do not apply to a site, each with its reason."""
        reasons = {name: case.excused(site) for name, case in self._cases.items()}
        return {name: reason for name, reason in reasons.items() if reason}

    def __getitem__(self, name: str) -> Case[Site]:
        return self._cases[name]

    def __iter__(self) -> Iterator[Case[Site]]:
        return iter(self._cases.values())

    def __len__(self) -> int:
        return len(self._cases)


def refused(kind: type[BaseException], act: Callable[[], Any], loss: str) -> BaseException:
    """The error of this kind that the act must raise. Anything else fails the case with `loss`."""
    try:
        answer = act()
    except kind as error:
        return error
    except Exception as error:
        raise AssertionError(f"{loss}: {type(error).__name__} instead of {kind.__name__}: {error}") from error
    raise AssertionError(f"{loss}: {kind.__name__} was due, and the answer was {answer!r}")
