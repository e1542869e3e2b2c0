"""Samples of what each version keeps on the disk, which later versions have to read.

`release_sample.py` makes that of this version: it takes the one of 0.12.4, adds what a store can hold since, and makes
an export and archives of it. `expected.json` in a sample says what the version that wrote it answered.
"""

from __future__ import annotations

import json
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from archives import KEY, LATE_MS, archived, plan_of
from folders import TESTS
from people import BOB

from cablestore import CableStore, __version__

SAMPLES = TESTS / "released"


def unpack(version: str, folder: Path) -> None:
    """Write the files of a sample into a folder."""
    with tarfile.open(SAMPLES / f"{version}.tar.xz") as archive:
        archive.extractall(folder, filter="data")


def found_in(store: CableStore) -> dict[str, Any]:
    """Return what a store answers, and what any other store with its posts does."""
    channels = list(store.channels())
    return {
        "channels": [[channel.name, channel.topic, channel.members] for channel in channels],
        "posts": [key.removeprefix(b"!data!").decode() for key, _ in store.dump() if key.startswith(b"!data!")],
        "messages": {
            channel.name: [message.hash.hex() for message in store.messages(channel.name, limit=500).messages]
            for channel in channels
        },
        "heads": {channel.name: sorted(head.hex() for head in store.heads(channel.name)) for channel in channels},
    }


def found_by_user(store: CableStore) -> dict[str, Any]:
    """Return what a store answers its own user alone, since 0.12.4."""
    return {
        "unread": {channel.name: [channel.unread, channel.mentions] for channel in store.channels()},
        "drafts": dict(store.local.drafts()),
        "muted": list(store.local.muted()),
        "hidden": [user.public_key.hex() for user in store.users() if user.is_hidden],
        "acts": len(store.moderation.in_force()),
    }


def dead_in(store: CableStore) -> list[list[str]]:
    """Return target and author of each tombstone."""
    prefix = b"!chat!deleted!"
    return sorted(key.removeprefix(prefix).decode().split("!") for key, _ in store.dump() if key.startswith(prefix))


def local_in(store: CableStore) -> list[list[str]]:
    """Return the local rows, but for those that opening a store writes."""
    with store.snapshot() as snapshot:
        rows = [[key.hex(), value.hex()] for key, value in snapshot.reader.prefix(b"!local!")]
    judged = [b"!local!judged!".hex(), store.identity.public_key.hex()]
    swept = [b"!local!swept!".hex(), ""]
    rules = [b"!local!rules!".hex(), b"1".hex()]
    return [row for row in rows if row not in (judged, swept, rules)]


def make_sample(folder: Path) -> None:
    """Make a store, an export, archives and `expected.json` in a folder. The store has one user's acts and marks.

    A store that imports the export does not know of the dropped post, and so has other heads.
    """
    unpack("0.12.4", folder / "earlier")
    (folder / "earlier" / "store").rename(folder / "store")
    with CableStore.open(folder / "store", upgrade=True) as store:
        texts = store.messages("default").messages
        store.moderation.drop(posts=[texts[0].hash])
        store.moderation.sweep()
        store.moderation.hide(users=[BOB.key])
        store.mark_read("default", texts[3].cursor)
        store.local.set_draft("garden", "half a sentence")
        store.local.mute("other")
        store.post("garden", "written by a later version")
        store.export(folder / "export")
        archived(store, folder / "archives", plan_of("rfc61", KEY), LATE_MS)
    with CableStore.open(folder / "store", create=False) as store:
        assert store.check(signatures=True).is_clean
        rows = {"tombstones": dead_in(store), "local": local_in(store), "dump": store.dump_digest()}
        expected = found_in(store) | found_by_user(store) | rows
    with CableStore.in_memory() as other:
        other.import_exports([folder / "export"])
        expected["elsewhere"] = found_in(other)
    (folder / "expected.json").write_text(json.dumps(expected))


def main() -> None:
    """Make the sample of this version."""
    with tempfile.TemporaryDirectory() as scratch:
        make_sample(Path(scratch))
        with tarfile.open(SAMPLES / f"{__version__}.tar.xz", "w:xz") as archive:
            for name in ("store", "export", "archives", "expected.json"):
                archive.add(Path(scratch, name), name)


if __name__ == "__main__":
    main()
