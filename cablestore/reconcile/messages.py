"""What two stores say to each other while they reconcile: frames, written and read. Ours alone, `cablestore-reconcile/1`. Pure.

A frame begins with its kind and with a number that all frames of one talk share, so that what is left over of a talk
that broke off is known as such:

    frame:      kind u8 | talk number varint | body
    1 hello:    version varint | purpose u8 (0 reconcile, 1 audit) | dialect of the store, sized text | terms
    2 accepted: terms that hold for both
    3 ended:    reason varint (`Reason`) | text, sized
    4 payload:  a payload of the dialect `spec`
    5 posts:    batch number varint | transferred messages of `spec`, each sized
    6 stored:   batch number varint
    7 given:    nothing; all posts but deletions are sent and stored
    8 done:     number of posts sent varint
    9 question, 10 answer: of an audit

A payload under the number 0, which no talk has, says that its sender's store has got a new channel. Stores that do not know
that take it for left over.

    terms: takes posts u8 | from ms varint | until ms varint, 0 for no end | channels + 1 varint, 0 for all | each sized
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from cablestore.errors import DecodeError, ReconcileError
from cablestore.limits import (
    MAX_CHANNEL_CODEPOINTS,
    MAX_RECONCILE_TOPICS,
    MAX_TALK_FRAME_SIZE_BYTES,
    MAX_TALK_REASON_CODEPOINTS,
)
from cablestore.protocol.fields import read_choice, read_sized, read_text, sized
from cablestore.protocol.keys import NS_PER_MS
from cablestore.protocol.varint import encode_varint, read_varint
from cablestore.reconcile.ids import END_NS

PROTOCOL: Final = "cablestore-reconcile/1"
VERSION: Final = 1
MAX_NUMBER: Final = 2**32 - 1
END_MS: Final = END_NS // NS_PER_MS
_MAX_DIALECT_CODEPOINTS: Final = 32


class Purpose(IntEnum):
    """What a talk is for."""

    RECONCILE = 0
    AUDIT = 1


class Reason(IntEnum):
    """Why a talk does not begin, or ends before its end."""

    OTHER = 0
    BUSY = 1
    VERSION = 2
    DIALECT = 3
    NOTHING = 4
    """No time or nothing else is common to what both want."""
    LIMIT = 5
    STORAGE = 6
    FAULT = 7
    STOPPING = 8


class Terms(NamedTuple):
    """What one side wants: times in milliseconds from inclusive to exclusive, channels or None for all, whether it takes posts."""

    takes: bool = True
    from_ms: int = 0
    until_ms: int | None = None
    channels: frozenset[str] | None = None

    def narrowed(self, other: Terms) -> Terms:
        """The part of these terms that the other side wants too."""
        ends = [end for end in (self.until_ms, other.until_ms) if end is not None]
        channels = self.channels
        if other.channels is not None:
            channels = other.channels if channels is None else channels & other.channels
        return Terms(self.takes, max(self.from_ms, other.from_ms), min(ends, default=None), channels)

    def is_within(self, other: Terms) -> bool:
        """Tell whether these terms want nothing that the other ones do not."""
        return self.narrowed(other)[1:] == self[1:]


class Hello(NamedTuple):
    """Begins a talk."""

    version: int
    purpose: Purpose
    dialect: str
    terms: Terms


class Accepted(NamedTuple):
    """Agrees. `terms.takes` is whether the side that was asked takes posts."""

    terms: Terms


class Ended(NamedTuple):
    """Ends the talk, or does not let it begin."""

    reason: Reason
    text: str


class PayloadFrame(NamedTuple):
    """A payload of the reconciliation."""

    data: bytes


class PostsFrame(NamedTuple):
    """A batch of posts, as transferred messages."""

    batch: int
    contents: tuple[bytes, ...]


class Stored(NamedTuple):
    """The batch is stored: the sender may send another."""

    batch: int


class Given(NamedTuple):
    """All posts but deletions are sent, and stored by the receiver."""


class Done(NamedTuple):
    """All is sent and stored."""

    posts: int


class Question(NamedTuple):
    """An audit's question."""

    data: bytes


class Answer(NamedTuple):
    """The answer to an audit's question."""

    data: bytes


Message = Hello | Accepted | Ended | PayloadFrame | PostsFrame | Stored | Given | Done | Question | Answer
_KINDS: Final[dict[type[Message], int]] = {
    Hello: 1,
    Accepted: 2,
    Ended: 3,
    PayloadFrame: 4,
    PostsFrame: 5,
    Stored: 6,
    Given: 7,
    Done: 8,
    Question: 9,
    Answer: 10,
}
HELLO: Final = bytes((_KINDS[Hello],))
"""How the frame begins that begins a talk."""
_NO_TALK: Final = 0
TRANSFERRING: Final = (PostsFrame, Stored)
"""Messages that move posts. The others compare."""


# --- writing ------------------------------------------------------------------------------------


