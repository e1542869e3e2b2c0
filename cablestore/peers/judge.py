"""Judgement of received posts: by the lists and limits of the policy, by the quota, and by the policy command.

Posts of the local user are not judged. Signatures are verified before a post counts towards its author's rate, and
before the command receives it.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, Literal, NamedTuple

from cablestore.errors import DecodeError
from cablestore.index.verdict import Outcome, Verdict
from cablestore.peers.context import PeerContext
from cablestore.peers.link import PeerLink
from cablestore.peers.policy import Policy, PostRate
from cablestore.peers.policy_command import CommandAnswer, PolicyCommand
from cablestore.peers.quota import Quota, QuotaState
from cablestore.peers.rejected_posts import RejectedPosts, RejectionReason
from cablestore.peers.token_buckets import TokenBuckets
from cablestore.protocol.crypto import are_signed
from cablestore.protocol.post import Post, decode_post

Failure = Literal["accept", "reject", "postpone"]


class Judgement(NamedTuple):
    """Outcomes of rejected posts by position, None for accepted posts."""

    outcomes: list[Outcome | None]
    is_verified: bool
    """True if the signatures of the accepted posts are valid."""


class PostJudge:
    """Judge of received posts. Use it on the loop. A separate thread verifies signatures."""

    def __init__(self, context: PeerContext, quota: Quota, command: PolicyCommand | None) -> None:
        self._context = context
        self._quota = quota
        self._command = command
        self._thread = ThreadPoolExecutor(1, "cablestore-policy")
        self._authors: tuple[PostRate, TokenBuckets] | None = None
        self._addresses: tuple[PostRate, TokenBuckets] | None = None
        self.rejected: Final = RejectedPosts()
        self._changed = asyncio.Event()
        """Set at the next change of the policy."""

    def close(self) -> None:
        """Complete the queued verifications, and end the thread."""
        self._thread.shutdown()

    @property
    def has_rules(self) -> bool:
        """True if a post may be rejected now."""
        is_near = self._quota.state not in (QuotaState.OFF, QuotaState.OK)
        return is_near or self._command is not None or self._context.policies.policy.has_rules

    def apply_change(self) -> bool:
        """End waits under the old policy, and forget rejected posts. Return True if posts were rejected earlier."""
        self._changed.set()
        self._changed = asyncio.Event()
        return self.rejected.forget()

    async def wait_for_share(self, link: PeerLink, posts: int) -> None:
        """Wait until the policy's rate for the network of `link` allows `posts` more posts."""
        while (rate := self._context.policies.policy.peers.rate) is not None:
            if self._addresses is None or self._addresses[0] != rate:
                self._addresses = (rate, TokenBuckets(rate))
            wait_s = self._addresses[1].take(link.network, posts, self._context.loop.time())
            if not wait_s:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()

    async def judge(self, raws: list[bytes], link: PeerLink) -> Judgement:
        """Judge the posts of one peer."""
        policy, outcomes = self._context.policies.policy, list[Outcome | None]([None] * len(raws))
        judged: dict[int, Post] = {}
        for at, raw in enumerate(raws):
            try:
                post = decode_post(raw, self._context.dialect)
            except DecodeError:  # the store counts it
                continue
            if post.author != self._context.store.public_key:
                judged[at] = post
                self._reject(outcomes, judged, at, self._reason(policy, post, link))
        if policy.authors.rate is None and self._command is None:
            return Judgement(outcomes, is_verified=False)
        await self._verify(raws, outcomes, judged)
        self._apply_rate(policy.authors.rate, outcomes, judged)
        if self._command is not None and judged:
            await self._ask(self._command, outcomes, judged, link)
        return Judgement(outcomes, is_verified=True)

    def _reason(self, policy: Policy, post: Post, link: PeerLink) -> RejectionReason | None:
        """Return the reason to reject a post, or None to accept it. The signature is checked later."""
        known = self.rejected.reason(post.hash)
        if known is not None:
            return known
        if policy.authors.rejects(post.author_hex.decode()):
            return RejectionReason.AUTHOR
        if post.channel is not None and policy.channels.rejects(post.channel):
            return RejectionReason.CHANNEL
        most = policy.posts.max_size
        if isinstance(most, int) and len(post.raw) > most:
            return RejectionReason.SIZE
        address = None if link.is_ours else link.network
        if self._quota.rejects(post, address, self._context.store.parts.intake.clock()):
            return RejectionReason.QUOTA
        return None

    def _reject(
        self,
        outcomes: list[Outcome | None],
        judged: dict[int, Post],
        at: int,
        reason: RejectionReason | None,
        verdict: Verdict = Verdict.REJECTED,
    ) -> None:
        if reason is not None:
            outcomes[at] = Outcome(judged.pop(at).hash, verdict, reason)

    async def _verify(self, raws: list[bytes], outcomes: list[Outcome | None], judged: dict[int, Post]) -> None:
        """Reject posts without an outcome whose signatures are wrong, even if they claim to be by the local user."""
        positions = [at for at, outcome in enumerate(outcomes) if outcome is None]
        signed = await self._context.loop.run_in_executor(self._thread, are_signed, [raws[at] for at in positions])
        for at, is_right in zip(positions, signed, strict=True):
            if not is_right:
                judged.pop(at, None)
                outcomes[at] = self._unsigned(raws[at])

    def _unsigned(self, raw: bytes) -> Outcome | None:
        """Return the rejection of a post with a wrong signature, None if the post is malformed: the store rejects it."""
        try:
            post = decode_post(raw, self._context.dialect)
        except DecodeError:
            return None
        return Outcome(post.hash, Verdict.BAD_SIGNATURE, "the signature does not match the author's key")

    def _apply_rate(self, rate: PostRate | None, outcomes: list[Outcome | None], judged: dict[int, Post]) -> None:
        if rate is None:
            return
        if self._authors is None or self._authors[0] != rate:
            self._authors = (rate, TokenBuckets(rate))
        now_s = self._context.loop.time()
        for at, post in list(judged.items()):
            if self._authors[1].take(post.author_hex.decode(), 1, now_s):
                self._reject(outcomes, judged, at, RejectionReason.AUTHOR_RATE, Verdict.POSTPONED)

    async def _ask(
        self, command: PolicyCommand, outcomes: list[Outcome | None], judged: dict[int, Post], link: PeerLink
    ) -> None:
        key = None if link.remote_static is None else link.remote_static.hex()
        posts = list(judged.items())
        timeout_s = self._context.settings.policy_timeout_s
        answers = await asyncio.gather(*(command.judge(post, link.host, key, timeout_s) for _, post in posts))
        for (at, post), answer in zip(posts, answers, strict=True):
            reason, verdict = self._of_answer(answer)
            if reason is RejectionReason.COMMAND and answer is not None:
                fields = {"peer": link.name, "post": post.hash.hex(), "reason": answer.msg}
                self._context.log.info("the policy command rejected a post", extra=fields)
            self._reject(outcomes, judged, at, reason, verdict)

    def _of_answer(self, answer: CommandAnswer | None) -> tuple[RejectionReason | None, Verdict]:
        if answer is not None:
            reasons = {"reject": RejectionReason.COMMAND, "drop": RejectionReason.COMMAND_DROP}
            return reasons.get(answer.action), Verdict.REJECTED
        match self._context.settings.policy_failure:
            case "accept":
                return None, Verdict.ACCEPTED
            case "reject":
                return RejectionReason.COMMAND_FAILURE, Verdict.REJECTED
            case _:
                return RejectionReason.COMMAND_FAILURE, Verdict.POSTPONED
