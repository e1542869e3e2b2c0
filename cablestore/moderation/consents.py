"""Consents that outlive their post/infos: statements about roles in posts that the store rejects, drops or discards.

At most `limits.MAX_CONSENTS_REMEMBERED` per user are remembered. Above this limit, claims are forgotten first, then the
oldest signed statements.
"""

from __future__ import annotations

from collections.abc import Iterable

from cablestore import limits
from cablestore.index.consents import consent_key, consent_value, remembered_consents
from cablestore.index.local import CONSENT
from cablestore.index.plan import Plan
from cablestore.index.tombstone import tombstones
from cablestore.protocol.acts import Consent, consent_of
from cablestore.protocol.body import DELETE
from cablestore.protocol.post import Post
from cablestore.views.acts import has_declined


def remember(plan: Plan, post: Post, *, is_new: bool = False) -> bool:
    """Remember the statement of `post` about roles. Return False if it is not a post/info with one, or is deleted.

    `is_new` is True if the post was not stored before. Then the arrival log records whether the user now accepts or
    declines roles if that changed, so that live requests report it.
    """
    said = consent_of(post)
    if said is None or plan.reader.tombstone(post.hash, post.author) is not None:
        return False
    _change(plan, said.user, added=[said], is_new=is_new)
    return True


def settle(plan: Plan) -> list[Consent]:
    """Remember the statements of a plan's discarded post/infos, and forget the statements of deleted post/infos.

    Return the forgotten statements.
    """
    for post in plan.discarded:
        remember(plan, post)
    forgotten = []
    for stone in [stone for post in plan.added if post.type == DELETE for stone in tombstones(post)]:
        found = [said for said in remembered_consents(plan.reader, stone.author) if said.hash == stone.target]
        if found:
            _change(plan, stone.author, removed=found)
            forgotten += found
    return forgotten


def remember_claims(plan: Plan, claims: Iterable[Consent], own_key: bytes | None, latest_ms: int) -> list[Consent]:
    """Remember claims of another store. Return the claims that change what this store remembers.

    Claims about the store's own user, claims dated after `latest_ms`, and claims about a stored or deleted post/info
    are ignored.
    """
    laid = []
    for claim in claims:
        is_known = plan.reader.post(claim.hash) or plan.reader.tombstone(claim.hash, claim.user)
        is_ignored = is_known or claim.user == own_key or claim.timestamp_ms > latest_ms
        if not is_ignored and _change(plan, claim.user, added=[claim]):
            laid.append(claim)
    return laid


def _change(
    plan: Plan, user: bytes, *, added: Iterable[Consent] = (), removed: Iterable[Consent] = (), is_new: bool = True
) -> bool:
    """Remember the statements `added` of a user, and forget `removed`. Return True if any row changed.

    `is_new` is explained in `remember`.
    """
    before = {consent_key(said): said for said in remembered_consents(plan.reader, user)}
    after = dict(before)
    for said in removed:
        del after[consent_key(said)]
    for said in added:
        key = consent_key(said)
        if key not in after or after[key].is_claim:
            after[key] = said
    first_kept = max(len(after) - limits.MAX_CONSENTS_REMEMBERED, 0)
    for said in sorted(after.values(), key=lambda said: (not said.is_claim, said.moment))[:first_kept]:
        del after[consent_key(said)]
    declined = [has_declined(plan.reader, user, known.values()) for known in (before, after)]
    noted = is_new and declined[0] is not declined[1]
    for key in before.keys() | after.keys():
        known = after.get(key)
        plan.set_local(CONSENT, key, None if known is None else consent_value(known), noted=noted)
    return before != after
