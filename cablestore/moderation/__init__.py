"""Moderation: who has which role, and what is hidden, dropped and blocked for the store's own user. Pure.

`known` are the acts of those who may have authority, `roles` is who had which role when, `blocks` is who is blocked and
dropped, `decisions` is what applies.
`seed` gives roles to begin with. `stored` reads acts from the rows of a store.

`applied` is what that means for the posts of a store. A plan goes through `admission` (which posts are stored),
`changing` (what applies after it), and `sweeping` and `consents` (what is removed, and what is remembered of it).
"""

from cablestore.moderation.blocks import BlockState, UserDrop
from cablestore.moderation.decisions import ActResult, Decision, Decisions, blocks_in_force
from cablestore.moderation.known import HeldActs
from cablestore.moderation.seed import Seed
from cablestore.moderation.stored import StoredActs
from cablestore.protocol.acts import Action, Consent, ModerationAct, UserRole, act_of, consent_of

__all__ = [
    "ActResult",
    "Action",
    "BlockState",
    "Consent",
    "Decision",
    "Decisions",
    "HeldActs",
    "ModerationAct",
    "Seed",
    "StoredActs",
    "UserDrop",
    "UserRole",
    "act_of",
    "blocks_in_force",
    "consent_of",
]
