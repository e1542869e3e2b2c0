"""Causal logs (SDS): every member of a channel ends with the same messages in the same order.

Over a transport that loses, repeats and reorders, such as UDP or gossip. Two chat clients, here with a list each in place
of the transport:

    from cablestore.sds import CausalLog, Deliver, Send

    with CausalLog.open("ann") as ann_log, CausalLog.open("bob") as bob_log:
        ann, bob = ann_log.channel("room", "ann"), bob_log.channel("room", "bob")
        ann.send(b"hello", now_ms)
        for number, effect in ann.outbox():          # what is to be done, in order; it is on the disk
            if isinstance(effect, Send):
                bob.receive(effect.data, now_ms)     # broadcast effect.data; whoever hears it hands it over
            ann.confirm(number)                      # done: after a crash it does not come again
        for number, effect in bob.outbox():
            if isinstance(effect, Deliver):
                print(effect.message.content)
            bob.confirm(number)
        ann.tick(now_ms, random.random)              # each second: what is sent again, asked for, given up

`causal_log(store)` opens the logs of a `CableStore`, in its folder. A `PostChannel` has Cable posts for messages, which it
stores when they are delivered. `Settings` is how patient a channel is, and what its members have to agree on.
"""

import warnings
from typing import Any

from cablestore.sds.bloom import FilterParameters
from cablestore.sds.channel import Received, ReceiveResult
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
from cablestore.sds.posts import CaughtUp, PostChannel, causal_log
from cablestore.sds.repair import RepairParameters, groups_for
from cablestore.sds.settings import COMPACT_FILTER, Backoff, Settings

__all__ = [
    "COMPACT_FILTER",
    "NIM",
    "SPEC",
    "Acknowledged",
    "Backoff",
    "CaughtUp",
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

_OLD_NAMES = {"Kind": MessageKind, "Message": SdsMessage, "Verdict": ReceiveResult}


def __getattr__(name: str) -> Any:
    """Return a class by the name that it had up to version 0.7, with a DeprecationWarning."""
    if name not in _OLD_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = _OLD_NAMES[name]
    warnings.warn(f"cablestore.sds.{name} is now cablestore.sds.{found.__name__}", DeprecationWarning, stacklevel=2)
    return found
