"""Judge of an open store: it keeps the decisions up to date with each write, and lets posts in or refuses them.

The decisions change in the same write as an act is stored or removed: the write also has the local rows of what is
dropped from then on. Readers take their snapshot first and the decisions after it, so these are the decisions of the
snapshot or newer ones.

Removing what is dropped takes further writes, of `limits.MAX_BATCH_POSTS` posts each. Each write of the store is
followed by one of them; `sweep` does the rest. Until then reads and answers leave the posts out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Final, NamedTuple

from cablestore import limits
from cablestore.errors import CorruptStoreError, ModerationError, StorageError
from cablestore.index.drops import KEPT_TYPES, dropped_post, encode_drop, post_key, stored_drops
from cablestore.index.engine import Engine, Transaction
from cablestore.index.local import ACT, DROP, DROPPED, JUDGED, RULES, SEED, SWEPT, UNDROP
from cablestore.index.plan import Plan, PlannedWrite
from cablestore.index.reader import Reader
from cablestore.index.verdict import Verdict
from cablestore.moderation.decisions import Decisions
from cablestore.moderation.seed import Seed
from cablestore.moderation.stored import StoredActs
from cablestore.protocol.acts import Consent, ModerationAct, act_of, consent_of
from cablestore.protocol.body import DELETE, INFO, MODERATION_TYPES, Block, Delete, Unblock
from cablestore.protocol.crypto import KEY_SIZE_BYTES
from cablestore.protocol.post import Post
from cablestore.store import consents, sweeping
from cablestore.store.attention import Attention
from cablestore.store.discarded import note_discarded
from cablestore.store.judgement import (
    Judgement,
    act_key,
    drop_keys_of,
    remembered_act,
    seed_of,
    seed_value,
)
from cablestore.store.key_file import StoreIdentity
from cablestore.store.mentions import Naming
from cablestore.views import author

_NOBODY: Final = bytes(KEY_SIZE_BYTES)
"""Public key of the local user as long as the store has no identity."""
_RULES: Final = b"1"
"""Version of the rules by which drops follow from posts. Without a row, drops did not end with the first unblock."""
_DECIDING: Final = MODERATION_TYPES | {INFO}
_MAY_DECIDE: Final = MODERATION_TYPES | {DELETE}
"""Types of posts that decisions are made of."""


class FinishedPlan(NamedTuple):
    """Finished plan: what it writes, and the decisions and the user's names after it."""

    changes: PlannedWrite
    judgement: Judgement | None
    naming: Naming | None


