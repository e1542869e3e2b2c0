"""Look-up of the channel or user that a typed string names, for the client and the command line. No I/O."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, Protocol, TypeVar

from cablestore.errors import NotFoundError
from cablestore.store.naming import folded, folded_name

MIN_KEY_DIGITS: Final = 4
"""Minimum number of hex digits that can name a user: the first digits of the public key."""
_KEY_HEX_DIGITS: Final = 64
_DIGITS_SHOWN: Final = 16
_MAX_LISTED: Final = 5


class Named(Protocol):
    """A user. The name of a user without a chosen name is the public key in hex."""

    @property
    def public_key(self) -> bytes:
        """The public key of the user."""

    @property
    def name(self) -> str:
        """The name of the user."""


N = TypeVar("N", bound=Named)


def typed_name(text: str) -> str:
    """Return a typed name in its stored form: composed (NFC), without surrounding spaces."""
    return unicodedata.normalize("NFC", text).strip()


def typed_channel(text: str) -> str:
    """Return a typed channel name in its stored form: like `typed_name`, without a leading `#`."""
    return typed_name(typed_name(text).removeprefix("#"))


def find_channel(text: str, known: Iterable[str]) -> str:
    """Return the known channel that a typed string names, otherwise the typed name as a new channel.

    Prefers exact matches, then names that are equal after composition (NFC), then names that differ in case or form.
    Raises NotFoundError if several names match equally well.
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
            listed = _listed(_distinguished(sorted(near)))
            raise NotFoundError(f"#{name} is ambiguous: {listed}. Write the exact name of one channel")
        if near:
            return near[0]
    return name


def _distinguished(names: list[str]) -> list[str]:
    """Return the names, each with a `#`. If several have the same NFC form, their escaped forms follow."""
    seen = Counter(map(typed_name, names))
    return [f"#{each} ({each!a})" if seen[typed_name(each)] > 1 else f"#{each}" for each in names]


def find_users(text: str, users: Iterable[N]) -> list[N]:
    """Return all users that a typed string may name: by name, or by the first digits of the public key.

    Names are compared without case, surrounding spaces and leading `@`. A string of 64 hex digits matches only the key.
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
    """Return the public key if a typed string consists of its 64 digits, otherwise None."""
    digits = _digits(text)
    return bytes.fromhex(digits) if len(digits) == _KEY_HEX_DIGITS else None


def _digits(text: str) -> str:
    """Return a typed string in lower case if it consists of at least MIN_KEY_DIGITS hex digits, otherwise ""."""
    digits = text.strip().removeprefix("@").lower()
    return "" if len(digits) < MIN_KEY_DIGITS or digits.strip("0123456789abcdef") else digits


def require_one(text: str, found: Sequence[N]) -> N:
    """Return the only user in `found`. Raises NotFoundError if `found` is empty or contains several users."""
    if not found:
        raise NotFoundError(
            f"User not found: {text!r} is neither the name of a user nor the beginning of a public key. Write a name "
            "from the list of members"
        )
    if len(found) > 1:
        raise NotFoundError(ambiguous(text, (described(user, _DIGITS_SHOWN) for user in found)))
    return found[0]


def ambiguous(text: str, meanings: Iterable[str]) -> str:
    """Return the error message for a typed string that may name several users or posts."""
    return f"{text!r} is ambiguous: {_listed(list(meanings))}. Write the hex digits of one of them instead"


def _listed(meanings: list[str]) -> str:
    more = f" and {len(meanings) - _MAX_LISTED:,} more" if len(meanings) > _MAX_LISTED else ""
    return ", ".join(meanings[:_MAX_LISTED]) + more


def described(user: Named, digits: int = _KEY_HEX_DIGITS) -> str:
    """Return the name of a user and the first digits of the public key, by default all 64."""
    key = user.public_key.hex()
    return key[:digits] if user.name == key else f"{user.name!r} {key[:digits]}"
