"""Current state of an open store. Each write changes it together with the rows.

    with engine.transaction() as transaction:
        state = present.follow_identity()
        plan = transaction.plan()
        ...                                         the posts and rows of this write
        present.commit(transaction, finish(plan, state), sync=sync)

`finish` reads the plan and the previous state and changes only the plan, so a plan can be discarded and repeated.

Readers take their snapshot first and the state second, so the state belongs to the snapshot or is newer.

Dropped posts are removed in further writes of `limits.MAX_BATCH_POSTS` posts each. One such write follows each write of
the store; `sweep_batch` removes the rest. Until then, reads and answers leave the posts out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from cablestore.errors import CorruptStoreError, StorageError
from cablestore.index.engine import Engine, Transaction
from cablestore.index.local import DECIDED
from cablestore.index.plan import Plan, PlannedWrite
from cablestore.moderation.applied import AppliedModeration
from cablestore.moderation.changing import changed, store_drops
from cablestore.moderation.sweeping import sweep
from cablestore.protocol.crypto import KEY_SIZE_BYTES
from cablestore.store.discarded import note_discarded
from cablestore.store.key_file import StoreIdentity
from cablestore.store.user_marks import UserMarks

_NOBODY: Final = bytes(KEY_SIZE_BYTES)
"""Public key of the local user of a store without an identity."""


class State(NamedTuple):
    """State that a store keeps in memory. `moderation` is None in an unmoderated store, which shows all posts."""

    moderation: AppliedModeration | None
    user_marks: UserMarks


class Planned(NamedTuple):
    """A finished plan: its write, and the state after it."""

    changes: PlannedWrite
    state: State


def finish(plan: Plan, state: State) -> Planned:
    """Finish a plan: add the rows for moderation, mentions and discarded posts that follow from its posts."""
    state = State(changed(plan, state.moderation), state.user_marks.after(plan))
    if plan.discarded:
        note_discarded(plan)
    return Planned(plan.finish(), state)


class Present:
    """Holder of an open store's current state. Only the writer replaces the state; any thread may read it."""

    def __init__(self, engine: Engine, identity: StoreIdentity, *, moderated: bool) -> None:
        self._engine = engine
        self._identity = identity
        reader, own_key = engine.live_readers()[0], identity.known_key
        # A read-only store whose key file cannot be read uses the moderation of the last writer's key.
        user = own_key or (reader.local(DECIDED, b"") if engine.is_read_only else None) or _NOBODY
        moderation = AppliedModeration.read(reader, user) if moderated else None
        self.state = State(moderation, UserMarks.read(reader, own_key))
        engine.when_reloaded(self._read_again)

    def _read_again(self) -> None:
        """Read the state from the rows again, for the identity of the present state."""
        reader, (moderation, user_marks) = self._engine.live_readers()[0], self.state
        if moderation is not None:
            moderation = AppliedModeration.read(reader, moderation.own_key)
        self.state = State(moderation, UserMarks.read(reader, user_marks.own_key))

    def catch_up(self) -> None:
        """Write the rows that changes outside the store require, such as a reindexing or another key file.

        Also removes a batch of dropped posts. Opening a store calls this method.
        """
        with self._engine.transaction() as transaction:
            while not self.state.user_marks.is_complete(transaction.reader):
                plan = transaction.plan()
                state = self.state._replace(user_marks=self.state.user_marks.completed(plan))
                self._write(transaction, Planned(plan.finish(), state), sync=False)
            moderation = self.state.moderation
            if moderation is not None and moderation.must_be_stored:
                self._store_drops(transaction, moderation, noted=False)
            self._sweep_if_possible(transaction, sync=False)

    def follow_identity(self) -> State:
        """Update the state if the store's identity changed since its last write. Return the current state."""
        own_key = self._identity.known_key
        if own_key is None or own_key == self.state.user_marks.own_key or not self._engine.is_writable:
            return self.state
        with self._engine.transaction() as transaction:
            state = self.state
            before, after = state.moderation, state.moderation and AppliedModeration.read(transaction.reader, own_key)
            is_moderated = any(next(each.decisions.acts(), None) for each in (before, after) if each is not None)
            self.state = State(after, replace(state.user_marks, own_key=own_key))
            try:
                if after is not None and (after.must_be_stored or is_moderated):
                    self._store_drops(transaction, after, noted=is_moderated)
            except BaseException:
                self.state = state
                raise
        return self.state

    def commit(self, transaction: Transaction, planned: Planned, *, sync: bool) -> None:
        """Write a plan and set its state. A further write then removes some of the dropped posts.

        If only the removal fails, the plan stays in force. Reads leave out the dropped posts, and a later write or
        `sweep_batch` removes them.
        """
        self._write(transaction, planned, sync=sync)
        if planned.state.moderation is not None and planned.state.moderation.is_sweeping:
            self._sweep_if_possible(transaction, sync=sync)

    def sweep_batch(self, transaction: Transaction, *, sync: bool = False) -> int:
        """Remove a batch of dropped posts, or compare a batch of remembered posts with the drops, in one write.

        Returns the number of posts that were read; 0 means that the sweep is complete.
        """
        before = self.state.moderation
        if before is None or not before.is_sweeping:
            return 0
        plan = transaction.plan()
        moderation, done = sweep(plan, before, transaction.reader)
        self._write(transaction, finish(plan, self.state._replace(moderation=moderation)), sync=sync)
        return done

    def _sweep_if_possible(self, transaction: Transaction, *, sync: bool) -> None:
        """Remove a batch of dropped posts. Only CorruptStoreError is raised: the engine reports errors of the disk."""
        try:
            self.sweep_batch(transaction, sync=sync)
        except CorruptStoreError:
            raise
        except StorageError:
            pass

    def _store_drops(self, transaction: Transaction, moderation: AppliedModeration, *, noted: bool) -> None:
        """Rewrite the local rows of drops to match the decisions. `noted` logs the change for clients."""
        plan = transaction.plan()
        state = self.state._replace(moderation=store_drops(plan, moderation, noted=noted))
        self._write(transaction, finish(plan, state), sync=False)

    def _write(self, transaction: Transaction, planned: Planned, *, sync: bool) -> None:
        before, self.state = self.state, planned.state  # before the write, so that no snapshot is newer than the state
        try:
            transaction.commit(planned.changes, sync=sync)
        except BaseException:
            self.state = before  # `_read_again` uses the same identity
            raise