class Judge:
    """Judge of one open store. The writer changes it; any thread reads `judgement`.

    A store that is not moderated (`is_active` is false) keeps and shows everything.
    """

    def __init__(self, engine: Engine, identity: StoreIdentity, attention: Attention, *, is_active: bool) -> None:
        self._engine = engine
        self._identity = identity
        self._attention = attention
        self.is_active: Final = is_active
        identity.known()
        self.judgement = self._read(engine.live_readers()[0]) if is_active else None
        if engine.is_writable:
            self._catch_up()
        engine.when_reloaded(self._read_again)

    def _catch_up(self) -> None:
        """Write the drops that follow from the decisions, if they are not stored, and begin to remove dropped posts."""
        if self.judgement is not None and self.judgement.must_be_stored:
            with self._engine.transaction() as transaction:
                self._store_drops(transaction, self.judgement)
        if self.judgement is not None:
            with self._engine.transaction() as transaction, _failed_writes_put_off():
                if self.sweep_batch(transaction) == 0:
                    self._note_swept(transaction, self.judgement)

    # --- reading -------------------------------------------------------------------------------

    def _read(self, reader: Reader, seed: Seed | None = None, own_key: bytes | None = None) -> Judgement:
        """Make the decisions from what a reader finds, by default for the present identity.

        A read-only store whose key file cannot be read is judged for the user for whom it was judged last.
        """
        own_key = own_key or self._identity.known_key
        if own_key is None and self._engine.is_read_only:
            own_key = reader.local(JUDGED, b"")
        own_key = own_key or _NOBODY
        seed = seed or seed_of(reader)
        decisions = Decisions.read(StoredActs(reader, own_key), own_key, seed)
        judgement = Judgement(
            own_key,
            decisions,
            seed,
            dict(stored_drops(reader)),
            remembers=any(next(reader.local_rows(name), None) is not None for name in (DROPPED, ACT)),
            is_comparing=reader.local(UNDROP, b"") is not None,
            must_be_stored=False,
        )
        is_judged = reader.local(JUDGED, b"") == own_key and reader.local(RULES, b"") == _RULES
        return replace(judgement, must_be_stored=not is_judged and (decisions.has_actions or bool(judgement.drops)))

    def _read_again(self) -> None:
        """Read the decisions again, for the same identity: `plan` decides for another one."""
        if self.judgement is not None:
            self.judgement = self._read(self._engine.live_readers()[0], own_key=self.judgement.own_key)

    def _store_drops(self, transaction: Transaction, judgement: Judgement, *, noted: bool = False) -> None:
        """Make the local rows of drops those that follow from the decisions. `noted` tells clients of it."""
        plan = transaction.plan()
        judgement = with_drops(judgement, plan, judgement.drop_keys(), begin_again=True)
        plan.set_local(JUDGED, b"", judgement.own_key, noted=noted)
        plan.set_local(RULES, b"", _RULES)
        self._write(transaction, self._finished(plan, replace(judgement, must_be_stored=False)), sync=False)

    def _note_swept(self, transaction: Transaction, judgement: Judgement) -> None:
        """Make the row about finished removals true: versions up to 0.12.0 know no such row.

        Without drops the next write does it.
        """
        if judgement.drops and (transaction.reader.local(SWEPT, b"") is not None) is not judgement.is_swept:
            self._write(transaction, self._finished(transaction.plan(), judgement), sync=False)

    # --- posts that come -----------------------------------------------------------------------

    def add_all(self, plan: Plan, posts: list[Post], signed: list[bool]) -> list[Verdict]:
        """Add the posts with a valid signature to a plan. The others are BAD_SIGNATURE, DROPPED or BLOCKED."""
        if self.judgement is None:
            return plan.add_all(posts, signed)
        pairs = list(zip(posts, signed, strict=True))
        # Acts and deletions of acts first, in their order: they decide about the other posts of the batch.
        acts = self._add_acts(plan, self.judgement, posts, list(_deciding(plan.reader, posts, signed)))
        judgement = self._judged(plan, self.judgement)
        return [
            acts.get(at) or (_add(plan, judgement, post) if ok else Verdict.BAD_SIGNATURE)
            for at, (post, ok) in enumerate(pairs)
        ]

    def _add_acts(self, plan: Plan, judgement: Judgement, posts: list[Post], found: list[int]) -> dict[int, Verdict]:
        """Add the posts at some positions, which decide. A block or unblock also decides about later ones of them."""
        verdicts, authors = {}, {posts[at].author for at in found}
        for at in found:
            post = posts[at]
            verdicts[at] = _add(plan, judgement, post)
            if _decides_about(judgement, post, authors):
                judgement = self._judged(plan, judgement)
        return verdicts

    def require_welcome(self, posts: Iterable[Post]) -> None:
        """Raise ModerationError for an own post that the store would remove: its user dropped the channel."""
        for post in posts:
            refusal = None if self.judgement is None else self.judgement.refusal(post)
            if refusal is not None:
                raise ModerationError(
                    f"this post/{post.type_name} is not written: you dropped the channel {post.channel!r}. Undrop it "
                    "first"
                )

    def commit(self, transaction: Transaction, plan: Plan, *, sync: bool) -> None:
        """Finish a plan and write it."""
        self.write(transaction, self.finish(plan), sync=sync)

    def finish_all(
        self, transaction: Transaction, posts: list[Post], signed: list[bool]
    ) -> tuple[list[Verdict], FinishedPlan]:
        """Plan the posts with a valid signature, and finish the plan."""
        plan = self.plan(transaction)
        return self.add_all(plan, posts, signed), self.finish(plan)

    def finish(self, plan: Plan, claims: Sequence[Consent] = ()) -> FinishedPlan:
        """Finish a plan, which remembers some claims. Nothing outside of it changes, so it need not be written."""
        before = self.judgement
        unsaid: list[Consent | ModerationAct] = [*consents.settle(plan)]
        if before is None:
            if not _DECIDING.isdisjoint(plan.types):
                plan.set_local(JUDGED, b"", None)  # a moderated store decides again
            return self._finished(plan, None)
        if before.remembers:
            unsaid += sweeping.bury_dropped(plan)
        judgement = self._judged(plan, before, claims, unsaid)
        if judgement is not before or plan.remembered or _came_dropped(plan, before):
            judgement = _with_changed_drops(before, judgement, plan)
        return self._finished(plan, judgement)

    def write(self, transaction: Transaction, finished: FinishedPlan, *, sync: bool) -> None:
        """Write a plan. The decisions change with it, and some of what they drop is removed in a further write.

        If only the removal fails, the plan is in force all the same: reads leave out what is dropped, and a later write
        or `sweep` removes it.
        """
        self._write(transaction, finished, sync=sync)
        if finished.judgement is not None and finished.judgement.is_sweeping:
            with _failed_writes_put_off():
                self.sweep_batch(transaction, sync=sync)

    def _finished(self, plan: Plan, judgement: Judgement | None) -> FinishedPlan:
        if judgement is not None:
            plan.set_local(SWEPT, b"", b"" if judgement.is_swept else None)
        naming = self._attention.note(plan)
        note_discarded(plan)
        return FinishedPlan(plan.finish(), judgement, naming)

    def _write(self, transaction: Transaction, finished: FinishedPlan, *, sync: bool) -> None:
        before = self.judgement, self._attention.naming
        # Before the write, so that no reader has a snapshot that is newer.
        self.judgement, self._attention.naming = finished.judgement, finished.naming
        try:
            transaction.commit(finished.changes, sync=sync)
        except BaseException:
            self.judgement, self._attention.naming = before  # `_read_again` decides for the same identity
            raise

    def sweep_batch(self, transaction: Transaction, *, sync: bool = False) -> int:
        """Remove some of the dropped posts, or compare some remembered ones with the drops, in one write.

        Returns how many posts were read; 0 means that all is done.
        """
        if self.judgement is None or not self.judgement.is_sweeping:
            return 0
        plan = transaction.plan()
        judgement, done = sweeping.sweep(plan, self.judgement, transaction.reader)
        judgement = self._judged(plan, judgement)  # the dropped acts have no reasons from now on
        self._write(transaction, self._finished(plan, judgement), sync=sync)
        return done

    # --- what changes the decisions ------------------------------------------------------------

    def plan(self, transaction: Transaction) -> Plan:
        """Return an empty plan of a transaction. If the store got an identity since the last, decide for it first."""
        judgement = self.judgement
        if judgement is not None and self._identity.known_key not in (None, judgement.own_key):
            after = self._read(transaction.reader)
            is_moderated = any(next(each.decisions.acts(), None) for each in (judgement, after))
            if after.must_be_stored or is_moderated:
                self._store_drops(transaction, after, noted=is_moderated)
            else:
                self.judgement = after
        return transaction.plan()

    def follow_identity(self) -> None:
        """Decide for an identity that the store got."""
        judgement = self.judgement
        is_other = judgement is not None and self._identity.known_key not in (None, judgement.own_key)
        if is_other and self._engine.is_writable:
            with self._engine.transaction() as transaction:
                self.plan(transaction)

    def with_seed(self, transaction: Transaction, seed: Seed, *, dry_run: bool = False) -> Judgement:
        """Decide with another seed, and write it. In a dry run only return the judgement."""
        judgement = self._read(transaction.reader, seed)
        if seed.revoked_at_ms is not None and self.judgement is not None:
            lost = _applied_ahead(self.judgement, judgement, seed.revoked_at_ms)
            seed = seed.revoked(seed.revoked_at_ms, lost[: limits.MAX_SEED_ACTS_KEPT])
            judgement = self._read(transaction.reader, seed)
        if not dry_run:
            plan = transaction.plan()
            plan.set_local(SEED, b"", seed_value(seed), noted=True)
            judgement = with_drops(judgement, plan, judgement.drop_keys())
            self._write(transaction, self._finished(plan, judgement), sync=True)
        return judgement

    def preview(self, plan: Plan, own_key: bytes) -> tuple[Judgement, Judgement] | None:
        """Return the judgement for a user, and what it would be after a plan. None if the store is not moderated."""
        before = self.judgement
        if before is None:
            return None
        if before.own_key != own_key:  # a dry run of a store without an identity
            before = self._read(self._engine.live_readers()[0], own_key=own_key)
        return before, self._judged(plan, before)

    def _judged(
        self,
        plan: Plan,
        before: Judgement,
        claims: Sequence[Consent] = (),
        unsaid: Sequence[Consent | ModerationAct] = (),
    ) -> Judgement:
        """Return the judgement after what a plan has so far. Local rows of drops are not in it.

        `claims` are statements that it remembers without their post/infos. `unsaid` are remembered statements and acts
        that it forgets.
        """
        if not claims and not unsaid and _DECIDING.isdisjoint(plan.types):
            return before
        added, removed = _decided_of(plan)
        added = [*claims, *(each for each in added if each not in unsaid)]
        removed += unsaid
        if not added and not removed:
            return before
        held = StoredActs(plan.reader, before.own_key)
        return replace(before, decisions=before.decisions.changed(held, added, removed))


