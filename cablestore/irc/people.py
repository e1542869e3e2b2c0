"""People of chat logs: the owner of each nick at each time, and the key of each person. Pure.

A person keeps its key after a change of nick. The next user of an abandoned nick is another person, unless an equal
address or a similar nick identifies the person. IRC ignores the case of nicks. A client uses `ann_` if `ann` is in use.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from typing import Final

from cablestore import limits
from cablestore.protocol.crypto import Identity

NickHistory = Iterable[tuple[int, str]]
"""Nicks of one key, each with the time in milliseconds since 1970 from which it was used."""

_FOLDED: Final = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ[]\\^", "abcdefghijklmnopqrstuvwxyz{}|~")
"""Casemapping of RFC 1459: `{}|~` are the lower case of `[]\\^`."""
_IDENT_MARKS: Final = ("~", "^", "n=", "i=")
"""Prefixes that servers put before an unverified user name."""
_LEAST_SIMILAR: Final = 3
_time_of: Final = itemgetter(0)


@lru_cache(maxsize=16_384)
def folded(nick: str) -> str:
    """Return a nick as IRC compares it, truncated to the maximum length of a user name."""
    return nick[: limits.MAX_USER_NAME_CODEPOINTS].translate(_FOLDED)


@lru_cache(maxsize=16_384)
def stem(nick: str) -> str:
    """Return a folded nick without the `_` that clients append if the nick is in use."""
    return folded(nick).rstrip("_") or folded(nick)


def _label(nick: str, number: int = 1) -> str:
    """Return the string from which a person's key is derived. `number` distinguishes people with the same nick."""
    whole = nick.translate(_FOLDED)
    label = whole.rstrip("_") or whole
    return label if number == 1 else f"{label}\0{number}"


class NickKeys:
    """Identities that are derived from one seed phrase."""

    def __init__(self, seed_phrase: str) -> None:
        self.identity = lru_cache(maxsize=16_384)(lambda label: Identity.derive(seed_phrase, label))


@dataclass(slots=True, eq=False)
class Person:
    """Author of lines. Its key is derived from `label`; `mask` is the latest known `user@host`."""

    identity: Identity
    label: str
    mask: str = ""
    _times: list[tuple[int, str, int]] = field(default_factory=list)
    _met: set[int] = field(default_factory=set)

    def take(self, nick: str, at_ms: int, file: int) -> None:
        """Record that the person uses a nick from this time. `file` is the number of the log, or 0 for the store."""
        insort(self._times, (at_ms, nick, file))

    @property
    def is_named(self) -> bool:
        """True if a nick is known."""
        return bool(self._times)

    def nick_at(self, at_ms: int) -> str:
        """Return the nick at a time, or "" before the first nick."""
        if self._times and self._times[-1][0] <= at_ms:
            return self._times[-1][1]
        index = bisect_right(self._times, at_ms, key=_time_of)
        return self._times[index - 1][1] if index else ""

    def meets_stored_name(self, at_ms: int) -> bool:
        """Return True if the nick at a time is from a stored post/info. Later calls for that post/info return False."""
        index = bisect_right(self._times, at_ms, key=_time_of)
        if not index or self._times[index - 1][2] or self._times[index - 1][0] in self._met:
            return False
        self._met.add(self._times[index - 1][0])
        return True

    def took(self, nick: str, from_ms: int, to_ms: int, before_file: int) -> bool:
        """Return True if the person took `nick` in this time range, according to the store or a file before `before_file`."""
        start = bisect_right(self._times, from_ms - 1, key=_time_of)
        stop = bisect_right(self._times, to_ms, key=_time_of)
        return any(name == nick and file < before_file for _, name, file in self._times[start:stop])

    def had(self, nick_stem: str, before_ms: int) -> bool:
        """Return True if the person had a nick with this stem at an earlier time."""
        return any(at_ms <= before_ms and stem(name) == nick_stem for at_ms, name, _ in self._times)

    def begins_after(self, at_ms: int, nick_stem: str) -> bool:
        """Return True if the person's first nick has this stem, and was taken after this time."""
        return bool(self._times) and self._times[0][0] > at_ms and stem(self._times[0][1]) == nick_stem


