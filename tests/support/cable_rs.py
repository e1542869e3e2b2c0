"""Messages as cable.rs writes them: lengths are one too small if the length before a message grows by a byte."""

from __future__ import annotations

from cablestore import LEGACY
from cablestore.protocol.message import Message, encode_message
from cablestore.protocol.varint import encode_varint, read_varint


def varint_size(number: int) -> int:
    return len(encode_varint(number))


def written_by_cable_rs(message: Message) -> bytes:
    """Return a message as cable.rs writes it.

    It reserves the message's size and the size of its length. The written length is this space less the size of the
    space's own length. For 127 bytes, and for 16,382 and 16,383, the space has a longer length than the message.
    """
    encoded = encode_message(message, LEGACY)
    _, start = read_varint(encoded, 0)
    content = encoded[start:]
    room = varint_size(len(content)) + len(content)
    written = encode_varint(room - varint_size(room)) + content
    assert len(written) == room
    return written