@contextmanager
def _failed_writes_put_off() -> Iterator[None]:
    """Ignore a refusal of the disk to remove dropped posts, which the engine reports. Damage is raised."""
    try:
        yield
    except CorruptStoreError:
        raise
    except StorageError:
        pass


def _deciding(reader: Reader, posts: list[Post], signed: list[bool]) -> Iterator[int]:
    """Yield the positions of acts of moderation, and of deletions of one, stored or new."""
    found = [at for at, post in enumerate(posts) if post.type in _MAY_DECIDE and signed[at]]
    acts = {posts[at].hash for at in found if posts[at].type in MODERATION_TYPES}

    def is_act(digest: bytes) -> bool:
        stored = None if digest in acts else reader.post(digest)
        return digest in acts or (stored is not None and stored.type in MODERATION_TYPES)

    for at in found:
        body = posts[at].body
        if any(map(is_act, body.hashes if isinstance(body, Delete) else (posts[at].hash,))):
            yield at


def _decides_about(judgement: Judgement, post: Post, authors: set[bytes]) -> bool:
    """Tell whether a post may block or unblock one of some authors, or ends a block on the own user."""
    decisions, body = judgement.decisions, post.body
    if not isinstance(body, Block | Unblock):
        return False
    if isinstance(body, Unblock) and judgement.own_key in body.recipients and decisions.blocks_own_user(post.author):
        return True
    return not authors.isdisjoint(body.recipients) and decisions.may_have_authority(post.author)


