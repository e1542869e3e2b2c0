"""Posts that a node forwards between peers: it forwards only posts that it would store itself."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import pytest
from history import NOW_MS
from peering import Raw, hashes_of, memory, run, until
from people import ANN, BOB, CYD, Person, raws
from relaying import between

from cablestore import DRAFT8, CableStore, Dialect, Post, limits
from cablestore.protocol.body import LOCAL_ONLY, PUBLIC, Block, Role
from cablestore.protocol.crypto import post_hash
from cablestore.protocol.message import (
    HashResponse,
    ListRequest,
    PostRequest,
    PostResponse,
    TimeRangeRequest,
)
from cablestore.store.parts import StoreParts

WEEK_MS = limits.MAX_FUTURE_MS
GOOD = [ANN.text("default", "hello"), ANN.named("Ann"), BOB.join("default"), BOB.topic("default", "greetings")]
DELETED = CYD.text("default", "gone")
DELETION = CYD.delete(DELETED)


async def posts_asked_for(requester: Raw, hashes: Iterable[bytes]) -> set[bytes]:
    """Return the hashes of the received posts after all have arrived."""
    wanted = requester.send_request(PostRequest(b"", tuple(hashes), 1))
    await until(lambda: requester.is_concluded(wanted))
    return hashes_of(
        raw for answer in requester.answers_to(wanted) if isinstance(answer, PostResponse) for raw in answer[1]
    )


async def hashes_asked_for(requester: Raw) -> set[bytes]:
    asked = requester.send_request(TimeRangeRequest(b"", "default", 0, 2**50, 0, 1))
    await until(lambda: requester.is_concluded(asked))
    return set(requester.hashes(asked))


def tampered(post: Post) -> bytes:
    return post.raw[:40] + bytes([post.raw[40] ^ 1]) + post.raw[41:]


def of_type(post_type: int) -> bytes:
    """Return a signed text that claims an unknown type."""
    content = ANN.text("default", "x").raw[96:]
    changed = content[:1] + bytes([post_type]) + content[2:]
    return ANN.key + ANN.identity.sign(changed) + changed


WRONG = {
    "bad signature": tampered(ANN.text("default", "forged")),
    "random bytes": b"this is no post at all" * 9,
    "short bytes": b"\x00",
    "unknown type": of_type(10),
    "somebody's local-only post": BOB.post(Role("", LOCAL_ONLY, "default", CYD.key, 1)).raw,
    "somebody's local-only block": BOB.post(Block("", LOCAL_ONLY, (CYD.key,), 0, 0)).raw,
    "far in the future": ANN.text("default", "later", at=NOW_MS + 2 * WEEK_MS).raw,
    "deleted here": DELETED.raw,
}
FALSE_CASES = {"bad signature", "random bytes", "short bytes"}


def store_that_saw_a_deletion() -> CableStore:
    store = memory("here")
    store.ingest(raws(DELETED))
    store.ingest(raws(DELETION))
    return store


@pytest.mark.parametrize("case", WRONG)
def test_invalid_posts_are_not_forwarded_and_count_against_the_sender(case: str) -> None:
    async def main() -> None:
        wrong = WRONG[case]
        async with between(store_that_saw_a_deletion(), wrong, *raws(*GOOD)) as (net, requester, giver):
            wanted = [post_hash(wrong), *(post.hash for post in GOOD)]
            assert await posts_asked_for(requester, wanted) == {post.hash for post in GOOD}
            asked = [digest for request in giver.requests_of(PostRequest) for digest in request.hashes]
            assert (post_hash(wrong) in asked) == (case != "deleted here")
            assert sum(peer.invalid_posts for peer in net.nodes[0].connections) == (case in FALSE_CASES)

    run(main())


def test_a_store_of_draft_8_forwards_infos_of_legacy_peers() -> None:
    """The store cannot decode such a post and does not store it. It forwards the post between two peers that can decode
    it."""

    async def main() -> None:
        forged = tampered(ANN.named("Ann"))
        async with between(memory("here", DRAFT8), forged, *raws(*GOOD)) as (net, requester, _):
            wanted = [post_hash(forged), *(post.hash for post in GOOD)]
            assert await posts_asked_for(requester, wanted) == {post.hash for post in GOOD}
            assert sum(peer.invalid_posts for peer in net.nodes[0].connections) == 1

    run(main())


def test_own_local_only_posts_are_not_forwarded() -> None:
    """Another copy of this identity's store may have sent it to others."""

    async def main() -> None:
        store = memory("here")
        here = Person("here")
        here.identity = store.identity
        own = here.post(Role("", LOCAL_ONLY, "default", CYD.key, 1))
        public = here.post(Role("", PUBLIC, "default", CYD.key, 1))
        async with between(store, own.raw, public.raw) as (_, requester, _giver):
            assert await posts_asked_for(requester, [own.hash, public.hash]) == {public.hash}

    run(main())


