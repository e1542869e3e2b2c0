"""A node in a separate process: `node_child.py POSTS SETTINGS-AS-JSON`.

It prints its address, then one line of JSON about its state for each line of its input. It stops when its input ends.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import sys
from collections.abc import Sized
from typing import Any

import uvloop
from by_hand import texts
from peering import ANSWERS_ONLY, HOST
from people import raws

from cablestore import CableStore, Identity, StoreOptions
from cablestore.peers import Address, Node, NodeSettings


class Errors(logging.Handler):
    """Counter of errors that must not be logged."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(f"{record.getMessage()} {record.exc_info}")


async def serve(posts: int, settings: NodeSettings) -> None:
    errors = Errors()
    logging.getLogger("cablestore.node").addHandler(errors)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.found.append(str(context)))
    with CableStore.in_memory(
        identity=Identity.derive("child", "node"), options=StoreOptions(verify_threads=1)
    ) as store:
        store.ingest(raws(*texts(posts)), verify=False)
        gc.collect()
        async with Node(store, settings) as node:
            print(await node.listen(Address(HOST, 0)), flush=True)
            while await loop.run_in_executor(None, sys.stdin.readline):
                gc.collect()
                print(json.dumps(state_of(node, errors)), flush=True)


def state_of(node: Node, errors: Errors) -> dict[str, Any]:
    parts = node.parts
    serving, sync = parts.serving, parts.sync
    tables: tuple[Sized, ...] = (
        serving.by_session,
        parts.cable_port.by_network,
        serving.routes,
        sync,
        sync.fetches,
    )
    return {
        "connections": len(node.connections),
        "tables": sum(map(len, tables)),
        "live": parts.serving.live.count + len(parts.serving.live._alike),
        "tasks": len(asyncio.all_tasks()),
        "queued": sum(known.queued_size_bytes for known in node.connections),
        "waiting": parts.context.reads.waiting,
        "errors": errors.found,
    }


if __name__ == "__main__":
    given = json.loads(sys.argv[2])
    chosen = (
        NodeSettings(**given) if given.pop("follows", False) else NodeSettings(**given, channels=ANSWERS_ONLY.channels)
    )
    uvloop.run(serve(int(sys.argv[1]), chosen))