def _decided_of(plan: Plan) -> tuple[list[ModerationAct | Consent], list[ModerationAct | Consent]]:
    """Return the acts and statements that a plan adds and those that it removes. It may do both to one."""
    added = {post.hash: act_of(post) or consent_of(post) for post in plan.added if post.type in _DECIDING}
    added |= {post.hash: consent_of(post) for post in (*plan.remembered, *plan.discarded) if post.type == INFO}
    acts = [post for post in plan.remembered if post.type in MODERATION_TYPES]
    added |= {post.hash: remembered_act(post) for post in acts if plan.reader.local(ACT, act_key(post)) is not None}
    removed = {post.hash: act_of(post) or consent_of(post) for post in plan.removed if post.type in _DECIDING}
    for digest in [digest for digest in added.keys() & removed.keys() if added[digest] == removed[digest]]:
        del added[digest], removed[digest]
    return [act for act in added.values() if act], [act for act in removed.values() if act]


def _add(plan: Plan, judgement: Judgement, post: Post) -> Verdict:
    """Add a post to a plan, or refuse it and remember it."""
    refusal = judgement.refusal(post) if judgement.decisions.has_actions else None
    if refusal is None and post.type in KEPT_TYPES and judgement.decisions.is_acted_on(post.author):
        refusal = _refusal_of_earlier(plan.reader, judgement, post)
    if refusal is None:
        known = dropped_post(plan.reader, post.hash) if judgement.remembers else None
        verdict = plan.add(post)
        if known is not None and verdict is not Verdict.DUPLICATE:
            sweeping.forget(plan, known)
        if post.type in MODERATION_TYPES and plan.reader.local(ACT, act_key(post)) is not None:
            plan.set_local(ACT, act_key(post), None)
        return verdict
    verdict, act = refusal
    if plan.reader.tombstone(post.hash, post.author) is not None:
        return plan.add(post)  # its author deleted it, which lasts longer
    if plan.reader.post(post.hash) is not None:
        return Verdict.DUPLICATE if verdict is Verdict.BLOCKED else verdict
    sweeping.remember_refused(plan, post, act.hash if verdict is Verdict.DROPPED else None)
    return verdict


