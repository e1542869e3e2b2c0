"""Two stores in one cabal: a post in one appears in the other, over an encrypted connection."""

import asyncio
import secrets
import tempfile
from pathlib import Path

from cablestore import Text
from cablestore.aio import AsyncCableStore
from cablestore.peers import Address, Node, NodeSettings


async def main(folder: Path) -> None:
    """Connect two nodes, write to each store, and read the message in the other store."""
    settings = NodeSettings(cabal_key=secrets.token_bytes(32), list_every_s=0.1)
    async with AsyncCableStore.open(folder / "ann") as ann, AsyncCableStore.open(folder / "bob") as bob:
        await ann.post("gardening", "the tomatoes are red")
        async with Node(ann.blocking, settings) as here, Node(bob.blocking, settings) as there:
            there.keep_connected(await here.listen(Address("127.0.0.1", 0)))
            await heard(bob, "the tomatoes are red")
            await bob.post("gardening", "eat them now")
            await heard(ann, "eat them now")


async def heard(store: AsyncCableStore, text: str) -> None:
    """Wait until the store receives this message. Raise TimeoutError if 30 s pass without an event."""
    async for event in store.events(timeout_s=30):
        if event.post and event.post.body == Text("gardening", text):
            print(text)
            return
    raise TimeoutError(text)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(main(Path(scratch)))
