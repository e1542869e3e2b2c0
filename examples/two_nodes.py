"""Two stores in one cabal: a post in one is a moment later in the other, over an encrypted connection."""

import asyncio
import secrets
import tempfile
from pathlib import Path

from cablestore import CableStore, Text
from cablestore.peers import Address, Node, NodeSettings


async def main(folder: Path) -> None:
    """Connect two nodes, write to one store, read from the other."""
    settings = NodeSettings(cabal_key=secrets.token_bytes(32), list_every_s=0.1)
    with CableStore.open(folder / "ann") as ann, CableStore.open(folder / "bob") as bob:
        ann.post("gardening", "the tomatoes are red")
        async with Node(ann, settings) as here, Node(bob, settings) as there:
            there.keep_connected(await here.listen(Address("127.0.0.1", 0)))
            await heard(bob, "the tomatoes are red")
            bob.post("gardening", "eat them now")
            await heard(ann, "eat them now")


async def heard(store: CableStore, text: str) -> None:
    """Follow the store until a message arrives. A thread waits for it, so that the event loop continues."""
    after = 0
    while events := await asyncio.to_thread(store.next_events, after, 30):
        after = events[-1].sequence
        if any(event.post and event.post.body == Text("gardening", text) for event in events):
            print(text)
            return
    raise TimeoutError(text)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(main(Path(scratch)))
