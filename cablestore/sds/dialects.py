"""Dialects of SDS: `spec` (the specification, as in the npm package @waku/sds) and `nim` (nim-sds). Pure.

| | `spec` | `nim` |
|---|---|---|
| sender, message, channel | fields 1, 2, 3 | 7, 1, 4 |
| Lamport time, history, filter, repairs, content | 10, 11, 12, 13, 20 | 2, 3, 6, 13, 5 |
| required | a sender | a time and content, which may be empty |
| ids in a filter | MurmurHash3 of 32 bits | FarmHash of 64 bits |
| a filter's bytes | words of 64 bits, high byte first | words, low byte first, with the filter's parameters |
| repair | SHA-256 | FarmHash |
| sync messages | in no log | in the logs of members, which name them in histories |

The dialects are incompatible: all members of a channel must use the same dialect.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from cablestore.sds.hashes import javascript_hash, nim_hash, sha256_hash


class FieldNumbers(NamedTuple):
    """Field numbers of a message, in the order of the table above.

    The field numbers of a history entry are 1, 2 and 3 in all dialects.
    """

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
    """Dialect of SDS. The defaults are the values of the specification.

    `filter_hash` determines the bits of ids in filters. `repair_hash` determines which members answer a repair, and
    when. Both may return negative numbers. With `describes_filter`, a filter is a document with its parameters and its
    words, low byte first. Otherwise it is only the words, high byte first. `needs_sender` and `needs_lamport` make
    these fields required. With `empty_is_unset`, an empty field means none, and each message must have a content field.
    With `logs_sync`, members add sync messages to their logs and list them in histories.
    """

    name: str
    fields: FieldNumbers
    filter_hash: Callable[[str], int]
    repair_hash: Callable[[str], int]
    describes_filter: bool = False
    needs_sender: bool = True
    needs_lamport: bool = False
    empty_is_unset: bool = False
    logs_sync: bool = False


SPEC: Final = SdsDialect(
    "spec",
    FieldNumbers(1, 2, 3, 10, 11, 12, 13, 20),
    filter_hash=javascript_hash,
    repair_hash=sha256_hash,
)
"""Dialect of the specification. It does not define hashes and the bytes of filters, so they follow @waku/sds."""

NIM: Final = SdsDialect(
    "nim",
    FieldNumbers(7, 1, 4, 2, 3, 6, 13, 5),
    filter_hash=nim_hash,
    repair_hash=nim_hash,
    describes_filter=True,
    needs_sender=False,
    needs_lamport=True,
    empty_is_unset=True,
    logs_sync=True,
)
"""Dialect of nim-sds as used in logos-delivery."""
