"""Short forms of moderation actions, and the decisions of Ursula, the user of the specification's examples."""

from __future__ import annotations

from itertools import count

from moderation_model import MemoryActs

from cablestore.moderation import Action, Consent, Decisions, ModerationAct, Seed, UserRole
from cablestore.protocol.acts import DROPS, NOTIFIES
from cablestore.protocol.body import BLOCK, MODERATION, ROLE, UNBLOCK

ADMIN, MOD, USER = UserRole.ADMIN, UserRole.MOD, UserRole.USER
URSULA, ALEPH, BERT, CASHEW, XU, DORA = (bytes([number]) * 32 for number in range(1, 7))
POST = b"\x77" * 32
_NUMBERS = count(1)


def _hash() -> bytes:
    """Return the next hash. So of actions with the same time the later created one is later."""
    return next(_NUMBERS).to_bytes(32, "big")


def role(
    by: bytes, to: bytes, what: UserRole, at: int, channel: str | None = None, *, private: bool = False
) -> ModerationAct:
    return ModerationAct(by, _hash(), at, ROLE, channel, what.in_post, (to,), "", private)


def act(
    by: bytes, what: Action, on: bytes | None, at: int, channel: str | None = None, *, private: bool = False
) -> ModerationAct:
    return ModerationAct(by, _hash(), at, MODERATION, channel, what, () if on is None else (on,), "", private)


def block(
    by: bytes, user: bytes, at: int, *, drop: bool = False, notify: bool = False, private: bool = False
) -> ModerationAct:
    return ModerationAct(by, _hash(), at, BLOCK, None, drop * DROPS | notify * NOTIFIES, (user,), "", private)


def unblock(by: bytes, user: bytes, at: int, *, undrop: bool = False, private: bool = False) -> ModerationAct:
    return ModerationAct(by, _hash(), at, UNBLOCK, None, undrop * DROPS, (user,), "", private)


def says(user: bytes, accepts: bool, at: int) -> Consent:
    return Consent(user, _hash(), at, accepts)


def decide(*items: ModerationAct | Consent, seed: Seed | None = None, own: bytes = URSULA) -> Decisions:
    acts = [item for item in items if isinstance(item, ModerationAct)]
    return Decisions.read(MemoryActs(acts, [item for item in items if isinstance(item, Consent)]), own, seed)
