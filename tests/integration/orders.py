"""Orders as shops send them: nested, with fields that are absent, null, empty, or of another kind in every few records.

The oracle is the record itself, read by the standard library.
"""

from __future__ import annotations

import json
import random
from datetime import datetime, timedelta, timezone
from typing import Any

MIXED = ("note", "coupon", "extra", "serial")
"""Fields that no type but JSON text holds: of different kinds, always null, always empty, beyond 64 bits."""
DOCUMENTS = ("customer", "items", "attributes", "stock", "history", "payment", "route")
"""Fields that are objects or arrays."""
_WORDS = ("red", "ümlaut", 'quo"ted', "back\\slash", "tab\t", "")


def orders(count: int, seed: int = 14) -> list[dict[str, Any]]:
    dice = random.Random(seed)
    return [_order(number, dice) for number in range(count)]


def with_news(order: dict[str, Any]) -> dict[str, Any]:
    """The order as a later version of the shop sends it: with fields that no earlier order has."""
    customer = order.get("customer")
    return {**order, **({"customer": {**customer, "tier": "gold"}} if customer else {}), "gift": {"for": "Ada"}}


def encoded(order: dict[str, Any]) -> bytes:
    return json.dumps(order).encode()


def _order(number: int, dice: random.Random) -> dict[str, Any]:
    zone = dice.choice((timezone.utc, timezone(timedelta(hours=2)), timezone(timedelta(hours=-9, minutes=-30))))
    placed = datetime(2026, 1, 1, tzinfo=zone) + timedelta(milliseconds=dice.randrange(10**10))
    order: dict[str, Any] = {
        "id": number,
        "number": f"A-{number:05d}",
        "placed_at": placed.isoformat(timespec="milliseconds"),
        "day": placed.date().isoformat(),
        "paid": dice.random() < 0.5,
        "total": dice.choice((12, 12.5, 0, -3, 1e-3)),
        "customer": _customer(dice),
        "items": [_item(dice) for _ in range(dice.randrange(4))],
        "attributes": {f"key {dice.randrange(5000)}": dice.choice(_WORDS) for _ in range(dice.randrange(4))},
        "stock": {f"2026-02-{dice.randrange(1, 29):02d}": dice.randrange(9) for _ in range(dice.randrange(4))},
        "note": dice.choice(("call me", 5, 5.25, True, {"text": "x", "at": [1, {}]}, ["a", None], "", None)),
        "coupon": None,
        "extra": {},
        "history": [],
        "serial": 2**64 + number,
        "payment": dice.choice(({"method": "card", "card": {"last4": "1234"}}, {"method": "bank", "iban": "CH1"}, {})),
        "route": [[dice.randrange(9) for _ in range(dice.randrange(3))] for _ in range(dice.randrange(3))],
    }
    for name in [each for each in order if each != "id" and dice.random() < 0.05]:
        if dice.random() < 0.5:
            del order[name]
        else:
            order[name] = None
    return order


def _customer(dice: random.Random) -> dict[str, Any]:
    customer: dict[str, Any] = {
        "id": dice.randrange(2**60),
        "name": dice.choice(_WORDS),
        "score": dice.choice((1, 2.5)),
    }
    if dice.random() < 0.7:
        address = {"city": dice.choice(_WORDS), "geo": {"lat": 47.1, "lon": dice.random()}}
        customer["address"] = dice.choice((address, {"city": "Bern"}, None))
    return customer


def _item(dice: random.Random) -> dict[str, Any]:
    item: dict[str, Any] = {
        "sku": f"s{dice.randrange(50)}",
        "quantity": dice.randrange(9),
        "price": dice.choice((3, 9.99)),
    }
    if dice.random() < 0.4:
        item["discount"] = dice.choice(({"percent": 5}, {}, None))
    if dice.random() < 0.5:
        item["tags"] = dice.choice((["a"], [], None))
    if dice.random() < 0.3:
        item["options"] = dice.choice(("gift", {"wrap": "red"}, 7))
    return item


def typed(order: dict[str, Any], *, absent_as_empty: bool = False) -> dict[str, Any]:
    """What the columns of an order should hold: missing fields as None, times as moments, mixed fields as JSON text.

    `absent_as_empty`: an absent object is one without values, an absent array or map is empty.
    """
    placed = order.get("placed_at")
    day = order.get("day")
    empty_list: list[Any] | None = [] if absent_as_empty else None

    def customer(value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is None and not absent_as_empty:
            return None
        value = value or {}
        return {**_picked(value, ("id", "name", "score")), "address": address(value.get("address"))}

    def address(value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is None and not absent_as_empty:
            return None
        return {"city": (value or {}).get("city"), "geo": plain((value or {}).get("geo"), ("lat", "lon"))}

    def plain(value: dict[str, Any] | None, names: tuple[str, ...]) -> dict[str, Any] | None:
        return None if value is None and not absent_as_empty else _picked(value or {}, names)

    def item(value: dict[str, Any]) -> dict[str, Any]:
        return {
            **_picked(value, ("sku", "quantity", "price")),
            "discount": plain(value.get("discount"), ("percent",)),
            "tags": value.get("tags") if value.get("tags") is not None else empty_list,
            "options": text(value.get("options")),
        }

    def payment(value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is None and not absent_as_empty:
            return None
        value = value or {}
        return {**_picked(value, ("method", "iban")), "card": plain(value.get("card"), ("last4",))}

    items = order.get("items")
    return {
        **_picked(order, ("id", "number", "paid", "total")),
        "placed_at": datetime.fromisoformat(placed) if placed else None,
        "day": datetime.fromisoformat(day).date() if day else None,
        "customer": customer(order.get("customer")),
        "items": empty_list if items is None else [item(each) for each in items],
        "attributes": _or(order.get("attributes"), {} if absent_as_empty else None),
        "stock": _or(order.get("stock"), {} if absent_as_empty else None),
        "history": _or(order.get("history"), empty_list),
        "payment": payment(order.get("payment")),
        "route": _or(order.get("route"), empty_list),
        **{name: text(order.get(name)) for name in MIXED},
    }


def text(value: Any) -> str | None:
    """The text of a value, as `encoded` writes it."""
    return None if value is None else json.dumps(value)


def _or(value: Any, other: Any) -> Any:
    return other if value is None else value


def _picked(value: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value.get(name) for name in names}
