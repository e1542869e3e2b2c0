"""Why nothing is read from a peer for a while."""

from __future__ import annotations

from enum import Enum


class Held(Enum):
    """Why nothing is read from a peer at the moment."""

    STORING = "its posts wait to be stored"
    INSPECTING = "what it gives to others waits to be looked at"
    OFFERS = "the hashes that it offers wait to be looked up"
    REQUESTS = "its requests take up much memory"
    SHARE = "what it sends took more than its share of the time"
