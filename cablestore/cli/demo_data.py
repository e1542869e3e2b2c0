"""The main job from end to end, on real input: import, read, delete, answer peers, check, rebuild, compare."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Final

from cablestore.errors import LogFormatError
from cablestore.protocol.body import Delete
from cablestore.protocol.crypto import Identity
from cablestore.protocol.post import Post, encode_post
from cablestore.store import answers
from cablestore.store.queries import Message
from cablestore.store.store import CableStore, system_clock_ms

SEED_PHRASE: Final = "demo"
DELETIONS: Final = 5


def sample() -> Path:
    """Return the folder of the conversation that comes with the package."""
    return Path(str(files("cablestore") / "sample"))


def deletions_elsewhere(store: CableStore, channel: str) -> list[Post]:
    """Return deletions of some more messages, signed by their authors, that this store has not heard of."""
    found: list[Post] = []
    for message in store.messages(channel, 200, newest_first=False).messages:
        author = Identity.derive(SEED_PHRASE, message.name)
        if author.public_key == message.author and len(found) < DELETIONS:
            body = Delete((message.hash,))
            found.append(
                encode_post(body, links=(), timestamp_ms=system_clock_ms(), identity=author, dialect=store.dialect)
            )
    return found


@dataclass(frozen=True, slots=True)
class RequestAnswer:
    """One request of a peer and what it was answered."""

    request: str
    answer: str


def busiest_channel(store: CableStore) -> str:
    """Return the channel with the most messages. Raises LogFormatError where the logs had no line that makes one."""
    channels = list(store.channels())
    if not channels:
        raise LogFormatError("nobody joins or says anything in these logs: there is nothing to show")
    return max(channels, key=lambda channel: channel.posts.get("text", 0)).name


def delete_some(store: CableStore, channel: str) -> list[tuple[Message, Post]]:
    """Let the authors of some of the last messages delete them; returns each message with its post/delete.

    Only authors who never changed their nick: the keys of the others are derived from a nick that is not shown.
    """
    deleted: list[tuple[Message, Post]] = []
    for message in store.messages(channel, 200).messages:
        author = Identity.derive(SEED_PHRASE, message.name)
        if author.public_key == message.author and len(deleted) < DELETIONS:
            body = Delete((message.hash,))
            post = encode_post(body, links=(), timestamp_ms=system_clock_ms(), identity=author, dialect=store.dialect)
            deleted.append((message, post))
    store.ingest([post.raw for _, post in deleted], sync=True)
    return deleted


def answer_each(store: CableStore, channel: str, deleted: list[bytes]) -> list[RequestAnswer]:
    """Answer one request of each kind from one snapshot."""
    with store.snapshot() as snapshot:
        reader = snapshot.reader
        channels = list(answers.channel_list(reader))
        state = list(answers.channel_state(reader, channel))
        newest = list(answers.channel_time_range(reader, channel, 0, 0, 1000))
        posts = list(answers.post_request(reader, newest))
        asked = [*deleted, *islice(newest, 3), bytes(32)]
        wanted = list(answers.worth_requesting(reader, asked))
    return [
        RequestAnswer("channel list", f"{len(channels)} names, first {channels[0]!r}"),
        RequestAnswer(f"channel state of {channel}", f"{len(state):,} hashes"),
        RequestAnswer(f"channel time range of {channel}, 1,000 newest", f"{len(newest):,} hashes"),
        RequestAnswer("posts of these hashes", f"{len(posts):,} posts, {sum(map(len, posts)):,} bytes"),
        RequestAnswer(
            f"which of {len(asked)} offered hashes to request", f"{len(wanted)}: not the known, not the deleted"
        ),
    ]
