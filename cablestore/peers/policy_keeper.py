"""The policy of a running node, and its changes: a reload of the file, and entries that an operator adds or removes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import tomlkit

from cablestore.errors import NodeError
from cablestore.files import read_small, text_of, write_atomically
from cablestore.peers.policy import TABLES, Action, Kind, Policy, entry_name, parse_policy, read_policy
from cablestore.protocol.dialect import Dialect


class PolicyKeeper:
    """The present policy. `version` grows with each change. Usable in any thread."""

    def __init__(
        self,
        path: Path | None,
        dialect: Dialect,
        loop: asyncio.AbstractEventLoop,
        changed: Callable[[], None],
        *,
        is_chosen: bool,
    ) -> None:
        """Read the file, which may be missing unless `is_chosen` is True. Raises NodeError.

        `changed` is called on the loop after each change.
        """
        self.path: Final = path
        self.version = 0
        self._dialect = dialect
        self._loop = loop
        self._changed = changed
        self._is_chosen = is_chosen
        self._changing = threading.Lock()
        self.policy = self._read()

    def reload(self) -> bool:
        """Read the file again. Return True if the policy changed.

        Raises NodeError if the file is invalid. Then the old policy remains in force.
        """
        with self._changing:
            return self._set(self._read())

    def change(self, action: Action, kind: Kind, name: str) -> bool:
        """Add an entry to the file or remove it, and apply the file. Return False if nothing changes.

        Raises ArgumentError for an invalid name, NodeError if the file cannot be changed, and StorageError.
        """
        if self.path is None:
            raise NodeError("a store in memory has no policy file. Choose one with the setting `policy_path`")
        name = entry_name(kind, name, self._dialect)
        with self._changing:
            text = ""
            if self._is_chosen or self.path.exists():
                read_policy(self.path, self._dialect)  # an invalid file is not changed
                text = text_of(read_small(self.path))
            changed = with_entry(text, action, kind, name, self._dialect)
            parse_policy(changed, self._dialect)
            if changed != text:
                write_atomically(self.path, changed.encode())
            return self._set(self._read())

    def _read(self) -> Policy:
        if self.path is None or not (self._is_chosen or self.path.exists()):
            return Policy.EMPTY
        return read_policy(self.path, self._dialect)

    def _set(self, policy: Policy) -> bool:
        if policy == self.policy:
            return False
        self.policy = policy
        self.version += 1
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._changed)
        return True


def with_entry(text: str, action: Action, kind: Kind, name: str, dialect: Dialect) -> str:
    """Return the text of a valid policy file in which `name` is only in the list of `action`, in no list for "remove".

    Comments, the order of the keys and other entries are kept.
    """
    document = tomlkit.parse(text)
    if action == "remove" and TABLES[kind] not in document:
        return text
    table = document.setdefault(TABLES[kind], tomlkit.table())
    for key in ("allow", "deny"):
        names = table.get(key, [])
        found = [at for at, each in enumerate(names) if entry_name(kind, each, dialect) == name]
        if key == action and not found:
            if key in table:
                names.append(name)
            else:
                table[key] = [name]
        elif key != action:
            for at in reversed(found):
                del names[at]
    return tomlkit.dumps(document)
