"""Chat client. Run `terminal_chat.py ann --listen HOST:PORT` and `terminal_chat.py bob --connect HOST:PORT`."""

import argparse
import asyncio
from datetime import datetime

from prompt_toolkit import PromptSession
from prompt_toolkit.input import create_input
from prompt_toolkit.patch_stdout import patch_stdout

from cablestore import CableStore, CableStoreError, Message
from cablestore.peers import Address, Invitation, Node, NodeSettings
from cablestore.store.changes import Change, MessageAdded, MessageDeleted, NameChanged, TopicChanged
from cablestore.store.cursor import ChangesCursor


def clean(text: str) -> str:
    """Return a text of another user, with `?` for each character that may control the terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)


def line(message: Message) -> str:
    """Return a message on one line: the first digits of its hash, its time, its author's name, its text."""
    time = datetime.fromtimestamp(message.timestamp_ms / 1000).astimezone()
    return f"{message.hash.hex()[:6]} {time:%H:%M} <{clean(message.name)[:32]}> {clean(message.text)}"


def history(store: CableStore, channel: str) -> str:
    """Return a channel's topic and its latest messages, the newest last."""
    messages = store.messages(channel, limit=20).messages
    return "\n".join([f"#{channel}: {clean(store.topic(channel))}", *map(line, reversed(messages))])


def show(change: Change) -> None:
    """Print a change."""
    match change:
        case MessageAdded(message):
            print(line(message))
        case MessageDeleted(digest):
            print(digest.hex()[:6], "is deleted")
        case TopicChanged(channel, topic):
            print(f"#{channel}: {clean(topic)}")
        case NameChanged(user):
            print(user.public_key.hex()[:6], "is called", clean(user.name)[:32])


def obey(store: CableStore, channel: str, typed: str) -> None:
    """Run a typed command, or post a typed text."""
    command, _, rest = typed.strip().partition(" ")
    if command == "/name":
        store.set_name(rest)
    elif command == "/topic":
        store.set_topic(channel, rest)
    elif command == "/delete" and rest and len(found := store.find_hashes(rest)) == 1:
        store.delete(found)
    elif typed and not typed.startswith("/"):
        store.post(channel, typed)
    else:
        print(f"{history(store, channel)}\n/name NAME, /topic TEXT, /delete HASH; Ctrl-D ends")


def follow(store: CableStore, channel: str, after: ChangesCursor) -> None:
    """Print changes until the store is closed."""
    for change in store.changes(channel, after):
        show(change)


async def main(given: argparse.Namespace, channel: str = "default") -> None:
    """Open the user's store, connect to peers, and run typed lines until Ctrl-D."""
    invited = Invitation.read(given.invitation) if given.invitation else None
    prompt = PromptSession[str](f"#{channel} ", erase_when_done=True, input=create_input(always_prefer_tty=True))
    prompt.input.cooked_mode = prompt.input.raw_mode  # type: ignore[method-assign] # printing must not lose keys
    with CableStore.open(given.name) as store, patch_stdout(), prompt.input.raw_mode():
        if store.user(store.identity.public_key).info.name is None:
            store.set_name(given.name)
        async with Node(store, NodeSettings(cabal_key=invited.cabal_key if invited else None, list_every_s=1)) as node:
            for address in given.listen:
                print("listening on", await node.listen(address))
            for address in (*given.connect, *(invited.peers if invited else ())):
                node.keep_connected(address)
            following = asyncio.create_task(asyncio.to_thread(follow, store, channel, store.cursor))
            print(history(store, channel))
            while not following.done():
                try:
                    await asyncio.to_thread(obey, store, channel, await prompt.prompt_async())
                except CableStoreError as error:
                    print(error)
                except (EOFError, KeyboardInterrupt):
                    break
    await following


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("name", help="your initial name, and the folder of your store")
    parser.add_argument("--listen", type=Address.parse, action="append", default=[], metavar="HOST:PORT")
    parser.add_argument("--connect", type=Address.parse, action="append", default=[], metavar="HOST:PORT")
    parser.add_argument("--invitation", metavar="FILE", help="file with the invitation, or - for standard input")
    try:
        asyncio.run(main(parser.parse_args()))
    except CableStoreError as error:
        parser.exit(1, f"{error}\n")
