"""Moderation: the roles of users, and the hidden, dropped and blocked targets, for the store's own user.

`stored` reads actions from the rows of a store, and `known` selects the actions of users who may have authority. From
these, `roles` derives the roles over time, `blocks` the blocked and dropped users, and `decisions` the actions in
force. `seed` contains the initial roles.

`applied` applies the decisions to the posts of a store. For each plan, `admission` chooses the posts to store, and
`changing` updates the decisions. `sweeping` removes dropped posts, and `consents` remembers statements about roles.
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
