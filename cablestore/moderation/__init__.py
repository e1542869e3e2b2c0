"""Moderation: who has which role, and what is hidden, dropped and blocked for the store's own user. Pure.

`acts` are what is decided from, `roles` is who had which role when, `decisions` is what applies. `stored` reads acts
from the rows of a store.
"""

from cablestore.moderation.acts import (
    Action,
    Consent,
    HeldActs,
    ModerationAct,
    Seed,
    UserRole,
    act_of,
    consent_of,
)
from cablestore.moderation.decisions import ActOutcome, Decisions, Judged, UserDrop, blocks_in_force
from cablestore.moderation.stored import StoredActs

__all__ = [
    "ActOutcome",
    "Action",
    "Consent",
    "Decisions",
    "HeldActs",
    "Judged",
    "ModerationAct",
    "Seed",
    "StoredActs",
    "UserDrop",
    "UserRole",
    "act_of",
    "blocks_in_force",
    "consent_of",
]
