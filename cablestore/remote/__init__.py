"""A store that another process has open, with the methods of `CableStore`: `connect` and `RemoteStore`.

`messages`, `codec` and `methods` define the messages and calls, `link` the connection. `cablestore.serving` is the
server side. Names are loaded lazily, because commands need only the socket.
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
