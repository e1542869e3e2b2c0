"""The dialects of SDS: the specification's, as the npm package @waku/sds speaks it, and nim-sds'. Pure.

| | `spec` | `nim` |
|---|---|---|
| sender, message, channel | fields 1, 2, 3 | 7, 1, 4 |
| Lamport time, history, filter, repairs, content | 10, 11, 12, 13, 20 | 2, 3, 6, 13, 5 |
| without a sender, time or content | no sender: refused | no time or content: refused; content may be empty |
| ids in a filter | MurmurHash3 of 32 bits | FarmHash of 64 bits |
| a filter's bytes | words of 64 bits, high byte first | words, low byte first, with the filter's parameters |
| repair | SHA-256 | FarmHash |
| sync messages | in no log | in the logs of members, which name them |

They do not understand each other: all members of a channel speak one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from cablestore.errors import SdsError
from cablestore.sds.hashes import javascript_hash, nim_hash, sha256_hash


class FieldNumbers(NamedTuple):
    """The numbers of a message's protobuf fields. Those of a history entry are 1, 2 and 3 in all dialects."""

    sender_id: int
    message_id: int
    channel_id: int
    lamport_ms: int
    causal_history: int
    bloom_filter: int
    repair_request: int
    content: int


@dataclass(frozen=True, slots=True)
class SdsDialect:
    """One dialect.

    `filter_hash` places ids in filters, `repair_hash` chooses who repairs, and when; both may be negative. With
    `describes_filter` a filter's words are low byte first, in a document that names their parameters; without, they are
    high byte first and nothing is beside them. `needs_sender` and `needs_lamport` tell what no message is without;
    `empty_is_unset` that an empty field means none, and that content stands in any message. With `logs_sync` members put
    sync messages into their logs and name them in histories.
    """

    name: str
    fields: FieldNumbers
    filter_hash: Callable[[str], int]
    repair_hash: Callable[[str], int]
    describes_filter: bool
    needs_sender: bool
    needs_lamport: bool
    empty_is_unset: bool
    logs_sync: bool


SPEC: Final = SdsDialect(
    "spec",
    FieldNumbers(
        sender_id=1,
        message_id=2,
        channel_id=3,
        lamport_ms=10,
        causal_history=11,
        bloom_filter=12,
        repair_request=13,
        content=20,
    ),
    filter_hash=javascript_hash,
    repair_hash=sha256_hash,
    describes_filter=False,
    needs_sender=True,
    needs_lamport=False,
    empty_is_unset=False,
    logs_sync=False,
)
"""The specification's, which names no hashes: they and the filter's bytes are those of @waku/sds."""

NIM: Final = SdsDialect(
    "nim",
    FieldNumbers(
        sender_id=7,
        message_id=1,
        channel_id=4,
        lamport_ms=2,
        causal_history=3,
        bloom_filter=6,
        repair_request=13,
        content=5,
    ),
    filter_hash=nim_hash,
    repair_hash=nim_hash,
    describes_filter=True,
    needs_sender=False,
    needs_lamport=True,
    empty_is_unset=True,
    logs_sync=True,
)
"""nim-sds, as logos-delivery runs it."""

DIALECTS: Final = {dialect.name: dialect for dialect in (SPEC, NIM)}


def dialect_named(name: str) -> SdsDialect:
    """Return the dialect of this name. Raises SdsError for another."""
    try:
        return DIALECTS[name]
    except KeyError:
        raise SdsError(f"no dialect is called {name!r}: there are {', '.join(DIALECTS)}") from None
