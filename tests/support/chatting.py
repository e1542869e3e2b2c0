"""The chat client in tests: its conversation, which the pictures of the documents show too, and what is on the screen."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC
from pathlib import Path
from types import ModuleType
from typing import Any

from folders import ROOT
from remote_stores import served_in

from cablestore import CableStore, Identity, StoreOptions
from cablestore.chat.app import ChatApp
from cablestore.chat.cabal import Cabal
from cablestore.chat.hosting import HostedNode, Hosting
from cablestore.chat.keeper import OpenStore
from cablestore.remote import connect

GOLDEN = ROOT / "tests" / "chat" / "screens"


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("chat_pictures", ROOT / "docs" / "img" / "chat.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


PICTURES: Any = _script()


@contextmanager
def cabals_on(*stores: CableStore, hosting: Hosting | None = None) -> Iterator[list[Cabal]]:
    """Open stores in the client, offline unless it hosts nodes. They are closed at the end."""

    def opened(store: CableStore) -> OpenStore:
        return OpenStore.here(store, None if hosting is None else HostedNode(store, hosting))

    found = [Cabal(opened(store), f"cabal {number}") for number, store in enumerate(stores, 1)]
    try:
        yield found
    finally:
        for open_cabal in found:
            open_cabal.close()


@contextmanager
def served_cabals_on(scratch: Path, *stores: CableStore) -> Iterator[list[Cabal]]:
    """Serve stores to a client in this process, over sockets. They are closed at the end."""
    with ExitStack() as stack:
        found = []
        for number, store in enumerate(stores, 1):
            folder = scratch / f"served {number}"
            folder.mkdir()
            stack.callback(store.close)
            stack.enter_context(served_in(folder, store))
            found.append(served_cabal(folder, f"cabal {number}"))
            stack.callback(found[-1].close)
        yield found


def served_cabal(folder: Path, label: str = "client", *, silence_s: float = 5.0) -> Cabal:
    """Reach the process that has the store in a folder open, now and whenever it was lost.

    It hangs if it gives no sign of life for `silence_s`.
    """

    def reach() -> OpenStore:
        return OpenStore.there(connect(folder, timeout_s=silence_s))

    return Cabal(reach(), label, reach)


def new_store(name: str = "ann", **options: Any) -> CableStore:
    """Return a store of the pictures' ann, or of another person, in memory."""
    return CableStore.in_memory(identity=Identity.derive("chat pictures", name), options=StoreOptions(**options))


def app_on(open_cabals: Sequence[Cabal], **options: Any) -> ChatApp:
    return ChatApp(open_cabals, zone=UTC, **options)


def screen_lines(app: ChatApp) -> list[str]:
    """Return the text on the screen, line by line."""
    strips = app.screen._compositor.render_strips()
    return [strip.text.rstrip() for strip in strips]


def shown(app: ChatApp) -> str:
    return "\n".join(screen_lines(app))


def assert_like(app: ChatApp, name: str) -> None:
    """Compare the text on the screen with a golden file. A new text is written beside it, for a person to look at."""
    text, path = shown(app) + "\n", GOLDEN / f"{name}.txt"
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        other = path.with_suffix(".new.txt")
        other.write_text(text, encoding="utf-8")
        raise AssertionError(f"the screen differs from {path}. Look at {other}. If it is right, move it there")
