"""Where a range is cut: between equal numbers of ids, at bounds that the dialect can say. Pure.

Cuts by number cost a tenth to a hundredth of the bytes that cuts by time do, because posts come in bursts, and they go on
where thousands of ids share one time.
"""

from __future__ import annotations

from itertools import pairwise

from cablestore.reconcile.dialects import SyncDialect
from cablestore.reconcile.ids import Bound, Range
from cablestore.reconcile.sets import OrderedSet


def divided(items: OrderedSet, within: Range, count: int, parts: int, dialect: SyncDialect) -> list[Range]:
    """Cut a range, which has `count` ids, into about so many parts with about as many ids each.

    It comes back whole where the dialect has no cut in it: in nwaku's, ids of one time stay together.
    """
    parts = min(parts, count)
    cuts = [within.lower]
    for part in range(1, parts):
        cuts += cut_before(items, within, count * part // parts, cuts[-1], dialect, slack=count // parts // 8)
    return joined([*cuts, within.upper])


def cut_before(
    items: OrderedSet, within: Range, k: int, after: Bound, dialect: SyncDialect, *, slack: int = 0
) -> list[Bound]:
    """Return bounds that cut off the first k ids of a range, 1 at least, or as near as the dialect can, above `after`.

    It may be `slack` ids more or less. There are two where the one needs the other: a hash in a bound travels only behind
    a bound of the same time.
    """
    if dialect.cuts_hashes:
        cut = items.cut(within, k, slack)
        needed = [Bound(cut.timestamp_ns), cut] if cut.prefix else [cut]
    else:
        at = items.select(within, k)
        # Where the time began already, the next cut is behind all ids of it.
        cut = Bound(at.timestamp_ns)
        needed = [cut if cut > after else Bound(at.timestamp_ns + 1)]
    return [bound for bound in needed if after < bound < within.upper]


def sayable(within: Range) -> list[Range]:
    """Return the range as one or two whose upper bounds travel whole, each behind a bound of its time."""
    time = Bound(within.upper.timestamp_ns)
    return joined([within.lower, time, within.upper]) if within.lower < time < within.upper else [within]


def joined(bounds: list[Bound]) -> list[Range]:
    """Return the ranges between these bounds."""
    return [Range(lower, upper) for lower, upper in pairwise(bounds)]
