"""Store for programs of asyncio: the methods of `CableStore`, awaitable. No call keeps the event loop waiting."""

from cablestore.aio.items import Items
from cablestore.aio.local_values import AsyncLocalValues
from cablestore.aio.moderator import AsyncModerator
from cablestore.aio.queries import AsyncSnapshot
from cablestore.aio.store import AsyncCableStore

__all__ = ["AsyncCableStore", "AsyncLocalValues", "AsyncModerator", "AsyncSnapshot", "Items"]
