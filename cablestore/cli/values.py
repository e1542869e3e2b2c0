"""Types of values that the command line takes: paths, times, keys, names."""

from __future__ import annotations

import errno
import os
import re
from datetime import UTC, datetime, time, timedelta, tzinfo
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

import click

from cablestore import limits
from cablestore.cli.output import safe
from cablestore.protocol.crypto import KEY_SIZE_BYTES
from cablestore.protocol.keys import parse_hex

_DURATION = re.compile(r"(\d+)\s*([smhdwy])")
_UNITS = {
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
    "y": timedelta(days=365),
}
_DAYS_AGO = {"today": 0, "yesterday": 1}
_SHOWN_PATH = 100


# --- files and texts ------------------------------------------------------------------------------


class PathValue(click.Path):
    """A path that the file system allows. The command itself checks whether something is there.

    The path of a store must be UTF-8: LevelDB accepts no other.
    """

    def __init__(self, *, is_store: bool = False) -> None:
        super().__init__(path_type=Path)
        self._is_store = is_store

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        text = os.fsdecode(value)
        shown = safe(text if len(text) <= _SHOWN_PATH else f"{text[:_SHOWN_PATH]}...")
        if not text:
            self.fail("an empty path is not possible: write . for this folder", param, ctx)
        if "\0" in text:
            self.fail(f"{shown} is not a path: it contains a NUL character", param, ctx)
        if self._is_store and not text.isascii() and text != text.encode(errors="replace").decode():
            self.fail("the path of a store must be UTF-8: LevelDB accepts no other", param, ctx)
        try:
            Path(text).stat()
        except NotADirectoryError:
            self.fail(f"{shown} is not possible: a part of it is a file, not a folder", param, ctx)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                self.fail(f"{shown} is too long for a path on this file system", param, ctx)
            if error.errno == errno.ELOOP:
                self.fail(f"{shown} is not possible: it is a link to itself", param, ctx)
        return Path(text)


class PlainText(click.types.StringParamType):
    """Text in UTF-8. Only names of files may contain other bytes."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the text."""
        text = super().convert(value, param, ctx)
        if any("\ud800" <= character <= "\udfff" for character in text):
            self.fail(f"{text[:80]!r} is not UTF-8", param, ctx)
        return text


# --- times ----------------------------------------------------------------------------------------


class Moment(click.ParamType[int]):
    """A point in time: a date, a date and time, `today` or `yesterday` at midnight, or a duration before now (90d, 12h)."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return milliseconds since 1970."""
        if isinstance(value, int):
            return max(0, value)  # it was converted already
        text = str(value).strip()
        match = _DURATION.fullmatch(text)
        try:
            if text in _DAYS_AGO:
                day = datetime.now(UTC).astimezone().date() - timedelta(days=_DAYS_AGO[text])
                moment = datetime.combine(day, time.min).astimezone()
            elif match is not None:
                moment = datetime.now(UTC) - int(match[1]) * _UNITS[match[2]]
            else:
                moment = datetime.fromisoformat(str(value)).astimezone()
            return max(0, int(moment.timestamp() * 1000))
        except (ValueError, OverflowError):
            self.fail(
                f"{value!r} is not a time: write 2024-01-31, 2024-01-31T12:00, today, yesterday, or 90d for 90 days ago",
                param,
                ctx,
            )


class Duration(click.ParamType[int]):
    """A length of time: 90s, 12h, 20w."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return milliseconds, at least a thousand."""
        if isinstance(value, int):
            return value  # it was converted already
        match = _DURATION.fullmatch(str(value).strip())
        try:
            found = timedelta() if match is None else int(match[1]) * _UNITS[match[2]]
        except (ValueError, OverflowError):
            found = timedelta()
        if not found:
            self.fail(f"{value!r} is not a duration: write 90s, 30m, 12h, 180d, 20w or 1y", param, ctx)
        return found // timedelta(milliseconds=1)

    @staticmethod
    def text(length_ms: float) -> str:
        """Return a length of time in the longest unit that expresses it: 10m."""
        length = timedelta(milliseconds=length_ms)
        unit = max((unit for unit in _UNITS if not length % _UNITS[unit]), key=lambda unit: _UNITS[unit])
        return f"{length // _UNITS[unit]}{unit}"


