"""Encoding of actions: bytes that cable.js wrote, and our bytes, checked by a second implementation of the rules."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from folders import KNOWN_ANSWERS
from hypothesis import given
from hypothesis import strategies as st

from cablestore import CableStore, Identity, Post, StoreOptions
from cablestore.errors import ArgumentError
from cablestore.moderation import UserRole
from cablestore.protocol.body import BLOCK, MODERATION, ROLE, UNBLOCK, Block, Moderation, Role, Unblock
from cablestore.protocol.cable_js import handles_post
from cablestore.protocol.crypto import is_signed
from cablestore.store.moderator import Effect

VECTORS: Final = json.loads((KNOWN_ANSWERS / "cable.json").read_text())
ACTS: Final = {v["type_id"]: v for v in VECTORS["vectors"] if v["kind"] == "post" and v["type_id"] >= ROLE}
USERS: Final = [Identity.derive("recipients", str(n)).public_key for n in range(17)]


def written(store: CableStore, effect: Effect) -> Post:
    """Return the post of an action, after another store has ingested its bytes."""
    [post] = effect.posts
    with CableStore.in_memory(options=StoreOptions(verify_threads=1)) as other:
        assert [outcome.verdict.value for outcome in other.ingest([post.raw])] == ["accepted"]
    assert store.get(post.hash) is not None
    return post


def read_by_hand(raw: bytes) -> dict[str, Any]:
    """Decode an action by the tables of moderation.md 5.1, as a second implementation does."""
    at = 96

    def varint() -> int:
        nonlocal at
        number = shift = 0
        while True:
            byte = raw[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    def take(size: int) -> bytes:
        nonlocal at
        at += size
        return raw[at - size : at]

    found: dict[str, Any] = {"links": [take(32) for _ in range(varint())], "type": varint(), "timestamp": varint()}
    found |= {"reason": take(varint()).decode(), "privacy": varint()}
    if found["type"] in (ROLE, MODERATION):
        found["channel"] = take(varint()).decode()
    if found["type"] == ROLE:
        found["recipients"] = [take(32)]
    else:
        found["recipients"] = [take(32) for _ in range(varint())]
    names = {ROLE: ["role"], MODERATION: ["action"], BLOCK: ["drop", "notify"], UNBLOCK: ["undrop"]}
    found |= {name: varint() for name in names[found["type"]]}
    assert at == len(raw)
    return found


@pytest.mark.parametrize("kind", [ROLE, MODERATION, BLOCK, UNBLOCK])
def test_actions_of_cable_js_are_decoded(kind: int) -> None:
    """Bytes, hash and signature are known answers. The store decodes the same fields."""
    vector = ACTS[kind]
    raw, fields = bytes.fromhex(vector["hex"]), vector["fields"]
    assert is_signed(raw)
    read = read_by_hand(raw)
    assert (read["reason"], read["privacy"], read["timestamp"]) == (fields["reason"], fields["privacy"], 80)
    with CableStore.in_memory(options=StoreOptions(verify_threads=1)) as store:
        store.ingest([raw])
        author = bytes.fromhex(fields["public_key"])
        [post] = store.posts_by(author)
        assert post.hash.hex() == vector["blake2b_256_of_all_bytes"]
        match post.body:
            case Role(channel=channel, recipient=recipient, role=role):
                assert ([recipient], channel, role) == (read["recipients"], read["channel"], read["role"])
            case Moderation(channel=channel, recipients=recipients, action=action):
                assert (list(recipients), channel, action) == (read["recipients"], read["channel"], read["action"])
            case Block(recipients=recipients, drop=drop, notify=notify):
                assert (list(recipients), drop, notify) == (read["recipients"], read["drop"], read["notify"])
            case Unblock(recipients=recipients, undrop=undrop):
                assert (list(recipients), undrop) == (read["recipients"], read["undrop"])
            case other:
                raise AssertionError(other)


@pytest.mark.thorough
@given(st.integers(1, 16), st.text("aé漢", max_size=42), st.booleans(), st.booleans())
def test_written_actions_are_decoded_by_a_second_implementation(
    count: int, reason: str, drop: bool, notify: bool
) -> None:
    """All actions have their fields in order, and up to 16 recipients. cable.js handles a reason of 128 bytes."""
    users, at_ms = USERS[:count], 1_700_000_000_000
    with CableStore.in_memory(options=StoreOptions(verify_threads=1, clock=lambda: at_ms)) as store:
        text = store.post("default", "to be hidden")
        moderator = store.moderation
        acts = {
            "role": moderator.set_role(users[0], UserRole.MOD, channel="default", reason=reason),
            "hide": moderator.hide(users=users, channel="default", reason=reason),
            "hide post": moderator.hide(posts=[text.hash], reason=reason),
            "drop channel": moderator.drop(channel="elsewhere", reason=reason),
            "block": moderator.block(users, drop=drop, notify=notify, reason=reason),
            "unblock": moderator.unblock(users, undrop=drop, reason=reason),
        }
        found = {name: read_by_hand(written(store, effect).raw) for name, effect in acts.items()}
        assert all(read["reason"] == reason and not read["links"] and not read["privacy"] for read in found.values())
        assert (found["role"]["recipients"], found["role"]["role"], found["role"]["channel"]) == (
            users[:1],
            1,
            "default",
        )
        assert (found["hide"]["recipients"], found["hide"]["action"]) == (users, 0)
        assert (found["hide post"]["recipients"], found["hide post"]["channel"]) == ([text.hash], "default")
        assert (found["drop channel"]["recipients"], found["drop channel"]["channel"]) == ([], "elsewhere")
        assert (found["block"]["drop"], found["block"]["notify"]) == (drop, notify)
        assert (found["unblock"]["recipients"], found["unblock"]["undrop"]) == (users, drop)
        is_safe = len(reason.encode()) <= 128
        assert all(handles_post(effect.posts[0].raw) is is_safe for effect in acts.values())


def test_actions_that_a_second_implementation_cannot_read_are_not_written() -> None:
    with CableStore.in_memory(options=StoreOptions(verify_threads=1)) as store:
        moderator = store.moderation
        with pytest.raises(ArgumentError, match="Pass 1 to 16"):
            moderator.block(USERS)
        with pytest.raises(ArgumentError, match="Pass 1 to 16"):
            moderator.hide(users=USERS)
        with pytest.raises(ArgumentError, match="Pass 1 to 16"):
            moderator.block([])
        with pytest.raises(ArgumentError, match="the reason has 129 code points"):
            moderator.hide(users=USERS[:1], reason="x" * 129)
        with pytest.raises(ArgumentError, match="expected 32 bytes"):
            moderator.block([b"short"])
        assert not store.stats().posts