def encode_frame(number: int, message: Message) -> bytes:
    """Write a frame of the talk with this number. Raises ReconcileError for what no peer would read."""
    frame = bytes((_KINDS[type(message)],)) + encode_varint(number) + _body(message)
    if len(frame) > MAX_TALK_FRAME_SIZE_BYTES:
        raise ReconcileError(f"a frame has {len(frame)} bytes, allowed are {MAX_TALK_FRAME_SIZE_BYTES}")
    return frame


NEW_CHANNEL: Final = bytes((_KINDS[PayloadFrame], _NO_TALK))
"""The frame that says that its sender's store has got a new channel: it can be asked for its channels."""


def _body(message: Message) -> bytes:  # noqa: PLR0911 - one case a kind
    match message:
        case Hello(version, purpose, dialect, terms):
            return encode_varint(version) + encode_varint(purpose) + sized(dialect.encode()) + _written(terms)
        case Accepted(terms):
            return _written(terms)
        case Ended(reason, text):
            said = text[:MAX_TALK_REASON_CODEPOINTS].encode(errors="replace")
            return encode_varint(reason) + sized(said)
        case PostsFrame(batch, contents):
            return encode_varint(batch) + b"".join(map(sized, contents))
        case Stored(count) | Done(count):
            return encode_varint(count)
        case PayloadFrame(data) | Question(data) | Answer(data):
            return data
    return b""


def _written(terms: Terms) -> bytes:
    out = bytes((terms.takes,)) + encode_varint(terms.from_ms) + encode_varint(terms.until_ms or 0)
    if terms.channels is None:
        return out + encode_varint(0)
    if len(terms.channels) > MAX_RECONCILE_TOPICS:
        raise ReconcileError(
            f"{len(terms.channels)} channels are to be reconciled, allowed are {MAX_RECONCILE_TOPICS}: name fewer, or none for all"
        )
    names = (sized(name.encode()) for name in sorted(terms.channels))
    return out + encode_varint(len(terms.channels) + 1) + b"".join(names)


# --- reading ------------------------------------------------------------------------------------


def decode_frame(frame: bytes) -> tuple[int, Message]:
    """Read a frame; return the talk's number and what is said. Raises ReconcileError for any bytes that are none."""
    if len(frame) > MAX_TALK_FRAME_SIZE_BYTES:
        raise ReconcileError(f"a frame has {len(frame)} bytes, allowed are {MAX_TALK_FRAME_SIZE_BYTES}")
    try:
        kind, at = read_varint(frame, 0)
        number, at = read_choice(frame, at, "talk number", MAX_NUMBER)
        message, at = _read(kind, frame, at)
    except DecodeError as error:
        raise ReconcileError(f"this is no frame of {PROTOCOL}: {error}") from None
    if at != len(frame):
        raise ReconcileError(f"{len(frame) - at} bytes follow the end of a frame of {PROTOCOL}")
    return number, message


def _read(kind: int, frame: bytes, at: int) -> tuple[Message, int]:  # noqa: PLR0911 - one case a kind
    match kind:
        case 1:
            return _hello(frame, at)
        case 2:
            terms, at = _terms(frame, at)
            return Accepted(terms), at
        case 3:
            reason, at = read_varint(frame, at)
            text, at = read_text(frame, at, "reason", 0, MAX_TALK_REASON_CODEPOINTS)
            return Ended(Reason(reason) if reason in set(Reason) else Reason.OTHER, text), at
        case 5:
            return _posts(frame, at)
        case 6 | 8:
            count, at = read_varint(frame, at)
            return Stored(count) if kind == 6 else Done(count), at
        case 7:
            return Given(), at
        case 4:
            return PayloadFrame(frame[at:]), len(frame)
        case 9:
            return Question(frame[at:]), len(frame)
        case 10:
            return Answer(frame[at:]), len(frame)
    raise DecodeError(0, f"no frame is of kind {kind}")


def _hello(frame: bytes, at: int) -> tuple[Hello, int]:
    version, at = read_varint(frame, at)
    purpose, at = read_choice(frame, at, "purpose", max(Purpose))
    dialect, at = read_text(frame, at, "dialect", 1, _MAX_DIALECT_CODEPOINTS)
    terms, at = _terms(frame, at)
    return Hello(version, Purpose(purpose), dialect, terms), at


def _terms(frame: bytes, at: int) -> tuple[Terms, int]:
    takes, at = read_choice(frame, at, "wish for posts", 1)
    from_ms, at = read_choice(frame, at, "first time", END_MS)
    until_ms, at = read_choice(frame, at, "last time", END_MS)
    count, at = read_choice(frame, at, "number of channels", MAX_RECONCILE_TOPICS + 1)
    names = []
    for _ in range(count - 1):
        name, at = read_text(frame, at, "channel", 1, MAX_CHANNEL_CODEPOINTS)
        names.append(name)
    return Terms(bool(takes), from_ms, until_ms or None, frozenset(names) if count else None), at


def _posts(frame: bytes, at: int) -> tuple[PostsFrame, int]:
    batch, at = read_varint(frame, at)
    contents = []
    while at < len(frame):
        content, at = read_sized(frame, at, "transferred message")
        contents.append(content)
    return PostsFrame(batch, tuple(contents)), at