class TimeZone(click.ParamType[tzinfo]):
    """Name of a time zone."""

    name = "zone"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tzinfo:
        """Return the zone. UTC works on machines without a time zone database too."""
        if value == "UTC" or isinstance(value, tzinfo):
            return UTC if value == "UTC" else value
        try:
            return ZoneInfo(str(value))
        except (LookupError, ValueError, OSError):
            self.fail(f"this machine knows no time zone {value!r}: write a name like Europe/Berlin or UTC", param, ctx)


# --- keys -----------------------------------------------------------------------------------------


class Key(click.ParamType[bytes]):
    """A public key in 64 hex digits."""

    name = "public key"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        """Return the 32 bytes."""
        del param, ctx
        return value if isinstance(value, bytes) else parse_hex(str(value), "a public key")


class KeyText(click.ParamType[str]):
    """A public key as text: 64 hex digits in lower case, as in names of communities."""

    name = "public key"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the digits."""
        del param, ctx
        return parse_hex(str(value), "a public key").hex()


class CabalKey(click.ParamType[bytes]):
    """A cabal key: 64 hex digits, or @ and the path of the file that holds them.

    Errors never show the value: it is secret.
    """

    name = "key"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        """Return the 32 bytes."""
        if isinstance(value, bytes):
            return value
        text, where = str(value).strip(), "the given text"
        if text.startswith("@"):
            where = text[1:]
            try:
                text = Path(where).read_text(encoding="ascii").strip()
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) else "it is not text in ASCII"
                self.fail(f"the cabal key cannot be read from {where}: {why}", param, ctx)
        try:
            key = bytes.fromhex(text)
        except ValueError:
            key = b""
        if len(key) != KEY_SIZE_BYTES:
            self.fail(
                f"a cabal key has {2 * KEY_SIZE_BYTES} hex digits; {where} has {len(text)} characters that are no such "
                "key",
                param,
                ctx,
            )
        return key


class CabalKeyText(click.ParamType[str]):
    """A cabal key as text: 64 hex digits."""

    name = "key"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the digits."""
        return CabalKey().convert(value, param, ctx).hex()


# --- peers ----------------------------------------------------------------------------------------


class ChannelName(click.ParamType[str]):
    """The name of a channel."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name."""
        text = str(value)
        if not 1 <= len(text) <= limits.MAX_CHANNEL_CODEPOINTS:
            most = limits.MAX_CHANNEL_CODEPOINTS
            self.fail(f"a channel's name has {len(text)} code points, allowed are 1 to {most}", param, ctx)
        _encoded(self, text, param, ctx)
        return text


class Prologue(click.ParamType[bytes]):
    """Prologue of the handshake: text that must be the same on both sides."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        """Return the text in UTF-8."""
        return value if isinstance(value, bytes) else _encoded(self, str(value), param, ctx)


def _encoded(of: click.ParamType[Any], text: str, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        of.fail(f"{text[:80]!r} is not UTF-8", param, ctx)


# --- Spark ----------------------------------------------------------------------------------------


class JavaMemory(click.ParamType[str]):
    """Amount of memory in Java's notation, enough for Spark to start."""

    name = "size"
    _UNITS: Final = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
    _LEAST_BYTES: Final = 512 * 2**20
    """Spark refuses less than 472 MB, and Java keeps some of its memory for itself."""
    _MOST_BYTES: Final = 2**44

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text that Java reads."""
        found = re.fullmatch(r"([0-9]{1,15})([kmgt])b?", str(value).strip().lower())
        if found is None:
            self.fail(f'"{safe(str(value)[:40])}" is not an amount of memory: write 900m or 4g', param, ctx)
        if not self._LEAST_BYTES <= int(found[1]) * self._UNITS[found[2]] <= self._MOST_BYTES:
            self.fail(f"{found[0]} is out of range: Spark needs at least 512m, and at most 16t", param, ctx)
        return found[1] + found[2]


class SparkMaster(click.ParamType[str]):
    """Spark's master, in a form that Spark knows."""

    name = "master"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text unchanged."""
        if not re.fullmatch(r"local(-cluster)?(\[[0-9*,]+\])?|yarn|(spark|k8s)://\S+", str(value)):
            self.fail(
                f'"{safe(str(value)[:100])}" is not a Spark master: write local[2], spark://HOST:PORT, yarn or '
                "k8s://https://HOST:PORT",
                param,
                ctx,
            )
        return str(value)
