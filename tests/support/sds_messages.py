"""Messages of causal logs for tests: the known answers, and a strategy that draws any message."""

from __future__ import annotations

import json
from typing import Any

import pytest
from folders import KNOWN_ANSWERS
from hypothesis import settings
from hypothesis import strategies as st

from cablestore import limits
from cablestore.protocol.varint import encode_varint
from cablestore.sds.dialects import NIM, SPEC, SdsDialect
from cablestore.sds.message import HistoryEntry, SdsMessage

VECTORS: dict[str, Any] = json.loads((KNOWN_ANSWERS / "sds.json").read_text())

in_each = pytest.mark.parametrize("dialect", [SPEC, NIM], ids=lambda dialect: dialect.name)

FEWER = settings(max_examples=settings().max_examples // 3)
"""Messages are slow to draw, so each run has far fewer of them, also a soak."""

NOW_MS = 1_700_000_000_000
U64 = 2**64 - 1


def field(number: int, value: int | bytes) -> bytes:
    """Return a protobuf field, a number or bytes."""
    if isinstance(value, int):
        return encode_varint(number << 3) + encode_varint(value)
    return encode_varint(number << 3 | 2) + encode_varint(len(value)) + value


def message_of(known: dict[str, Any]) -> SdsMessage:
    """Return the message that a known answer has as JSON."""

    def entries(name: str) -> tuple[HistoryEntry, ...]:
        return tuple(
            HistoryEntry(each["message_id"], unhex(each.get("retrieval_hint")), each.get("sender_id"))
            for each in known.get(name, [])
        )

    return SdsMessage(
        known["message_id"],
        known["channel_id"],
        known["sender_id"],
        int(known["lamport"]) if "lamport" in known else None,
        entries("causal_history"),
        unhex(known.get("bloom")),
        entries("repair_request"),
        unhex(known.get("content")),
    )


def unhex(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def fits(text: str) -> bool:
    return len(text.encode()) <= limits.MAX_SDS_ID_SIZE_BYTES


# Surrogates are omitted, because UTF-8 cannot encode them.
ids = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=80).filter(fits)


def entries(dialect: SdsDialect) -> st.SearchStrategy[HistoryEntry]:
    least = 1 if dialect.empty_is_unset else 0
    hints = st.none() | st.binary(min_size=least, max_size=60)
    senders = st.none() | st.text(st.characters(exclude_categories=["Cs"]), min_size=least, max_size=40).filter(fits)
    return st.builds(HistoryEntry, ids, hints, senders)


@st.composite
def messages(draw: st.DrawFn, dialect: SdsDialect) -> SdsMessage:
    """Draw any message that the dialect can express. An empty field is unset in `nim`, so it is not drawn there."""
    least = 1 if dialect.empty_is_unset else 0
    is_ephemeral = not dialect.needs_lamport and draw(st.booleans())
    content = st.binary(min_size=max(least, is_ephemeral), max_size=300)
    return SdsMessage(
        draw(ids),
        draw(ids),
        draw(ids if dialect.needs_sender else ids | st.just("")),
        None if is_ephemeral else draw(st.integers(0, U64)),
        tuple(draw(st.lists(entries(dialect), max_size=5))),
        draw(st.none() | st.binary(min_size=least, max_size=300)),
        tuple(draw(st.lists(entries(dialect), max_size=4))),
        draw(content if is_ephemeral else st.none() | content),
    )
