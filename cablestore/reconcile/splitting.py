"""The reply to one payload: it skips equal ranges, and cuts differing ranges or lists their ids (WAKU-SYNC, "Responding").

A reply fills about one frame. The rest is postponed: one fingerprint over the rest requests it in the next payload. So
neither a large difference nor a hostile payload costs more than the work for one frame.

Ranges are cut into equal numbers of ids. That takes a tenth to a hundredth of the bytes of cuts into equal times,
because posts arrive in bursts. It also works if thousands of ids have the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from cablestore.limits import MAX_RECONCILE_ITEMS
from cablestore.reconcile.dialects import SyncDialect
from cablestore.reconcile.errors import ReconcileError
from cablestore.reconcile.ids import Bound, Range, SyncID
from cablestore.reconcile.payload import ItemSet, PayloadPart
from cablestore.reconcile.sets import OrderedSet

_ITEM_SIZE_BYTES: Final = 38  # a hash, and times that are hours apart
_RANGE_SIZE_BYTES: Final = 40  # a fingerprint and its bound


@dataclass(frozen=True, slots=True)
class Splitting:
    """Settings for cutting ranges.

    Up to `item_set_threshold` ids are sent as ids. Larger ranges are cut into `fan_out` parts. A reply ends after about
    `frame_size_bytes`. With `skip_equal_sets`, an equal item set is answered with Skip. Peers that follow the
    specification may expect the set back; cablestore and nwaku do not. With `has_open_end`, the time after the last
    local id is not part of a fingerprint, but an empty item set. Posts that only the peer has are mostly later, and are
    then found without cutting.
    """

    fan_out: int = 8
    item_set_threshold: int = 16
    frame_size_bytes: int = 4_194_304
    skip_equal_sets: bool = False
    has_open_end: bool = False

    def __post_init__(self) -> None:
        if (
            self.fan_out < 2
            or self.item_set_threshold < 1
            or self.frame_size_bytes < 2 * self.fan_out * _RANGE_SIZE_BYTES
        ):
            raise ReconcileError(
                f"{self} would never end: expected a fan-out of at least 2, a threshold of at least 1, and a frame of "
                f"at least {2 * self.fan_out * _RANGE_SIZE_BYTES} bytes, which two cut ranges need"
            )


@dataclass(slots=True)
class PayloadReply:
    """A reply under construction, and the ids that only this side (`have`) or only the peer has (`need`)."""

    parts: list[PayloadPart] = field(default_factory=list)
    have: list[SyncID] = field(default_factory=list)
    need: list[SyncID] = field(default_factory=list)
    size_bytes: int = 0
    learned: int = 0
    """Number of local ids that were compared with item sets that expect no answer."""

    def add(self, within: Range, content: ItemSet | bytes) -> None:
        """Append a range with its content. A gap before it becomes a Skip."""
        if self.parts and self.parts[-1].range.upper < within.lower:
            gap = Range(self.parts[-1].range.upper, within.lower)
            self.parts += [PayloadPart(part, None) for part in writable_ranges(gap)]
        self.parts.append(PayloadPart(within, content))
        self.size_bytes += _RANGE_SIZE_BYTES
        if isinstance(content, ItemSet):
            self.size_bytes += _ITEM_SIZE_BYTES * len(content.elements)


class Replier:
    """Builder of replies from one state of a set. Ranges outside `window` are not answered."""

    def __init__(self, items: OrderedSet, window: Range, dialect: SyncDialect, splitting: Splitting) -> None:
        self._items = items
        self._window = window
        self._dialect = dialect
        self._splitting = splitting
        self._frame_size_bytes = splitting.frame_size_bytes
        self._skips_equal = splitting.skip_equal_sets or dialect.accepts_skip
        self._lists_missing = True
        self._end = self._end_of(window) if splitting.has_open_end else window.upper

    def _end_of(self, window: Range) -> Bound:
        """Return a bound just after the time of the last local id in `window`, or the start of a window without ids."""
        count = self._items.count(window)
        return Bound(self._items.select(window, count - 1).timestamp_ns + 1) if count else window.lower

    def opening(self, ranges: Sequence[Range], *, whole: bool) -> PayloadReply:
        """Return the content of a first payload: a fingerprint of each range, or with `whole` all ids of each range.

        Raises ReconcileError if the ids do not fit into a frame.
        """
        reply = PayloadReply()
        for within in ranges:
            for part in writable_ranges(within):
                if not whole:
                    self._add_up_to_end(reply, part)
                elif (count := self._items.count(part)) <= self._room(reply):
                    reply.add(part, ItemSet(self._items.items(part), reconciled=False))
                else:
                    raise ReconcileError(
                        f"{count} more ids do not fit into a frame. Send fewer or shorter ranges with all ids"
                    )
        return reply

    def reply(
        self, parts: Sequence[PayloadPart], frame_size_bytes: int | None = None, *, lists_missing: bool = True
    ) -> PayloadReply:
        """Answer the `parts` of a payload in about `frame_size_bytes`, at most the size in the settings.

        Without `lists_missing`, an answer to an item set omits the ids that the peer lacks, because the peer receives
        their posts. They still count for the size of the reply, so that a reply does not find more differences.

        Raises ReconcileError if too many ids have the same time and the dialect cannot cut between them.
        """
        splitting = self._splitting
        most, least = splitting.frame_size_bytes, 2 * splitting.fan_out * _RANGE_SIZE_BYTES
        self._frame_size_bytes = most if frame_size_bytes is None else min(most, max(least, frame_size_bytes))
        self._lists_missing = lists_missing
        reply = PayloadReply()
        for at, part in enumerate(parts):
            if part.content is None:
                continue
            if self._is_full(reply):
                self._postpone(reply, Range(part.range.lower, parts[-1].range.upper))
                self._learn(reply, parts[at:])
                break
            self._answer(reply, part.range, part.content)
        return reply

    def _learn(self, reply: PayloadReply, parts: Sequence[PayloadPart]) -> None:
        """Compare the item sets in `parts` that expect no answer, although the reply is full: the peer relies on it."""
        for part in parts:
            within = part.range.within(self._window)
            if within is None or not isinstance(part.content, ItemSet):
                continue
            if self._is_learned(reply, within, part.content):
                self._compare(reply, within, part.content)

    def _is_learned(self, reply: PayloadReply, within: Range, theirs: ItemSet) -> bool:
        """Return True if `theirs` expects no answer, so that it must be compared completely.

        Return False once such item sets cover more local ids than one frame of an honest peer can cover.
        """
        if not theirs.reconciled:
            return False
        most = self._splitting.frame_size_bytes // _ITEM_SIZE_BYTES + 2 * self._splitting.item_set_threshold
        reply.learned += self._items.count(within)
        return reply.learned <= most

    def _answer(self, reply: PayloadReply, asked: Range, content: ItemSet | bytes) -> None:
        within = asked.within(self._window)
        if within is None:
            return
        if isinstance(content, ItemSet):
            for part in writable_ranges(within):
                self._answer_items(reply, part, content)
        elif within != asked or self._items.fingerprint(within).wire != content:
            for part in writable_ranges(within):
                self._cut_up_to_end(reply, part)

    def _add_up_to_end(self, reply: PayloadReply, within: Range) -> None:
        """Add a fingerprint of the range up to the last local id, and an empty item set after it."""
        before, after = self._at_end(within)
        if before is not None:
            self._add_fingerprint(reply, before)
        if after is not None:
            self._add_items(reply, after)

    def _cut_up_to_end(self, reply: PayloadReply, within: Range) -> None:
        """Cut a differing range up to the last local id, and add an empty item set after it."""
        before, after = self._at_end(within)
        if before is not None:
            self._cut(reply, before)
        if after is not None and self._is_full(reply):
            self._postpone(reply, after)
        elif after is not None:
            self._add_items(reply, after)

    def _at_end(self, within: Range) -> tuple[Range | None, Range | None]:
        """Return the part of a range before the end of the local ids, and the part after it. An empty part is None."""
        if within.lower < self._end < within.upper:
            return Range(within.lower, self._end), Range(self._end, within.upper)
        return (within, None) if within.upper <= self._end else (None, within)

    def _cut(self, reply: PayloadReply, within: Range) -> None:
        """Answer a differing range with fingerprints of its parts, or with its ids."""
        count = self._items.count(within)
        parts = [within]
        if count > self._splitting.item_set_threshold:
            parts = cut_evenly(self._items, within, count, self._splitting.fan_out, self._dialect)
        if len(parts) == 1:
            self._add_items(reply, within)
            return
        for part in parts:
            if self._is_full(reply):
                self._postpone(reply, Range(part.lower, within.upper))
                return
            self._add_fingerprint(reply, part)

    def _answer_items(self, reply: PayloadReply, within: Range, theirs: ItemSet) -> None:
        """Compare the peer's item set `theirs` with the local ids, and add the answer.

        If `_is_learned`, compare it completely, otherwise as far as the reply has room. Then add a fingerprint of the
        remaining range.
        """
        compared, left = ([within], None) if self._is_learned(reply, within, theirs) else self._fitting(reply, within)
        for part in compared:
            here, here_only, there_only = self._compare(reply, part, theirs)
            if theirs.reconciled:
                continue
            if not self._lists_missing:
                reply.size_bytes += _ITEM_SIZE_BYTES * len(here_only)
                here, here_only = [each for each in here if each not in here_only], set()
            if here_only or there_only or not self._skips_equal:
                reply.add(part, ItemSet(here, reconciled=True))
        if left is not None:
            self._add_fingerprint(reply, left)

    def _compare(
        self, reply: PayloadReply, within: Range, theirs: ItemSet
    ) -> tuple[list[SyncID], set[SyncID], set[SyncID]]:
        """Record in `reply` how the peer's ids and the local ids in a range differ.

        Return the local ids, the ids that only this side has, and the ids that only the peer has.
        """
        here = self._items.items(within)
        there = {sync_id for sync_id in theirs.elements if within.lower <= sync_id < within.upper}
        here_only, there_only = set(here).difference(there), there.difference(here)
        reply.have += sorted(here_only)
        reply.need += sorted(there_only)
        return here, here_only, there_only

    def _add_fingerprint(self, reply: PayloadReply, within: Range) -> None:
        if within.upper.timestamp_ns - within.lower.timestamp_ns < self._dialect.min_fingerprint_ns:
            self._add_items(reply, within)
        else:
            reply.add(within, self._items.fingerprint(within).wire)

    def _add_items(self, reply: PayloadReply, within: Range) -> None:
        sent, left = self._fitting(reply, within)
        for part in sent:
            reply.add(part, ItemSet(self._items.items(part), reconciled=False))
        if left is not None:
            reply.add(left, self._items.fingerprint(left).wire)

    def _fitting(self, reply: PayloadReply, within: Range) -> tuple[list[Range], Range | None]:
        """Split a range where its ids no longer fit into the reply.

        Return the first part, as ranges that the dialect can express, and the second part, None if all ids fit.
        """
        count, room = self._items.count(within), self._room(reply)
        if count <= max(room, self._splitting.item_set_threshold):
            return [within], None
        cuts = cut_before(self._items, within, max(room, 1), within.lower, self._dialect)
        if cuts:
            return writable_ranges(Range(within.lower, cuts[-1])), Range(cuts[-1], within.upper)
        if count <= MAX_RECONCILE_ITEMS:
            return [within], None
        raise ReconcileError(
            f"{count} ids share the time {within.lower.timestamp_ns} ns. At most {MAX_RECONCILE_ITEMS} can be sent at "
            f"once, and {self._dialect.name} cannot cut them. Reconcile in the dialect spec"
        )

    def _postpone(self, reply: PayloadReply, left: Range) -> None:
        """Postpone the range `left`: add only its fingerprint, which the peer answers in its next payload."""
        within = left.within(self._window)
        for part in writable_ranges(within) if within is not None else []:
            reply.add(part, self._items.fingerprint(part).wire)

    def _is_full(self, reply: PayloadReply) -> bool:
        return self._room(reply) < self._splitting.fan_out

    def _room(self, reply: PayloadReply) -> int:
        """Return how many more ids fit into the reply."""
        return max(0, self._frame_size_bytes - reply.size_bytes) // _ITEM_SIZE_BYTES


def cut_evenly(items: OrderedSet, within: Range, count: int, parts: int, dialect: SyncDialect) -> list[Range]:
    """Cut a range with `count` ids into about `parts` ranges with about equally many ids.

    The range is returned whole if the dialect cannot cut it: the dialects of nwaku cannot cut between ids of one time.
    """
    parts = min(parts, count)
    cuts = [within.lower]
    for part in range(1, parts):
        cuts += cut_before(items, within, count * part // parts, cuts[-1], dialect, slack=count // parts // 8)
    return ranges_between([*cuts, within.upper])


def cut_before(
    items: OrderedSet, within: Range, k: int, after: Bound, dialect: SyncDialect, *, slack: int = 0
) -> list[Bound]:
    """Cut off about the first `k` ids of a range, at least 1. Return the bounds of the cut that are above `after`.

    The list is empty if the dialect cannot cut there. The cut may be `slack` ids off, or more if the dialect requires
    it. A bound with a hash needs another bound of the same time before it, so two bounds are possible.
    """
    if dialect.cuts_hashes:
        cut = items.cut(within, k, slack)
        needed = [Bound(cut.timestamp_ns), cut] if cut.prefix else [cut]
    else:
        at = items.select(within, k)
        # If the range starts among the ids with this timestamp, cut after the last of them.
        cut = Bound(at.timestamp_ns)
        needed = [cut if cut > after else Bound(at.timestamp_ns + 1)]
    return [bound for bound in needed if after < bound < within.upper]


def writable_ranges(within: Range) -> list[Range]:
    """Return the range as one or two ranges whose upper bounds can be encoded, each after a bound of its time."""
    time = Bound(within.upper.timestamp_ns)
    return ranges_between([within.lower, time, within.upper]) if within.lower < time < within.upper else [within]


def ranges_between(bounds: list[Bound]) -> list[Range]:
    """Return the ranges between these bounds."""
    return [Range(lower, upper) for lower, upper in pairwise(bounds)]
