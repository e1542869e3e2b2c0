"""Lookup: the channel or user that a person means by a typed text. The client and the command line share it. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final, Protocol, TypeVar

from cablestore.errors import NotFoundError
from cablestore.store.naming import folded, folded_name

MIN_KEY_DIGITS: Final = 4
"""Hex digits of a public key that are enough to name its user, if no other key begins with them."""
_KEY_HEX_DIGITS: Final = 64
_DIGITS_SHOWN: Final = 16
_MAX_LISTED: Final = 5


class Named(Protocol):
    """User with a name. One without a name has its public key in hex as its name."""

    @property
    def public_key(self) -> bytes:
        """The public key of the user."""

    @property
    def name(self) -> str:
        """The name of the user."""


N = TypeVar("N", bound=Named)


def typed_name(text: str) -> str:
    """Return a typed name in the form that is stored: composed (NFC), without the spaces around it."""
    return unicodedata.normalize("NFC", text).strip()


def typed_channel(text: str) -> str:
    """Return the name of a typed channel in the form that is stored: as a name, without the `#` before it."""
    return typed_name(typed_name(text).removeprefix("#"))


def find_channel(text: str, known: Iterable[str]) -> str:
    """Return the channel that a typed text means: a known one, or else a new one of this name.

    A known channel of exactly this name is preferred to one that is the same when composed, and that to one that
    differs in case or form. Raises NotFoundError if several are equally near.
    """
    name, folded_text = typed_channel(text), folded(typed_channel(text))
    alike = [each for each in known if each == text or folded(each) == folded_text]
    for near in (
        [each for each in alike if each == name],
        [each for each in alike if each == text],
        [each for each in alike if typed_name(each) == name],
        alike,
    ):
        if len(near) > 1:
            listed = ", ".join(f"#{each}" for each in sorted(near)[:_MAX_LISTED])
            raise NotFoundError(f"#{name} is ambiguous: {listed}. Write the name of one exactly")
        if near:
            return near[0]
    return name


def find_users(text: str, users: Iterable[N]) -> list[N]:
    """Return all users that a typed text may mean: those of this name, and those whose public key begins with it.

    Names are compared without case, spaces around them, and an `@` before them. All 64 digits mean the key alone.
    """
    if (key := typed_key(text)) is not None:
        return [user for user in users if user.public_key == key]
    name, digits = folded_name(text), _digits(text)
    return [
        user
        for user in users
        if (name and folded_name(user.name) == name) or (digits and user.public_key.hex().startswith(digits))
    ]


def typed_key(text: str) -> bytes | None:
    """Return the public key of which a typed text has all 64 digits, None if it has not."""
    digits = _digits(text)
    return bytes.fromhex(digits) if len(digits) == _KEY_HEX_DIGITS else None


def _digits(text: str) -> str:
    """Return the hex digits that a typed text consists of, "" if it has others or too few."""
    digits = text.strip().removeprefix("@").lower()
    return "" if len(digits) < MIN_KEY_DIGITS or digits.strip("0123456789abcdef") else digits


def require_one(text: str, found: Sequence[N]) -> N:
    """Return the only user that a text means. Raises NotFoundError if there is none, or more than one."""
    if not found:
        raise NotFoundError(
            f"User not found: no user here is called {text!r}, or has a public key that begins so. "
            "Write a name as the list of members has it"
        )
    if len(found) > 1:
        raise NotFoundError(ambiguous(text, (described(user, _DIGITS_SHOWN) for user in found)))
    return found[0]


def ambiguous(text: str, meanings: Iterable[str]) -> str:
    """Return the message on a text that may mean several users or posts."""
    every = list(meanings)
    more = f" and {len(every) - _MAX_LISTED:,} more" if len(every) > _MAX_LISTED else ""
    return f"{text!r} may be any of {', '.join(every[:_MAX_LISTED])}{more}: write more digits of one"


def described(user: Named, digits: int = _KEY_HEX_DIGITS) -> str:
    """Return the name of a user, and the first digits of its public key, by default all."""
    key = user.public_key.hex()
    return key[:digits] if user.name == key else f"{user.name!r} {key[:digits]}"
