"""The store for asyncio programs: the methods of `CableStore`, awaitable. Calls do not block the event loop."""

from cablestore.aio.items import Items
from cablestore.aio.local_values import AsyncLocalValues
from cablestore.aio.moderator import AsyncModerator
from cablestore.aio.queries import AsyncSnapshot
from cablestore.aio.store import AsyncCableStore

__all__ = ["AsyncCableStore", "AsyncLocalValues", "AsyncModerator", "AsyncSnapshot", "Items"]
