"""Value types of the command line: paths, times, keys, names."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from zoneinfo import ZoneInfo

import click
from click.shell_completion import CompletionItem

from cablestore import limits
from cablestore.cli.output import safe
from cablestore.errors import CableStoreError
from cablestore.files import ObjectFolder, folder_of, read_small, text_of, usable_path
from cablestore.files.uri import shown
from cablestore.moderation import Seed
from cablestore.protocol.crypto import KEY_SIZE_BYTES
from cablestore.protocol.keys import parse_hex
from cablestore.store.lookup import typed_channel

_DURATION = re.compile(r"(\d+)\s*([smhdwy])")
_UNITS = {
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
    "y": timedelta(days=365),
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAYS_AGO = {"today": 0, "yesterday": 1}
T = TypeVar("T")

if TYPE_CHECKING:
    ParamType = click.ParamType
else:

    class ParamType(click.ParamType):
        """Type of a parameter. It is generic from click 8.4 on, but Debian 13 contains click 8.1.8."""

        def __class_getitem__(cls, _: object) -> type:
            return cls


class TextValue(ParamType[T]):
    """Type that converts strings to objects of the class `made` with `parse`.

    `parse` raises ValueError with the reason.
    """

    def __init__(self, name: str, made: type, parse: Callable[[str], T]) -> None:
        self.name = name
        self._made = made
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        """Return the parsed value. Return an object of the class `made` unchanged: it is already converted."""
        if isinstance(value, self._made) and not isinstance(value, str):
            return cast(T, value)
        try:
            return self._parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def text_value(name: str, made: type) -> Callable[[Callable[[str], T]], TextValue[T]]:
    """Return a decorator that makes a parsing function the `TextValue` `name`, whose values have the class `made`."""
    return lambda parse: TextValue(name, made, parse)


def reason_of(error: Exception) -> str:
    """Return the reason why a file cannot be read or written, without its name."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


# --- files and strings -----------------------------------------------------------------------------


