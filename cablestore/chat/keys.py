"""Actions with keys, and the keys assigned to them. These keys do not type text. Pure.

The typing box receives all other keys first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from cablestore.chat.key_names import shown_key


class KeyAction(NamedTuple):
    """Action with keys: its default keys, the method of the client, and its description in the help."""

    keys: tuple[str, ...]
    method: str
    meaning: str


KEY_ACTIONS: Final = {
    "help": KeyAction(("f1",), "help", "Help"),
    "members": KeyAction(("f2",), "toggle_members", "Members"),
    "theme": KeyAction(("f3",), "toggle_look", "Theme: light or dark"),
    "invitation": KeyAction(("f4",), "invitation", "Invitation to this cabal"),
    "next-channel": KeyAction(("ctrl+n", "alt+down"), "next_channel(1)", "Next channel"),
    "previous-channel": KeyAction(("ctrl+p", "alt+up"), "next_channel(-1)", "Previous channel"),
    "next-unread": KeyAction(("f5",), "next_unread", "Next unread channel, or unread messages above"),
    "mentions": KeyAction(("f6",), "mentions", "Mentions: the messages that mention you, in all channels"),
    "other-channels": KeyAction(("f7",), "fold", "Other channels: show or hide unjoined channels"),
    "scroll-up": KeyAction(("pageup",), "scroll_pages(-1)", "Scroll up"),
    "scroll-down": KeyAction(("pagedown",), "scroll_pages(1)", "Scroll down"),
    "oldest": KeyAction(("ctrl+home",), "oldest", "Oldest message"),
    "newest": KeyAction(("ctrl+end",), "newest", "Newest message"),
    "copy": KeyAction(
        ("ctrl+c", "super+c"),
        "copy",
        "Copy the chosen message or the selected text; Shift and the mouse select text on the screen",
    ),
    "quit": KeyAction(("ctrl+q",), "quit", "Quit"),
}
"""Actions by their names in the settings, in the order of the help. Each description begins with the name."""


class Keys:
    """Keys assigned to all actions."""

    def __init__(self, chosen: Mapping[str, tuple[str, ...]]) -> None:
        """Assign these keys to actions. All other actions have their default keys."""
        self.of: Final = {name: chosen.get(name, action.keys) for name, action in KEY_ACTIONS.items()}
        """Keys of each action."""
        self.all: Final = frozenset(key for keys in self.of.values() for key in keys)

    def shown(self, template: str) -> str:
        """Replace names of actions in braces with their first keys."""
        return template.format_map({name: shown_key(keys[0]) for name, keys in self.of.items()})

    def table(self) -> list[tuple[str, str]]:
        """Return the keys and the description of each action for the help."""
        return [(", ".join(map(shown_key, self.of[name])), action.meaning) for name, action in KEY_ACTIONS.items()]
