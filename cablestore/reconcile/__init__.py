"""Set reconciliation (WAKU-SYNC): two stores find the posts that each lacks, at a cost proportional to the difference.

`session` compares two sets of ids. `sets` and `stored_set` define the sets, and `dialects` and `codec` the formats of
payloads. `conversation` transfers the missing posts. `audit` finds differences that XOR fingerprints can hide.

Two sessions, with direct calls in place of a network:

    from cablestore.reconcile import SPEC, MemorySet, ReconcileSession, SyncID

    shared, other = SyncID(1, b"a" * 32), SyncID(2, b"b" * 32)     # time in nanoseconds, hash of the post
    ours, theirs = MemorySet([shared, other]).snapshot(), MemorySet([shared]).snapshot()
    here, there = ReconcileSession(lambda _: ours, SPEC), ReconcileSession(lambda _: theirs, SPEC)
    payload, receiver, peer = here.initiate(at_s=0.0), there, here
    while payload is not None:
        step = receiver.receive(payload, at_s=0.0)       # a real program sends the payload to the peer
        if receiver is here:
            print(step.have, step.need)                  # ids that the peer lacks, and that we lack
        payload, receiver, peer = step.reply, peer, receiver

`stored_set(snapshot.reader)` is the set of a store's posts. A node does all this itself: `cablestore.peers`.
"""

from cablestore.reconcile.dialects import NWAKU_036, NWAKU_037, SPEC
from cablestore.reconcile.ids import SyncID
from cablestore.reconcile.session import ReconcileSession, SessionLimits
from cablestore.reconcile.sets import MemorySet
from cablestore.reconcile.stored_set import stored_set  # eager: a later import of its module would rebind the name

__all__ = [
    "NWAKU_036",
    "NWAKU_037",
    "SPEC",
    "MemorySet",
    "ReconcileSession",
    "SessionLimits",
    "SyncID",
    "stored_set",
]
