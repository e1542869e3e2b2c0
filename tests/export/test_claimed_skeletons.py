"""Skeletons of deleted posts in exports: those that are possible for a post are read, others are rejected."""

from __future__ import annotations

from pathlib import Path

import pytest
from exporting import forge, in_memory
from people import ANN, BOB, START_MS

from cablestore import LEGACY, Body, Join, Leave, Moderation, Post, Role, Text, Tombstone, Topic, limits
from cablestore.errors import ExportError
from cablestore.index.tombstone import Skeleton
from cablestore.protocol.body import DELETE, MODERATION, ROLE, TEXT, TYPE_NAMES, Block, Info, Unblock

LONGEST = "x" * limits.MAX_CHANNEL_CODEPOINTS
BODIES: list[Body] = [
    *(kind(channel) for kind in (Join, Leave) for channel in ("x", LONGEST)),
    *(kind(channel, "") for kind in (Text, Topic) for channel in ("x", LONGEST)),
    *(Role("", 0, channel, BOB.key, 2) for channel in ("", "x", LONGEST)),
    *(Moderation("", 0, channel, (BOB.key,), 0) for channel in ("", "x", LONGEST)),
    Info.of(name="ann"),
    Block("", 0, (BOB.key,), 0, 0),
    Unblock("", 0, (BOB.key,), 0),
]


def claimed(target: Post, skeleton: Skeleton) -> Tombstone:
    return Tombstone(target.hash, target.author, START_MS, bytes(32), skeleton)


def read(stone: Tombstone) -> Tombstone:
    return Tombstone.read([stone.target, stone.author, stone.encode()])


def links(number: int) -> tuple[bytes, ...]:
    return tuple(each.to_bytes(32) for each in range(number))


@pytest.mark.parametrize("body", BODIES, ids=lambda body: f"{type(body).__name__} {getattr(body, 'channel', '')}")
def test_the_skeleton_of_any_post_is_decoded(body: Body) -> None:
    free = limits.MAX_POST_SIZE_BYTES - len(ANN.post(body).raw) - 2  # a larger number of links has two bytes more
    for number in (0, free // 32):
        stone = claimed(post := ANN.post(body, links=links(number)), Skeleton.of(post))
        assert read(stone) == stone


def test_a_skeleton_with_more_links_than_the_largest_post_is_rejected(tmp_path: Path) -> None:
    post = ANN.text("default", "x")
    deletion = ANN.delete(post)
    skeleton = Skeleton(TEXT, 7, "default", links(limits.MAX_POST_SIZE_BYTES // 32))
    with pytest.raises(ValueError, match="invalid tombstone"):
        read(claimed(post, skeleton))
    stone = Tombstone(post.hash, post.author, deletion.timestamp_ms, deletion.hash, skeleton)
    forge(tmp_path / "forged", [deletion], [stone])
    with in_memory(LEGACY) as store, pytest.raises(ExportError, match="an item that is not a tombstone"):
        store.import_exports([tmp_path / "forged"])


def test_a_skeleton_has_a_channel_if_and_only_if_its_type_has_one() -> None:
    read_ = {(body.type, getattr(body, "channel", None)) for body in BODIES}
    assert {kind for kind, _ in read_} | {DELETE} == set(TYPE_NAMES)
    impossible = [(kind, channel) for kind in TYPE_NAMES for channel in (None, "", "x") if (kind, channel) not in read_]
    assert len(impossible) == 3 * len(TYPE_NAMES) - len([each for each in read_ if each[1] != LONGEST])
    assert {(TEXT, None), (TEXT, ""), (ROLE, None), (MODERATION, None), (DELETE, None)} <= set(impossible)
    post = ANN.text("default", "x")
    for kind, channel in [*impossible, *((kind, LONGEST + "x") for kind in TYPE_NAMES)]:
        with pytest.raises(ValueError, match="invalid tombstone"):
            read(claimed(post, Skeleton(kind, 7, channel, ())))
