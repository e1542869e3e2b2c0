"""Admission of incoming posts: reject the posts that moderation drops or blocks, and remember data about them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from cablestore import limits
from cablestore.errors import ArgumentError
from cablestore.index.drops import KEPT_TYPES, dropped_post
from cablestore.index.local import ACT
from cablestore.index.plan import BEGINNING, Plan
from cablestore.index.reader import Reader
from cablestore.index.verdict import Verdict
from cablestore.moderation import sweeping
from cablestore.moderation.applied import AppliedModeration, act_key
from cablestore.moderation.changing import decided
from cablestore.protocol.acts import ModerationAct
from cablestore.protocol.body import DELETE, MODERATION_TYPES, Block, Body, Delete, Unblock
from cablestore.protocol.post import Post
from cablestore.views import author

_MAY_DECIDE: Final = MODERATION_TYPES | {DELETE}
"""Types of posts that affect decisions."""


def add_all(plan: Plan, moderation: AppliedModeration | None, posts: list[Post], signed: list[bool]) -> list[Verdict]:
    """Add posts with a valid signature to a plan, unless moderation rejects them. Return the verdict on each post."""
    if moderation is None:
        return [plan.add(post) if ok else Verdict.BAD_SIGNATURE for post, ok in zip(posts, signed, strict=True)]
    # Actions and deletions are first, in their order, because they decide about the other posts of the batch.
    found = [at for at, post in enumerate(posts) if post.type in _MAY_DECIDE and signed[at]]
    acts: dict[int, Verdict] = {}
    if found and _decide(plan.reader, [posts[at].body for at in found]):
        acts = _add_acts(plan, moderation, posts, found)
    moderation = decided(plan, moderation)
    return [
        acts.get(at) or (_add(plan, moderation, post) if ok else Verdict.BAD_SIGNATURE)
        for at, (post, ok) in enumerate(zip(posts, signed, strict=True))
    ]


def require_admitted(moderation: AppliedModeration | None, posts: Iterable[Post]) -> None:
    """Raise ArgumentError if one of `posts`, new posts of the local user, is in a channel that the user dropped."""
    for post in posts:
        if moderation is not None and moderation.decisions.has_actions and moderation.rejection(post) is not None:
            raise ArgumentError(
                f"cannot write this post/{post.type_name}: you dropped the channel {post.channel!r}. Undrop it first"
            )


def _add_acts(plan: Plan, moderation: AppliedModeration, posts: list[Post], found: list[int]) -> dict[int, Verdict]:
    """Add the posts at the positions `found`, in this order. Return their verdicts by position.

    A block or unblock, or its deletion, also decides about the posts after it in `found`.
    """
    verdicts, authors, since = {}, {posts[at].author for at in found}, BEGINNING
    for at in found:
        removed = len(plan.removed)
        verdicts[at] = _add(plan, moderation, posts[at])
        if any(_decides_about(moderation, post, authors) for post in (posts[at], *plan.removed[removed:])):
            moderation, since = decided(plan, moderation, since=since), plan.position
    return verdicts


def _decide(reader: Reader, bodies: list[Body]) -> bool:
    """Return True if one of `bodies`, which are actions and deletions, is an action or deletes a stored action."""
    if not all(isinstance(body, Delete) for body in bodies):
        return True
    targets = (reader.post(digest) for body in bodies if isinstance(body, Delete) for digest in body.hashes)
    return any(post is not None and post.type in MODERATION_TYPES for post in targets)


def _decides_about(moderation: AppliedModeration, post: Post, authors: set[bytes]) -> bool:
    """Return True if `post` may block or unblock one of `authors`, or starts or ends a block on the local user."""
    decisions, body = moderation.decisions, post.body
    if not isinstance(body, Block | Unblock):
        return False
    if moderation.own_key in body.recipients and (isinstance(body, Block) or decisions.blocks_own_user(post.author)):
        return True
    return not authors.isdisjoint(body.recipients) and decisions.may_have_authority(post.author)


def _add(plan: Plan, moderation: AppliedModeration, post: Post) -> Verdict:
    """Add `post` to a plan, or reject it and remember data about it. Return the verdict."""
    rejection = moderation.rejection(post) if moderation.decisions.has_actions else None
    if rejection is None and post.type in KEPT_TYPES and moderation.decisions.is_acted_on(post.author):
        rejection = _rejection_of_earlier(plan.reader, moderation, post)
    if rejection is None:
        known = dropped_post(plan.reader, post.hash) if moderation.remembers else None
        verdict = plan.add(post)
        if known is not None and verdict is not Verdict.DUPLICATE:
            sweeping.forget(plan, known)
        if post.type in MODERATION_TYPES and plan.reader.local(ACT, act_key(post)) is not None:
            plan.set_local(ACT, act_key(post), None)
        return verdict
    verdict, act = rejection
    if plan.reader.tombstone(post.hash, post.author) is not None:
        return plan.add(post)  # its author deleted it, which takes precedence
    if plan.reader.post(post.hash) is not None:
        return Verdict.DUPLICATE if verdict is Verdict.BLOCKED else verdict
    sweeping.remember_rejected(plan, post, act.hash if verdict is Verdict.DROPPED else None)
    return verdict


def _rejection_of_earlier(
    reader: Reader, moderation: AppliedModeration, post: Post
) -> tuple[Verdict, ModerationAct] | None:
    """Return (BLOCKED, the block) if an action or deletion dated before its author's block is rejected, otherwise None.

    It is rejected if it is new and `limits.MAX_BLOCKED_ACTIONS` such posts of the author are stored.
    """
    block = moderation.decisions.blocked_by(post.author)
    if block is None or reader.post(post.hash) is not None:
        return None
    known = (digest for kind in KEPT_TYPES for digest in author.hashes(reader, post.author, kind))
    is_at_limit = next(islice(known, limits.MAX_BLOCKED_ACTIONS - 1, None), None) is not None
    return (Verdict.BLOCKED, block) if is_at_limit else None
