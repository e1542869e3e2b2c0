"""Settings of the client in a user's file: the theme, the bell, notifications and keys. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, get_args

from cablestore.chat.key_names import key_named, shown_key
from cablestore.chat.keys import KEY_ACTIONS, Keys
from cablestore.errors import ArgumentError

ThemeName: TypeAlias = Literal["dark", "light"]
THEME_NAMES: Final[tuple[ThemeName, ...]] = get_args(ThemeName)
_SWITCHES: Final = ("bell", "notifications")


@dataclass(frozen=True)
class ChatSettings:
    """Settings of a client, with the defaults that apply without a file."""

    theme: ThemeName = "dark"
    """Initial theme of the client. A key changes it for a session."""
    bell: bool = True
    """True if the client rings the terminal's bell."""
    notifications: bool = True
    """True if the client sends notifications to the terminal."""
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """Keys of the actions whose keys differ from the defaults, by the names of the actions."""


def settings_in(values: Mapping[str, Any]) -> ChatSettings:
    """Return the settings in the tables of a file. Raises ArgumentError for unknown or invalid settings."""
    _reject_unknown("", values, ("theme", *_SWITCHES, "keys"))
    if values.get("theme", "dark") not in THEME_NAMES:
        quoted = " or ".join(f'"{each}"' for each in THEME_NAMES)
        raise ArgumentError(f"theme must be {quoted}")
    for name in _SWITCHES:
        if not isinstance(values.get(name, True), bool):
            raise ArgumentError(f"{name} must be true or false")
    chosen = values.get("keys", {})
    if not isinstance(chosen, dict):
        raise ArgumentError("keys must be a table, [keys]")
    return ChatSettings(**{**values, "keys": MappingProxyType(_keys_in(chosen))})


def _reject_unknown(table: str, values: Mapping[str, Any], known: Mapping[str, Any] | tuple[str, ...]) -> None:
    unknown = sorted(values.keys() - set(known))
    if unknown:
        raise ArgumentError(
            f"unknown settings: {table}{', '.join(unknown)}. Known settings: {', '.join(sorted(known))}"
        )


def _keys_in(chosen: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the keys of each action in a table. Raises ArgumentError if two actions have the same key."""
    _reject_unknown("keys.", chosen, KEY_ACTIONS)
    found = {name: _keys_of(name, value) for name, value in chosen.items()}
    actions: dict[str, str] = {}
    for name, keys in Keys(found).of.items():
        for key in keys:
            if key in actions:
                first, second = sorted((actions[key], name), key=lambda each: each not in found)
                raise ArgumentError(
                    f"keys.{first}: {shown_key(key)} is also a key of {second}. Use another key for one of them"
                )
            actions[key] = name
    return found


def _keys_of(name: str, value: Any) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise ArgumentError(f'keys.{name} must be an array of keys, such as ["ctrl+n", "f8"]')
    try:
        return tuple(dict.fromkeys(map(key_named, texts)))
    except ArgumentError as error:
        raise ArgumentError(f"keys.{name}: {error}") from None
