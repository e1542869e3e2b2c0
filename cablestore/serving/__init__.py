"""Serving an open store to other processes of the same user: `offer`. The client side is `cablestore.remote`."""

from cablestore.serving.refusal import Refusal
from cablestore.serving.server import StoreServer, offer

__all__ = ["Refusal", "StoreServer", "offer"]
