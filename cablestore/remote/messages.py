"""Messages between a program and the process that has its store open.

Each side first sends one line of JSON, a `Hello` or an `Offer`. Then both send frames: size u32 | msgpack of a message.
`cablestore.remote.methods` derives the encoding of arguments and results from the signatures of the store's methods.

Raise the upper number of VERSIONS with each change of a message, a signature or a transmitted type. Raise the lower
number if older programs can no longer be served.
"""

from __future__ import annotations

import sys
from struct import Struct
from typing import Final, TypeVar

import msgspec

from cablestore.errors import CableStoreError
from cablestore.remote.node import NodeState

VERSIONS: Final = (1, 1)
"""Oldest and newest supported version of the protocol."""

HEADER: Final = Struct(">I")
"""Size of a frame's body."""

# --- the first lines ------------------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True):
    """First line of a program: its package version, and its oldest and newest version of the protocol."""

    cablestore: str
    versions: tuple[int, int]


class Offer(msgspec.Struct, frozen=True):
    """First line that the process with the open store sends. `err` is why it rejects the program, "" if it accepts it.

    `owner` is the command that has the store open: `serve`, `chat`, or "" for another program.
    """

    cablestore: str = ""
    versions: tuple[int, int] = (0, 0)
    owner: str = ""
    dialect: str = ""
    path: str | None = None
    is_read_only: bool = False
    err: str = ""


def own_version() -> str:
    """Return the version of this package, without importing it again."""
    return str(sys.modules["cablestore"].__version__)


def own_hello() -> Hello:
    """Return the first line of this package."""
    return Hello(own_version(), VERSIONS)


def rejection(theirs: Hello | Offer, what: str) -> str:
    """Return the reason why the other side's line `theirs` is incompatible with this version, "" if it is compatible.

    `what` names the other side in the reason.
    """
    low, high = theirs.versions
    if low <= VERSIONS[1] and high >= VERSIONS[0]:
        return ""
    age = "a newer" if low > VERSIONS[1] else "an older"
    return (
        f"{what} runs {age} version of cablestore: {theirs.cablestore[:40] or 'unknown'} with protocol {low} to {high}. "
        f"This process runs {own_version()} with protocol {VERSIONS[0]} to {VERSIONS[1]}. Run the same version in both"
    )


def line(message: Hello | Offer) -> bytes:
    """Return a first line as JSON and a newline."""
    return msgspec.json.encode(message) + b"\n"


T = TypeVar("T")
FirstT = TypeVar("FirstT", Hello, Offer)


def read_line(raw: bytes, kind: type[FirstT]) -> FirstT | None:
    """Decode a first line as a message of the class `kind`. Return None if it is malformed."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


# --- from the program -----------------------------------------------------------------------------


class _Message(msgspec.Struct, array_like=True):
    number: int
    """Number of the call, chosen by the program."""


class Call(_Message, tag="call"):
    """Call of a method of the store, or of the snapshot with the number `snapshot`.

    `deadline_s` is a time of `time.monotonic`, whose clock all processes of a machine share. A call that is read later
    is not run.
    """

    method: str
    arguments: msgspec.Raw
    deadline_s: float
    snapshot: int = 0


class More(_Message, tag="more"):
    """Request for one further `Items` message. The first two are sent without a request."""


class Cancel(_Message, tag="cancel"):
    """Request to stop a call or an iterator, or to release a snapshot."""


class Ping(_Message, tag="ping"):
    """Request for a `Pong`, to check that the process answers."""


# --- from the store -------------------------------------------------------------------------------


class Begun(_Message, tag="begun"):
    """Notice that a call that may write begins. Sent before the call runs."""


class Result(_Message, tag="result"):
    """Result of a call, and the number of the latest event after it."""

    value: msgspec.Raw
    last_sequence: int


class Items(_Message, tag="items"):
    """Next items of an iterator. The last message has an empty list."""

    values: msgspec.Raw
    is_last: bool


class Error(_Message, tag="error"):
    """Error of a call: the name of a class in `cablestore.errors`, and the message."""

    kind: str
    text: str


class Progressed(_Message, tag="progress"):
    """Progress that a long call has made since its previous `Progressed` message."""

    count: int


class Changed(_Message, tag="changed"):
    """State of the store after writes.

    `number` counts the writes, except those that change only local values.
    """

    last_sequence: int
    write_failure: str
    failed_writes: int
    is_closed: bool


class NodeChanged(_Message, tag="node"):
    """State of the node that connects the store to peers, if any. Sent at the start and after each change."""

    state: NodeState


class Pong(_Message, tag="pong"):
    """Reply to a ping."""


ToStore = Call | More | Cancel | Ping
ToProgram = Begun | Result | Items | Error | Progressed | Changed | NodeChanged | Pong

_ENCODER: Final = msgspec.msgpack.Encoder()
_TO_STORE: Final[msgspec.msgpack.Decoder[ToStore]] = msgspec.msgpack.Decoder(ToStore)
_TO_PROGRAM: Final[msgspec.msgpack.Decoder[ToProgram]] = msgspec.msgpack.Decoder(ToProgram)


def frame(message: ToStore | ToProgram, max_size_bytes: int) -> bytes:
    """Return a message as a frame. Raises CableStoreError if it is too large."""
    body = _ENCODER.encode(message)
    if len(body) > max_size_bytes:
        raise CableStoreError(
            f"the message has {len(body):,} bytes, but the maximum between a program and the process that has the "
            f"store open is {max_size_bytes:,}. Use several calls"
        )
    return HEADER.pack(len(body)) + body


def to_store(body: bytes) -> ToStore:
    """Decode a message of a program. Raises ValueError if it is malformed."""
    return _decoded(_TO_STORE, body)


def to_program(body: bytes) -> ToProgram:
    """Decode a message of the process that has the store open. Raises ValueError if it is malformed."""
    return _decoded(_TO_PROGRAM, body)


def _decoded(decoder: msgspec.msgpack.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"invalid message: {error}") from None
