"""Signatures of control nodes, and attempts to forge them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from archive_documents import commitment
from archiving import (
    CIDS,
    CONTROL,
    DELETION,
    KEY,
    STRANGER,
    Community,
    both,
    community,
    every_form,
    posts_in,
    sealed_or_not,
    signed,
    verified,
)
from people import ANN

from cablestore import DRAFT8, LEGACY, Identity, decode_post
from cablestore.archive.format.commitment import SignedStatement, Statement, open_statement, sign
from cablestore.archive.format.index import encode_index, make_index, signed_index
from cablestore.archive.format.merkle import MerkleTree
from cablestore.archive.format.profile import RFC61, Profile
from cablestore.errors import ArchiveError, DecodeError


def statement_of(made: Community, **changes: Any) -> Statement:
    whole = Statement(CONTROL.public_key, "legacy", made.profile.name, False, made.commitments)
    return replace(whole, **changes)


def forged(made: Community, statement: Statement, identity: Identity = CONTROL) -> bytes:
    return encode_index(make_index(made.profile, made.entries, sign(statement, identity)))


@every_form
def test_an_index_that_the_control_node_did_not_sign_is_rejected(profile: Profile, cids: tuple[str, ...]) -> None:
    made = community(profile, cids=cids)
    with pytest.raises(ArchiveError, match="not signed by the control node"):
        verified(encode_index(signed(made, identity=STRANGER)), made)
    with pytest.raises(ArchiveError, match="not signed by the control node"):
        verified(encode_index(signed(made)), made, control=STRANGER)
    with pytest.raises(ArchiveError, match="is not signed"):
        verified(encode_index(made.index), made)
    right = sign(statement_of(made), CONTROL)
    for wrong in (
        SignedStatement(right.statement, bytes(64)),
        SignedStatement(right.statement, b""),
        SignedStatement(b"", right.signature),
    ):
        with pytest.raises(ArchiveError, match="not signed by the control node"):
            open_statement(wrong, CONTROL.public_key)
    with pytest.raises(ArchiveError, match="not signed by the control node"):
        open_statement(right, CONTROL.public_key[:31])
    with pytest.raises(ArchiveError, match="differs from the control node"):
        sign(statement_of(made), STRANGER)


@both
def test_a_statement_is_valid_for_one_profile_dialect_and_key_only(profile: Profile) -> None:
    made = community(profile)
    for change in ({"dialect": "draft8"}, {"profile": "other"}, {"is_sealed": True}):
        with pytest.raises(ArchiveError, match="Check the configuration"):
            verified(forged(made, statement_of(made, **change)), made)
    with pytest.raises(ArchiveError, match="Check the configuration"):
        verified(encode_index(signed(made)), made, dialect=DRAFT8)
    with pytest.raises(ArchiveError, match="not encrypted"):
        verified(encode_index(signed(made)), made, key=KEY)
    with pytest.raises(ArchiveError, match="is encrypted"):
        verified(encode_index(signed(made, sealed=True), KEY), made)
    with pytest.raises(ArchiveError, match="cannot be decrypted"):
        verified(encode_index(signed(made, sealed=True), KEY), made, key=bytes(32))


@every_form
def test_a_statement_must_name_the_archives_of_its_index(profile: Profile, cids: tuple[str, ...]) -> None:
    made = community(profile, cids=cids)
    first, second, third = made.commitments
    for commitments in ((), (first, second), (first, second, third, third), (first, second, second)):
        with pytest.raises(ArchiveError, match=r"differ from the|each once"):
            verified(forged(made, statement_of(made, commitments=commitments)), made)
        with pytest.raises(ArchiveError, match=r"differ from the|each once"):
            signed_index(made.index, commitments, CONTROL, LEGACY, sealed=False)
    if cids:
        wrong = (first, second, replace(third, cid=CIDS[0]))
        with pytest.raises(ArchiveError, match="the statement has"):
            verified(forged(made, statement_of(made, commitments=wrong)), made)
    else:
        also = (replace(first, cid=CIDS[0]), second, third)
        assert (
            verified(forged(made, statement_of(made, commitments=also)), made).commitments[first.archive_id] == also[0]
        )


@pytest.mark.parametrize("change", [{"sha256": b""}, {"merkle_root": bytes(31)}, {"num_posts": 0}], ids=str)
def test_an_empty_commitment_is_rejected(change: dict[str, Any]) -> None:
    made = community(RFC61)
    wrong = (replace(made.commitments[0], **change), *made.commitments[1:])
    with pytest.raises(ArchiveError, match="expected at least 1 post and 32 bytes"):
        verified(forged(made, statement_of(made, commitments=wrong)), made)


def test_a_newer_statement_is_rejected() -> None:
    made = community(RFC61)
    context = b"\xff" * 10 + b"cablestore archive index"
    statement = commitment.Statement(version=2, control_key=CONTROL.public_key).SerializeToString()
    with pytest.raises(ArchiveError, match="version 2"):
        open_statement(SignedStatement(statement, CONTROL.sign(context + statement)), CONTROL.public_key)
    for garbage in (b"\xff", b"\x12\x20" + bytes(5)):
        with pytest.raises(ArchiveError, match="invalid Statement"):
            open_statement(SignedStatement(garbage, CONTROL.sign(context + garbage)), CONTROL.public_key)
    assert open_statement(sign(statement_of(made), CONTROL), CONTROL.public_key).control_key == CONTROL.public_key


def test_the_signature_of_a_statement_is_not_valid_for_a_post() -> None:
    """Posts and statements are signed with the same key. A signature of one must never be valid for the other."""
    statement = sign(statement_of(community(RFC61)), CONTROL)
    context = b"\xff" * 10 + b"cablestore archive index"
    for dialect in (LEGACY, DRAFT8):
        with pytest.raises(DecodeError, match="varint"):
            decode_post(CONTROL.public_key + statement.signature + context + statement.statement, dialect)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (ANN.text("default", "no deletion", at=1).raw, "expected a post/delete"),
        (DELETION.raw[:32] + bytes(64) + DELETION.raw[96:], "not signed by its author"),
        (DELETION.raw[:-1], "not a legacy post"),
        (b"", "not a legacy post"),
    ],
    ids=["text", "unsigned", "cut", "empty"],
)
def test_deletions_other_than_signed_post_deletes_are_rejected(raw: bytes, reason: str) -> None:
    made = community(RFC61)
    with pytest.raises(ArchiveError, match=reason):
        verified(encode_index(signed(made, deletions=[DELETION.raw, raw])), made)


@both
@sealed_or_not
def test_swapped_archives_are_detected(profile: Profile, key: bytes | None) -> None:
    made = community(profile, key=key)
    found = verified(encode_index(signed(made, sealed=key is not None), key), made, key=key)
    first, second = found.index.entries[:2]
    swapped = made.archives[1].stored
    with pytest.raises(ArchiveError, match="Fetch it again"):
        found.commitments[first.archive_id].check_stored(swapped)
    with pytest.raises(ArchiveError):
        posts_in(profile, swapped, first, key)
    posts = posts_in(profile, swapped, second, key)
    for wrong in (posts[:-1], posts[::-1], [*posts, posts[0]], []):
        with pytest.raises(ArchiveError, match="Do not import"):
            found.commitments[second.archive_id].check_posts(MerkleTree(post.hash for post in wrong))
