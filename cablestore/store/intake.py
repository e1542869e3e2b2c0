"""Intake of posts from other users, before they are planned: decode, reject, verify."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from cablestore import limits
from cablestore.arguments import check_instance
from cablestore.errors import DecodeError
from cablestore.index.batches import batches
from cablestore.index.signatures import Results, SignatureVerifier
from cablestore.index.verdict import Outcome, Verdict, too_far_ahead
from cablestore.protocol.crypto import post_hash
from cablestore.protocol.dialect import Dialect
from cablestore.protocol.post import Post, decode_post
from cablestore.store.key_file import StoreIdentity

_REASONS: Final = {
    Verdict.DELETED: "its author deleted it",
    Verdict.BAD_SIGNATURE: "its signature does not match its author's key",
    Verdict.LOCAL_ONLY: "it is a local-only post of another user",
    Verdict.DROPPED: "moderation drops the post, its author or its channel",
    Verdict.BLOCKED: "you block its author, or its author blocks you",
}


_CAUTIOUS_BATCHES: Final = 100
"""Number of batches after a forged post that are verified before they are planned."""


@dataclass(slots=True)
class IntakeBatch:
    """Posts to ingest. `outcomes` contains an entry for each post: None if it is in `posts`, otherwise a rejection."""

    posts: list[Post] = field(default_factory=list)
    outcomes: list[Outcome | None] = field(default_factory=list)
    verifying: list[Results] = field(default_factory=list)
    """Running verifications of `posts`, in order. Empty if signatures are trusted."""
    is_planned_ahead: bool = False
    """True if the batch is planned while its signatures are verified, as if all signatures were valid."""

    _signed: list[bool] | None = None

    def signed(self) -> list[bool]:
        """Return the validity of each signature of `posts`. Wait until all are verified."""
        if not self.verifying:
            return [True] * len(self.posts)
        if self._signed is None:
            self._signed = [is_right for results in self.verifying for is_right in results()]
        return self._signed

    def attempts(self) -> Iterator[list[bool]]:
        """Yield one list for each attempt to plan the batch: for each of `posts`, True to treat its signature as valid.

        If the batch is planned ahead, the first list treats all signatures as valid. The next list contains the results
        of the verification, and is left out if all signatures are valid.
        """
        if self.is_planned_ahead:
            yield [True] * len(self.posts)
        if not self.is_planned_ahead or not all(self.signed()):
            yield self.signed()

    def rejection(self) -> str:
        """Return the number of rejected posts and the first reason, "" without rejections. Wait for the verification."""
        wrong = [outcome for outcome in self.outcomes if outcome is not None]
        for post, is_right in zip(self.posts, self.signed(), strict=True):
            if not is_right:
                wrong.append(Outcome(post.hash, Verdict.BAD_SIGNATURE, _REASONS[Verdict.BAD_SIGNATURE]))
        if not wrong:
            return ""
        first = f"{wrong[0].hash.hex()}: {wrong[0].reason}"
        return (
            f"1 post was rejected, {first}" if len(wrong) == 1 else f"{len(wrong)} posts were rejected, such as {first}"
        )

    def settle(self, verdicts: list[Verdict]) -> list[Outcome]:
        """Return the outcome of every post of the batch, given the verdicts on `posts`."""
        pairs = zip(self.posts, verdicts, strict=True)
        found = [Outcome(post.hash, verdict, _REASONS.get(verdict, "")) for post, verdict in pairs]
        if len(found) == len(self.outcomes):
            return found
        rest = iter(found)
        return [outcome or next(rest) for outcome in self.outcomes]


@dataclass(slots=True)
class Intake:
    """Builder of batches. It seals local-only posts of the store's `identity`, and rejects other local-only posts."""

    dialect: Dialect
    verifier: SignatureVerifier
    clock: Callable[[], int]
    identity: StoreIdentity | None = None
    _cautious_batches: int = 0
    """Number of the next batches that are verified before they are planned."""

    def decode(self, raws: list[bytes]) -> IntakeBatch:
        """Decode posts and reject those that cannot be stored. Invalid posts get a verdict instead of an error."""
        batch = IntakeBatch()
        newest_ms = self.clock() + limits.MAX_FUTURE_MS
        for raw in raws:
            try:
                post = decode_post(raw, self.dialect)
            except DecodeError as error:
                verdict = Verdict.UNKNOWN_TYPE if error.is_unknown_type else Verdict.MALFORMED
                batch.outcomes.append(Outcome(post_hash(raw), verdict, str(error)))
                continue
            rejection = None
            if post.timestamp_ms >= newest_ms or post.is_local_only:
                rejection = self._rejection(post, newest_ms)
            if rejection is None:
                batch.posts.append(post)
            batch.outcomes.append(rejection)
        return batch

    def admit(self, posts: Iterable[Post]) -> IntakeBatch:
        """Reject decoded posts that cannot be stored. The other posts are verified while further posts are read."""
        batch = IntakeBatch()
        newest_ms = self.clock() + limits.MAX_FUTURE_MS
        for lot in batches(posts, _post_size_bytes):
            taken = []
            for post in lot:
                is_usual = post.timestamp_ms < newest_ms and not post.is_local_only
                rejection = None if is_usual else self._rejection(post, newest_ms)
                if rejection is None:
                    taken.append(post)
                batch.outcomes.append(rejection)
            batch.posts += taken
            batch.verifying.append(self.verifier.start([post.raw for post in taken]))
        return batch

    def verify(self, batch: IntakeBatch) -> None:
        """Start to verify the signatures of a batch."""
        batch.is_planned_ahead = self.verifier.is_concurrent and self._cautious_batches == 0
        self._cautious_batches = max(self._cautious_batches - 1, 0)
        batch.verifying = [self.verifier.start([post.raw for post in batch.posts], ahead=batch.is_planned_ahead)]

    def verify_ahead(self) -> None:
        """Verify the next batches before they are planned, because a post was forged.

        This limits how many batches the store plans twice because of a peer that sends forged posts.
        """
        self._cautious_batches = _CAUTIOUS_BATCHES

    def _rejection(self, post: Post, newest_ms: int) -> Outcome | None:
        if post.timestamp_ms >= newest_ms:
            return Outcome(post.hash, Verdict.TOO_FAR_AHEAD, too_far_ahead(post.timestamp_ms, newest_ms))
        if post.is_local_only:
            identity = None if self.identity is None else self.identity.load()
            if identity is None or identity.public_key != post.author:
                return Outcome(post.hash, Verdict.LOCAL_ONLY, _REASONS[Verdict.LOCAL_ONLY])
            post.sealed = identity.seal(post.raw)
        return None


def _post_size_bytes(post: Post) -> int:
    check_instance("posts (one of them)", post, Post)
    return len(post.raw)
