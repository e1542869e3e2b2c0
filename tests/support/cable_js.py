"""Posts that crash cable.js, each with a similar one that does not, for tests."""

from __future__ import annotations

from people import ANN, BOB, CYD

from cablestore import Body, Info, Join, Leave, Post, Text, Topic, limits
from cablestore.protocol.body import PUBLIC, Block, Moderation, Role, Unblock

LONG = "é" * 32 + "x"
"""33 code points, 65 bytes."""
FITS = "é" * 32
RESERVED = "reqid-to-channels"
KEYS = tuple(bytes([number]) * 32 for number in range(limits.MAX_RECIPIENTS + 1))
REASON, LONG_REASON = "é" * 64, "é" * 64 + "x"

BODIES: dict[str, tuple[Body, Body]] = {
    "unknown key": (Info.of(name="Ann"), Info.of(name="Ann", pronoun=b"she")),
    "long name": (Info.of(name="é" * 16), Info.of(name="é" * 16 + "x")),
    "accept-role 2": (Info.of(accept_role=False), Info((("accept-role", b"\x02"),))),
    "long topic": (Topic("default", "é" * 256), Topic("default", "é" * 256 + "x")),
    "text in a long channel": (Text(FITS, "hello"), Text(LONG, "hello")),
    "text in a reserved channel": (Text(RESERVED[1:], "hello"), Text(RESERVED, "hello")),
    "text in NUL": (Text("\0\0", "hello"), Text("\0", "hello")),
    "topic of a long channel": (Topic(FITS, "hello"), Topic(LONG, "hello")),
    "join of a long channel": (Join(FITS), Join(LONG)),
    "leave of a reserved channel": (Leave("default"), Leave(RESERVED)),
    "role with a long reason": (
        Role(REASON, PUBLIC, "default", BOB.key, 1),
        Role(LONG_REASON, PUBLIC, "default", CYD.key, 1),
    ),
    "role in a long channel": (Role("", PUBLIC, FITS, BOB.key, 1), Role("", PUBLIC, LONG, BOB.key, 1)),
    "17 recipients": (
        Moderation("", PUBLIC, "default", KEYS[:-1], 0),
        Moderation("", PUBLIC, "default", KEYS, 0),
    ),
    "moderation with a long reason": (
        Moderation(REASON, PUBLIC, "", (BOB.key,), 0),
        Moderation(LONG_REASON, PUBLIC, "", (CYD.key,), 0),
    ),
    "block with a long reason": (
        Block(REASON, PUBLIC, (BOB.key,), 0, 1),
        Block(LONG_REASON, PUBLIC, (CYD.key,), 0, 1),
    ),
    "unblock with a long reason": (
        Unblock(REASON, PUBLIC, (BOB.key,), 0),
        Unblock(LONG_REASON, PUBLIC, (CYD.key,), 0),
    ),
}
POSTS: dict[str, tuple[Post, Post]] = {case: (ANN.post(one), BOB.post(other)) for case, (one, other) in BODIES.items()}
GOOD = [good for good, _ in POSTS.values()]
BAD = [bad for _, bad in POSTS.values()]