def test_hashes_of_deleted_posts_are_not_forwarded() -> None:
    async def main() -> None:
        async with between(store_that_saw_a_deletion(), DELETED.raw, *raws(*GOOD)) as (_, requester, giver):
            assert await hashes_asked_for(requester) == {DELETION.hash, *(post.hash for post in GOOD)}
            live = requester.send_request(TimeRangeRequest(b"", "default", 0, 0, 0, 1))
            await until(lambda: len(requester.hashes(live)) == len(GOOD) + 1)
            (asked,) = [request for request in giver.requests_of(TimeRangeRequest) if request.is_live]
            changes = ANN.text("default", "news")
            giver.say(HashResponse(asked.request_id, (DELETED.hash,)), HashResponse(asked.request_id, (changes.hash,)))
            await until(lambda: changes.hash in requester.hashes(live))
            assert DELETED.hash not in requester.hashes(live)

    run(main())


def test_a_peer_that_continues_to_send_false_claims_is_disconnected() -> None:
    async def main() -> None:
        false_claims = [tampered(ANN.text("default", str(number))) for number in range(limits.MAX_INVALID_POSTS)]
        async with between(memory(), *false_claims) as (net, requester, giver):
            assert await posts_asked_for(requester, hashes_of(false_claims)) == set()
            await until(lambda: giver.is_over)
            assert not requester.is_over
            await until(net.log.reasons)
            assert f"too many invalid posts ({limits.MAX_INVALID_POSTS})" in net.log.reasons()[0]

    run(main())


def test_a_peer_that_sends_more_than_can_be_inspected_is_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that checks posts is stopped for a while. The node answers others, and all posts arrive in the end."""
    monkeypatch.setattr(limits, "MAX_INSPECTED_QUEUE_SIZE_BYTES", 100)

    async def main() -> None:
        posts = [ANN.text("default", str(number)) for number in range(20)]
        goes_on = threading.Event()
        store = memory()
        appraise = StoreParts.appraise

        def appraise_later(parts: StoreParts, raws: list[bytes], dialect: Dialect) -> Any:
            goes_on.wait()
            return appraise(parts, raws, dialect)

        monkeypatch.setattr(StoreParts, "appraise", appraise_later)
        async with between(store, *raws(*posts)) as (net, requester, _):
            wanted = requester.send_request(PostRequest(b"", tuple(post.hash for post in posts), 1))
            try:
                await until(lambda: any(connection.pauses for connection in net.nodes[0].connections))
                names = requester.send_request(ListRequest(b"", 0, 0))
                await until(lambda: requester.is_concluded(names))
                assert not requester.answers_to(wanted)
            finally:
                goes_on.set()
            await until(lambda: requester.is_concluded(wanted))
            given = [
                raw for answer in requester.answers_to(wanted) if isinstance(answer, PostResponse) for raw in answer[1]
            ]
            assert hashes_of(given) == {post.hash for post in posts}
            await until(lambda: not any(connection.pauses for connection in net.nodes[0].connections))

    run(main())