class Roster:
    """All people of an import. `stored` contains the nicks of the store's authors, by public key."""

    def __init__(self, keys: NickKeys, stored: Mapping[bytes, NickHistory] | None = None) -> None:
        self._keys = keys
        self._stored = dict(stored or {})
        self._people: dict[bytes, Person] = {}
        self._by_stem: dict[str, list[Person]] = {}
        self._authors: dict[str, list[bytes]] = {}
        for key, nicks in self._stored.items():
            for nick_stem in {stem(nick) for _, nick in nicks}:
                self._authors.setdefault(nick_stem, []).append(key)
        self._counts = {nick_stem: len(keys) for nick_stem, keys in self._authors.items()}

    def named(self, nick: str) -> list[Person]:
        """Return the people who have a nick with the same stem at any time, in the order of discovery."""
        nick_stem = stem(nick)
        for key in self._authors.pop(nick_stem, ()):
            self._recognise(key)
        return self._by_stem.get(nick_stem, [])

    def take(self, person: Person, nick: str, at_ms: int, file: int = 0) -> None:
        """Record that a person uses a nick from this time. `file` is the number of the log, or 0 for the store."""
        person.take(nick, at_ms, file)
        self._list(person, nick)

    def find(self, nick: str, at_ms: int, mask: str, present: Container[Person]) -> Person:
        """Return the person who uses a nick at a time, or a new person.

        `mask` is the `user@host` of the line, or "". `present` are the people in the channel, under any nick.
        """
        nick_stem, known = stem(nick), self.named(nick)
        holders = [person for person in known if stem(person.nick_at(at_ms)) == nick_stem]
        holders.sort(key=lambda person: folded(person.nick_at(at_ms)) != folded(nick))
        found = next((person for person in holders if not have_different_masks(person.mask, mask)), None)
        if found is None and not holders:
            found = self._returned(nick, at_ms, mask, present)
        if found is None and not holders:
            found = next((person for person in known if person.begins_after(at_ms, nick_stem)), None)
        return found or self._new(nick)

    def _returned(self, nick: str, at_ms: int, mask: str, present: Container[Person]) -> Person | None:
        """Return the absent person who abandoned a nick and uses it again, or None."""
        for person in reversed(self.named(nick)):
            if person in present or not person.had(stem(nick), at_ms):
                continue
            is_same = bool(mask and person.mask) and not have_different_masks(person.mask, mask)
            if is_same or (_are_similar(person.nick_at(at_ms), nick) and not have_different_masks(person.mask, mask)):
                return person
        return None

    def _new(self, nick: str) -> Person:
        number = 1
        while (key := self._keys.identity(_label(nick, number)).public_key) in self._people:
            number += 1
        return self._add(key, _label(nick, number), nick)

    def _add(self, key: bytes, label: str, nick: str) -> Person:
        person = Person(self._keys.identity(label), label)
        self._people[key] = person
        for at_ms, name in self._stored.get(key, ()):
            self.take(person, name, at_ms)
        self._list(person, nick)
        return person

    def _list(self, person: Person, nick: str) -> None:
        known = self._by_stem.setdefault(stem(nick), [])
        if person not in known:
            known.append(person)

    def _recognise(self, key: bytes) -> None:
        """Add an author of the store, if its key is derived from one of its nicks."""
        if key in self._people:
            return
        for label, nick in self._labels(key):
            if self._keys.identity(label).public_key == key:
                self._add(key, label, nick)
                return

    def _labels(self, key: bytes) -> Iterator[tuple[str, str]]:
        """Yield the strings from which the key of a stored author may be derived, with the nicks."""
        for nick in dict.fromkeys(nick for _, nick in self._stored[key]):
            yield nick, nick  # earlier versions derived keys from nicks
            for number in range(1, 2 + self._counts[stem(nick)]):
                yield _label(nick, number), nick


def have_different_masks(one: str, other: str) -> bool:
    """Return True if two `user@host` masks differ in both user and host. Return False if either is empty (unknown)."""
    if not one or not other:
        return False
    (user, _, host), (other_user, _, other_host) = (mask.partition("@") for mask in (one, other))
    return _bare(user) != _bare(other_user) and host != other_host


def _bare(user: str) -> str:
    for mark in _IDENT_MARKS:
        user = user.removeprefix(mark)
    return user


def _are_similar(one: str, other: str) -> bool:
    short, long = sorted(("".join(filter(str.isalnum, folded(nick))) for nick in (one, other)), key=len)
    return len(short) >= _LEAST_SIMILAR and long.startswith(short)