class PathValue(click.Path):
    """Local path that the file system allows. The command checks the existence and kind of the file."""

    def __init__(self, *, exists: bool = False, is_folder: bool = False, allow_dash: bool = False) -> None:
        super().__init__(exists=exists, file_okay=not is_folder, allow_dash=allow_dash, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path, absolute with `is_folder`. Raises ArgumentError for a path that no file system allows."""
        if isinstance(value, Path):
            return value  # a default, which another option may replace
        text = os.fsdecode(value)
        path = Path(text) if self.allow_dash and text == "-" else usable_path(text)
        super().convert(path, param, ctx)
        return path if self.file_okay else path.resolve()


class FolderValue(ParamType[ObjectFolder]):
    """Folder of whole files: a path, or a URI of an object store."""

    name = "path or URI"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> ObjectFolder:
        """Return the folder. Raises CableStoreError for an invalid path or URI."""
        del param, ctx
        return value if isinstance(value, ObjectFolder) else folder_of(os.fsdecode(value))

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return path completions."""
        return PathValue().shell_complete(ctx, param, incomplete)


class PlainText(click.types.StringParamType):
    """Text in UTF-8. Only file names may contain other bytes."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the text. Fails for lone surrogates."""
        text = super().convert(value, param, ctx)
        if any("\ud800" <= character <= "\udfff" for character in text):
            self.fail(f"{text[:80]!r} is not UTF-8", param, ctx)
        return text


class Integer(click.IntRange):
    """Integer from `min` to `sys.maxsize`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number. Fails above `sys.maxsize`."""
        number = super().convert(value, param, ctx)
        if number > sys.maxsize:
            self.fail(f"{number} is too large: the maximum is {sys.maxsize}", param, ctx)
        return number


# --- times ----------------------------------------------------------------------------------------


class Moment(ParamType[int]):
    """Point in time: a date, a date and time, `today` or `yesterday` at midnight, or a duration before now (90d)."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return milliseconds since 1970."""
        if isinstance(value, int):
            return max(0, value)  # already converted
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
            return max(0, (moment - _EPOCH) // timedelta(milliseconds=1))  # exact, unlike a float
        except (ValueError, OverflowError):
            self.fail(
                f"invalid time {value!r}: expected 2024-01-31, 2024-01-31T12:00, today, yesterday, or 90d for 90 days "
                "ago",
                param,
                ctx,
            )


@text_value("duration", int)
def duration(text: str) -> int:
    """Return a duration such as 90s, 12h or 20w in milliseconds, at least 1,000."""
    match = _DURATION.fullmatch(text.strip())
    try:
        found = timedelta() if match is None else int(match[1]) * _UNITS[match[2]]
    except (ValueError, OverflowError):
        found = timedelta()
    if not found:
        raise ValueError(f"invalid duration {text!r}: expected a value such as 90s, 30m, 12h, 180d, 20w or 1y")
    return found // timedelta(milliseconds=1)


def duration_text(length_ms: float) -> str:
    """Return a duration in the longest unit that divides it, such as 10m."""
    length = timedelta(milliseconds=length_ms)
    unit = max((unit for unit in _UNITS if not length % _UNITS[unit]), key=lambda unit: _UNITS[unit])
    return f"{length // _UNITS[unit]}{unit}"


@text_value("zone", tzinfo)
def time_zone(text: str) -> tzinfo:
    """Return the time zone with this name. UTC also works on machines without a time zone database."""
    if text == "UTC":
        return UTC
    try:
        return ZoneInfo(text)
    except (LookupError, ValueError, OSError):
        raise ValueError(f"unknown time zone: {text!r}. Use a name such as Europe/Berlin or UTC") from None


# --- keys and names --------------------------------------------------------------------------------


@text_value("public key", bytes)
def public_key(text: str) -> bytes:
    """Return the 32 bytes of a public key in 64 hex digits."""
    return parse_hex(text, "a public key")


@text_value("public key", str)
def public_key_hex(text: str) -> str:
    """Return a public key as 64 hex digits in lower case, as in names of communities."""
    return parse_hex(text, "a public key").hex()


def _cabal_key(text: str) -> bytes:
    """Return the 32 bytes of a cabal key: 64 hex digits, or @ and the path of a file with the digits.

    Errors never show the value, because it is secret.
    """
    text, where = text.strip(), "the given text"
    if text.startswith("@"):
        where = text[1:]
        try:
            text = text_of(read_small(usable_path(where))).strip()
        except (OSError, CableStoreError, UnicodeDecodeError) as error:
            why = "it is not text" if isinstance(error, UnicodeDecodeError) else reason_of(error)
            raise ValueError(f"cannot read the cabal key from {shown(where)}: {why}") from None
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_SIZE_BYTES:
        raise ValueError(
            f"invalid cabal key: expected {2 * KEY_SIZE_BYTES} hex digits, got {len(text)} characters in {where}"
        )
    return key


cabal_key: Final = TextValue("key", bytes, _cabal_key)
cabal_key_hex: Final = TextValue("key", str, lambda text: _cabal_key(text).hex())


@text_value("name", str)
def host_name(text: str) -> str:
    """Return the name of a host in lower case, with or without a port."""
    if _HOST_NAME.fullmatch(text.lower()) is None:
        raise ValueError(f"invalid host name {shown(text)}: expected NAME or NAME:PORT, such as store.example.org")
    return text.lower()


@text_value("token", str)
def token(text: str) -> str:
    """Return the token in a text: the token itself, or @ and the path of a file that contains it."""
    if not text.startswith("@"):
        return text
    try:
        return text_of(read_small(usable_path(text[1:]))).strip()
    except (OSError, CableStoreError, UnicodeDecodeError) as error:
        why = "it is not text" if isinstance(error, UnicodeDecodeError) else reason_of(error)
        raise ValueError(f"cannot read the token from {shown(text[1:])}: {why}") from None


@text_value("seed", str)
def moderation_seed(text: str) -> str:
    """Return a moderation seed in hex digits, from the digits, or from @ and the path of a file."""
    if text.startswith("@"):
        try:
            data = read_small(usable_path(text[1:]))
        except (OSError, CableStoreError) as error:
            raise ValueError(f"cannot read the moderation seed from {shown(text[1:])}: {reason_of(error)}") from None
        text = _hex_digits(data) or data.hex()
    Seed.read_hex(text, 0)
    return "".join(text.split())


def _hex_digits(data: bytes) -> str:
    """Return the text of a file if it consists of hex digits and white space, otherwise ""."""
    try:
        text = text_of(data)
    except UnicodeDecodeError:
        return ""
    return "" if text.strip("0123456789abcdefABCDEF \t\r\n") else text


@text_value("name", str)
def channel_name(text: str) -> str:
    """Return a valid channel name without a leading `#`."""
    text, most = typed_channel(text), limits.MAX_CHANNEL_CODEPOINTS
    if not 1 <= len(text) <= most:
        raise ValueError(f"invalid channel name: expected 1 to {most} code points, got {len(text)}")
    _encoded(text)
    return text


@text_value("text", bytes)
def prologue(text: str) -> bytes:
    """Return the prologue of a handshake in UTF-8. The prologue must be the same on both sides."""
    return _encoded(text)


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{text[:80]!r} is not UTF-8") from None


# --- Spark ----------------------------------------------------------------------------------------

_HOST_NAME: Final = re.compile(r"(?=.{1,259}$)[a-z0-9-]{1,63}(\.[a-z0-9-]{1,63})*(:[0-9]{1,5})?")
_MEMORY_UNITS: Final = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_LEAST_MEMORY_BYTES: Final = 512 * 2**20
"""Minimum Java memory: Spark rejects less than 472 MB, and Java reserves a part."""
_MOST_MEMORY_BYTES: Final = 2**44


@text_value("size", str)
def java_memory(text: str) -> str:
    """Return an amount of memory in Java's notation, large enough for Spark to start."""
    found = re.fullmatch(r"([0-9]{1,15})([kmgt])b?", text.strip().lower())
    if found is None:
        raise ValueError(f'invalid amount of memory "{safe(text[:40])}": expected a value such as 900m or 4g')
    if not _LEAST_MEMORY_BYTES <= int(found[1]) * _MEMORY_UNITS[found[2]] <= _MOST_MEMORY_BYTES:
        raise ValueError(f"invalid amount of memory {found[0]}: expected 512m to 16t")
    return found[1] + found[2]


@text_value("master", str)
def spark_master(text: str) -> str:
    """Return a Spark master unchanged. Raises ValueError if Spark does not support its form."""
    if not re.fullmatch(r"local(-cluster)?(\[[0-9*,]+\])?|yarn|(spark|k8s)://\S+", text):
        raise ValueError(
            f'invalid Spark master "{safe(text[:100])}": expected local[2], spark://HOST:PORT, yarn or '
            "k8s://https://HOST:PORT"
        )
    return text


@text_value("remote", str)
def spark_remote(text: str) -> str:
    """Return the URL of a Spark Connect server unchanged. Raises ValueError if Spark does not support its form."""
    if not re.fullmatch(r"sc://[^/\s]+(/[^\s]*)?", text):
        raise ValueError(f'invalid Spark Connect server "{safe(text[:100])}": expected sc://HOST:PORT')
    return text
