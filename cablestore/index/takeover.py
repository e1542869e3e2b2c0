"""Takeover: prepare a new database to replace a live database that has changed in the meantime.

The new database was built from exports. It gets the data that exports lack from the live database: later posts,
local-only posts, claims about deleted posts, local rows and the arrival log. Posts that only one of the two databases
has are logged, so that subscribers see them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain

from cablestore.index import arrival_log
from cablestore.index.arrival_log import EventKind
from cablestore.index.batches import batches
from cablestore.index.database import Database, Row
from cablestore.index.derive import side_by_side
from cablestore.index.local import CONFIRMED, DECIDED, DROPPED, MENTIONING, READ, UNSEEN, local_key
from cablestore.index.local import PREFIX as LOCAL_PREFIX
from cablestore.index.plan import Plan
from cablestore.index.reader import DATA_PREFIX, PRIVATE_PREFIX, TOMBSTONE_PREFIX, Reader, decode_tombstone
from cablestore.index.rebuild import add_tombstones, write_planned
from cablestore.index.view import Catalog
from cablestore.protocol.dialect import Dialect
from cablestore.protocol.keys import after_prefix, unhex
from cablestore.protocol.post import Post


@dataclass(slots=True)
class TakeoverReport:
    """Numbers of hashes in the log since the export, of copied local-only posts, and of entries added to the log."""

    arrived_since: int = 0
    local_only: int = 0
    logged: int = 0


def take_over(
    live: Reader | None,
    target: Database,
    dialect: Dialect,
    catalog: Catalog,
    after: int,
    keeps: Callable[[Post], bool] = lambda _: True,
    hashes: Iterable[bytes] | None = None,
) -> TakeoverReport:
    """Add the data of `live` to `target`, which already contains the posts up to number `after` of the arrival log.

    Posts for which `keeps` returns False are omitted. If `live` is None, only the log is written. Then `hashes` are the
    hashes of all posts of the target in order, or None if they are unknown. A second call changes nothing.
    """
    report = TakeoverReport()
    if live is not None:
        for rows in batches(live.prefix(PRIVATE_PREFIX), lambda row: len(row[1])):
            write_planned(target, live, catalog, partial(_add_own, live, rows))
            report.local_only += len(rows)
        # These include the claims of other stores about deleted posts.
        for rows in _lacking(live, target, TOMBSTONE_PREFIX):
            write_planned(target, live, catalog, partial(add_tombstones, map(decode_tombstone, rows)))
        for entries in batches(arrival_log.post_entries(live, after), lambda _: 256):
            _replay(target, live, catalog, [entry.hash for entry in entries], keeps)
            report.arrived_since += len(entries)
        # Deletions that the live database confirmed override claims of other stores.
        for rows in _lacking(live, target, local_key(CONFIRMED)):
            write_planned(target, live, catalog, partial(_confirm_deletion, live, rows))
        # Posts that the live database dropped are not restored. The store removes other dropped posts when it opens.
        for rows in batches(live.prefix(local_key(DROPPED)), lambda row: len(row[1])):
            write_planned(target, live, catalog, partial(_discard, rows))
        target.flush()
        _copy_local(live, target)
        target.flush()
        _copy_log(live, target)
    if live is None and hashes is not None:
        report.logged = _log(((EventKind.ACCEPTED, digest) for digest in hashes), target, 1)
    else:
        report.logged = _log_differences(live, target, dialect)
    if live is not None and report.logged and any(chain(live.local_rows(READ), live.local_rows(MENTIONING))):
        _note_unseen(live, target)
    return report


def _note_unseen(live: Reader, target: Database) -> None:
    """Record the number in the log after which texts were not searched for mentions or compared with read marks.

    The store does this when it opens. An earlier number that is still recorded is kept.
    """
    earlier = live.local(UNSEEN, b"")
    unseen = b"%d" % (arrival_log.next_sequence(live) - 1) if earlier is None else earlier
    target.write({local_key(UNSEEN): unseen}, sync=False)


def _add_own(live: Reader, rows: Iterable[Row], plan: Plan) -> None:
    for _, sealed in rows:
        plan.add(live.unseal(sealed))


def _replay(
    target: Database, live: Reader, catalog: Catalog, hashes: Iterable[bytes], keeps: Callable[[Post], bool]
) -> None:
    """For each hash, add the post of `live` to the target if `keeps` accepts it.

    If `live` lacks the post, discard the target's. The caller adds the tombstones first.
    """

    def work(plan: Plan) -> None:
        for digest in hashes:
            post = live.post(digest)
            if post is None:
                plan.discard(digest)
            elif keeps(post):
                plan.add(post)

    write_planned(target, live, catalog, work)


def _lacking(live: Reader, target: Database, prefix: bytes) -> Iterator[list[Row]]:
    """Yield the rows of the live database under a prefix that are missing or different in the target, in batches."""
    with target.snapshot() as state:
        found = side_by_side(live.prefix(prefix), live.over(state).prefix(prefix))
        lacking = ((key, due) for key, due, present in found if due is not None and due != present)
        yield from batches(lacking, lambda row: len(row[1]))


def _confirm_deletion(live: Reader, rows: Iterable[Row], plan: Plan) -> None:
    for key, author in rows:
        hash_hex = key[len(local_key(CONFIRMED)) :]
        stone = live.tombstone(unhex(hash_hex), author)
        if stone is not None and stone.is_effective:
            plan.confirm_deletion(stone)


def _discard(rows: Iterable[Row], plan: Plan) -> None:
    for key, _ in rows:
        plan.discard(unhex(key[len(local_key(DROPPED)) :]))


def _copy_local(live: Reader, target: Database) -> None:
    """Copy the live database's local rows to the target. The target keeps its confirmed deletions.

    The applicable drops are derived again when the store opens, because the target may have other posts.
    """
    witnessed = local_key(CONFIRMED)
    with target.snapshot() as state:
        found = side_by_side(live.prefix(LOCAL_PREFIX), live.over(state).prefix(LOCAL_PREFIX))
        changed = (
            (key, due)
            for key, due, present in found
            if due != present and (due is not None or not key.startswith(witnessed))
        )
        for rows in batches(changed, lambda _: 256):
            target.write(dict(rows), sync=False)
    target.write({local_key(DECIDED): None}, sync=False)


def _copy_log(live: Reader, target: Database) -> None:
    """Copy the live database's log to the target, which may have another history after a power failure."""
    with target.snapshot() as state:
        found = side_by_side(live.prefix(arrival_log.PREFIX), live.over(state).prefix(arrival_log.PREFIX))
        changed = ((key, due) for key, due, present in found if due != present)
        for rows in batches(changed, lambda row: len(row[1] or b"")):
            target.write(dict(rows), sync=False)


