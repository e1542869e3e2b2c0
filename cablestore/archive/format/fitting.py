"""Selection of items if not all of them fit. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

_Item = TypeVar("_Item")


def smallest_within(
    items: Iterable[_Item], room_bytes: int, place: Callable[[_Item], tuple[int, bytes]]
) -> tuple[list[_Item], list[_Item]]:
    """Return the smallest items that fit into `room_bytes` together, and the items that are left out.

    `place` returns the size of an item in bytes, and a tie-breaker for items of equal size. The largest items are left
    out, so that one author's large items do not use the space of other authors. Both lists are in order of `place`, and
    do not depend on the order of `items`.
    """
    in_order = sorted(items, key=place)
    taken_bytes = 0
    for kept, item in enumerate(in_order):
        taken_bytes += place(item)[0]
        if taken_bytes > room_bytes:
            return in_order[:kept], in_order[kept:]
    return in_order, []
