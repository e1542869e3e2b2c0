"""An open store for other processes of the same user: `offer`. The other side is `cablestore.remote`."""

from cablestore.serving.server import StoreServer, offer

__all__ = ["StoreServer", "offer"]
