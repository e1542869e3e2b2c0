"""A store that another process has open, with the methods of `CableStore`: `connect` and `RemoteStore`.

Messages and calls are in `messages`, `codec` and `methods`, the connection in `link`. The other side is
`cablestore.serving`. Names are loaded when they are first used: commands need the socket alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cablestore import lazy

if TYPE_CHECKING:
    from cablestore.remote.store import RemoteSnapshot as RemoteSnapshot
    from cablestore.remote.store import RemoteStore as RemoteStore
    from cablestore.remote.store import connect as connect
    from cablestore.remote.store import run as run

__all__ = ["RemoteSnapshot", "RemoteStore", "connect", "run"]

__getattr__ = lazy.loader(__name__, {"store": " ".join(__all__)})
