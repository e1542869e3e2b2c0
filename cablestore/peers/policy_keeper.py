"""The policy of a running node, and its changes: a reload of the file, and entries that an operator adds or removes."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import tomllib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from cablestore.errors import NodeError
from cablestore.files import read_small, text_of, write_atomically
from cablestore.peers.policy import TABLES, Action, Kind, Policy, entry_name, parse_policy, read_policy
from cablestore.protocol.dialect import Dialect

_VALUE: Final = r"""\[(?:[^\]"'#]|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|\#[^\n]*)*\]"""
"""An array of strings in TOML, with comments."""


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
        """Read the file, which may be missing unless it `is_chosen`. `changed` is called on the loop. Raises NodeError."""
        self.path: Final = path
        self.version = 0
        self._dialect = dialect
        self._loop = loop
        self._changed = changed
        self._is_chosen = is_chosen
        self._changing = threading.Lock()
        self.policy = self._read()

    def reload(self) -> bool:
        """Read the file again. Return True if the policy changed. Raises NodeError, and then the old policy stays."""
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
            if changed is None:
                raise NodeError(f"the policy in {self.path} is in a form that no command can change. Edit the file")
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


def with_entry(text: str, action: Action, kind: Kind, name: str, dialect: Dialect) -> str | None:
    """Return the text of a policy file with an entry added to one list and removed from the other one.

    Comments outside of the lists are kept. Returns None if the text cannot be changed so.
    """
    table = TABLES[kind]
    found = tomllib.loads(text).get(table, {})
    wanted: dict[str, list[str]] = {}
    for key in ("allow", "deny"):
        names = found.get(key, [])
        kept = [each for each in names if entry_name(kind, each, dialect) != name]
        is_there = len(kept) < len(names)
        wanted[key] = names if key == action and is_there else [*kept, name] if key == action else kept
    changed = text
    for key, names in wanted.items():
        if names != found.get(key, []):
            changed = _with_list(changed, table, key, names)
    with suppress(ValueError):
        parse_policy(changed, dialect)
        after = tomllib.loads(changed)
        expected = tomllib.loads(text)
        expected[table] = expected.get(table, {}) | {
            key: names for key, names in wanted.items() if names or key in found
        }
        if after == expected or (not expected[table] and table not in after):
            return changed
    return None


def _with_list(text: str, table: str, key: str, names: Iterable[str]) -> str:
    line = f"{key} = [{', '.join(map(_quoted, names))}]"
    header = re.search(rf"^[ \t]*\[[ \t]*{table}[ \t]*\][^\n]*(?:\n|\Z)", text, re.MULTILINE)
    if header is None:
        return f"{text.rstrip()}\n\n[{table}]\n{line}\n".lstrip()
    head, body = text[: header.end()], text[header.end() :]
    following = re.search(r"^[ \t]*\[", body, re.MULTILINE)
    end = len(body) if following is None else following.start()
    known = re.compile(rf"^[ \t]*{key}[ \t]*=[ \t]*{_VALUE}", re.MULTILINE).search(body, 0, end)
    if known is None:
        return f"{head if head.endswith(chr(10)) else head + chr(10)}{line}\n{body}"
    return f"{head}{body[: known.start()]}{line}{body[known.end() :]}"


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False).replace("\x7f", "\\u007f")
