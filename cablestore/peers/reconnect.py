"""Staying connected: after each failure a longer pause, up to five minutes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from cablestore.errors import NodeError
from cablestore.peers.settings import Address

if TYPE_CHECKING:
    from cablestore.peers.node import Node

_FIRST_RETRY_S: Final = 1.0
_LONGEST_RETRY_S: Final = 300.0


async def retrying(node: Node, address: Address, connected: Callable[[], Awaitable[None]]) -> None:
    """Call `connected`, which lasts as long as a connection does, again and again."""
    pause_s = _FIRST_RETRY_S
    while True:
        began_s = node.loop.time()
        try:
            await connected()
        except NodeError as error:
            node.log.info("no connection", extra={"peer": str(address), "reason": str(error), "again_in_s": pause_s})
        # What lasted a while was no failure; the randomness keeps a crowd from coming back at the same moment.
        pause_s = _FIRST_RETRY_S if node.loop.time() - began_s > pause_s else min(2 * pause_s, _LONGEST_RETRY_S)
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