def _refusal_of_earlier(reader: Reader, judgement: Judgement, post: Post) -> tuple[Verdict, ModerationAct] | None:
    """Return why an action or deletion of a blocked user that is dated before the block is not stored."""
    block = judgement.decisions.blocked_by(post.author)
    if block is None or reader.post(post.hash) is not None:
        return None
    known = (digest for kind in KEPT_TYPES for digest in author.hashes(reader, post.author, kind))
    is_at_limit = next(islice(known, limits.MAX_BLOCKED_ACTIONS - 1, None), None) is not None
    return (Verdict.BLOCKED, block) if is_at_limit else None


def _applied_ahead(before: Judgement, after: Judgement, timestamp_ms: int) -> list[bytes]:
    """Return the hashes of acts dated at a time or later that applied before a seed was revoked and do not after it."""
    still = {act.hash for act in after.decisions.authorised_from(timestamp_ms)}
    return [act.hash for act in before.decisions.authorised_from(timestamp_ms) if act.hash not in still]


def _came_dropped(plan: Plan, judgement: Judgement) -> bool:
    """Return True if a plan stores a post that has a drop. The author or the channel may show that it is void."""
    return any(post_key(post.hash) in judgement.drops for post in plan.added) if judgement.drops else False


def _with_changed_drops(before: Judgement, judgement: Judgement, plan: Plan) -> Judgement:
    """Return a judgement with the drops that follow from it, and add their local rows to the plan."""
    added, removed = _decided_of(plan)
    changed = [*added, *removed]
    acts = [act for act in changed if isinstance(act, ModerationAct)]
    came = (*plan.remembered, *plan.added)
    keys = {post_key(post.hash) for post in came if judgement.decisions.is_acted_on(post.hash)}
    if judgement.decisions is not before.decisions:
        has_roles = judgement.decisions.has_roles_of(before.decisions)
        keys |= drop_keys_of(acts) if has_roles else judgement.drop_keys()
    remembers = judgement.remembers or bool(plan.remembered)
    return with_drops(replace(judgement, remembers=remembers), plan, keys)


def with_drops(judgement: Judgement, plan: Plan, keys: Iterable[bytes], *, begin_again: bool = False) -> Judgement:
    """Return a judgement with the drops that are due at some keys, and add their local rows to the plan.

    With `begin_again`, posts may have come from elsewhere: the removal begins again.
    """
    drops = dict(judgement.drops)
    is_comparing = judgement.is_comparing or begin_again
    for key in keys:
        due, known = judgement.due(key, plan.reader), drops.get(key)
        if due is not None and known is not None and due.is_same(known):
            due = replace(due, place=b"" if begin_again else known.place)
        elif known is not None:
            is_comparing = True
        if due == known:
            continue
        if due is None:
            del drops[key]
        else:
            drops[key] = due
        plan.set_local(DROP, key, None if due is None else encode_drop(due))
    is_comparing = is_comparing and judgement.remembers
    if is_comparing:
        plan.set_local(UNDROP, b"", b"")
    return replace(judgement, drops=drops, is_comparing=is_comparing)
