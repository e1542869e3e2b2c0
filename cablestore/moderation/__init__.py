"""Moderation: the roles of users, and what is hidden, dropped and blocked for the store's own user.

`known` has the actions of users who may have authority, `roles` the roles over time, `blocks` the blocked and dropped
users, and `decisions` the actions in force. `seed` has the initial roles. `stored` reads actions from the rows of a
store.

`applied` applies the decisions to the posts of a store. A plan goes through `admission` (which posts are stored),
`changing` (the decisions after it), and `sweeping` and `consents` (what is removed and remembered).
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
