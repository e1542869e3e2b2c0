"""Causal logs (SDS): all members of a channel end with the same messages in the same order.

The transport may lose, duplicate and reorder messages, as UDP and gossip do. Two chat clients, with direct calls
instead of a transport:

    from cablestore.sds import CausalLog, Deliver, Send

    with CausalLog.open("ann") as ann_log, CausalLog.open("bob") as bob_log:
        ann, bob = ann_log.channel("room", "ann"), bob_log.channel("room", "bob")
        ann.send(b"hello", now_ms)
        for number, effect in ann.outbox():          # effects to handle, in order; they are on disk already
            if isinstance(effect, Send):
                bob.receive(effect.data, now_ms)     # a real client broadcasts effect.data
            ann.confirm(number)                      # handled: it is not repeated after a crash
        for number, effect in bob.outbox():
            if isinstance(effect, Deliver):
                print(effect.message.content)
            bob.confirm(number)
        ann.tick(now_ms, random.random)              # call each second: resends, requests, gives up

`causal_log(store)` opens the logs of a `CableStore` in its folder. The messages of a `PostChannel` are Cable posts,
which it stores on delivery. `Settings` contains the values that all members of a channel must agree on, and the
timeouts of each member.
"""

from cablestore.sds.bloom import FilterParameters
from cablestore.sds.delivery import Received, ReceiveResult
from cablestore.sds.dialects import NIM, SPEC, SdsDialect
from cablestore.sds.effects import (
    Acknowledged,
    Deliver,
    DeliverEphemeral,
    Effect,
    Lost,
    Missing,
    PossiblyAcknowledged,
    Reason,
    RepairRequested,
    Retrieve,
    Send,
    Unacknowledged,
)
from cablestore.sds.log import CausalLog, ChannelStatus, LogChannel
from cablestore.sds.message import HistoryEntry, MessageKind, SdsMessage
from cablestore.sds.posts import OutlinesResult, PostChannel, causal_log
from cablestore.sds.repair import RepairParameters, groups_for
from cablestore.sds.settings import COMPACT_FILTER, Backoff, Settings

__all__ = [
    "COMPACT_FILTER",
    "NIM",
    "SPEC",
    "Acknowledged",
    "Backoff",
    "CausalLog",
    "ChannelStatus",
    "Deliver",
    "DeliverEphemeral",
    "Effect",
    "FilterParameters",
    "HistoryEntry",
    "LogChannel",
    "Lost",
    "MessageKind",
    "Missing",
    "OutlinesResult",
    "PossiblyAcknowledged",
    "PostChannel",
    "Reason",
    "ReceiveResult",
    "Received",
    "RepairParameters",
    "RepairRequested",
    "Retrieve",
    "SdsDialect",
    "SdsMessage",
    "Send",
    "Settings",
    "Unacknowledged",
    "causal_log",
    "groups_for",
]