def _log_differences(live: Reader | None, target: Database, dialect: Dialect) -> int:
    """Log the posts that only one of the two databases has, or all if `live` is None. Return their number."""
    with target.snapshot() as state:
        reader = Reader(state, dialect)
        first = 1 if live is None else arrival_log.next_sequence(reader)
        return _log(_differences(live, reader), target, first)


def _log(events: Iterable[tuple[EventKind, bytes]], target: Database, first: int) -> int:
    """Write events to the log, starting with the number `first`. Return their number."""
    sequence = first
    for batch in batches(events, len):
        key, value = arrival_log.log_row(sequence, batch)
        sequence += len(batch)
        target.write({key: value, arrival_log.NEXT_KEY: b"%d" % sequence}, sync=False)
    return sequence - first


def _differences(live: Reader | None, target: Reader) -> Iterator[tuple[EventKind, bytes]]:
    """Yield the event of each post that only one of the two databases has."""
    held = () if live is None else live.prefix(DATA_PREFIX)
    # The target was just written and read back, so `blocks` is safe.
    present = chain.from_iterable(target.blocks(DATA_PREFIX, after_prefix(DATA_PREFIX)))
    for key, before, now in side_by_side(held, present):
        if before is not None and now is not None:
            continue
        digest = unhex(key[len(DATA_PREFIX) :])
        if before is None:
            yield EventKind.ACCEPTED, digest
        else:
            yield (EventKind.DISCARDED if target.burial(digest) is None else EventKind.DELETED), digest
