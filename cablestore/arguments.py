"""Checks of the arguments of the public API. Each argument name has one check, so it means the same in all methods.

A method checks its arguments in its first lines, before it reads or writes:

    check(channel=channel, limit=limit)      required arguments
    check_given(cursor=cursor)               arguments that may be None

Error messages never contain the value of bytes, a key or a seed, because messages are logged.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterable, Mapping, Sized
from functools import partial
from numbers import Integral
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

from cablestore.errors import ArgumentError

T = TypeVar("T")
Time: TypeAlias = int | dt.datetime
"""Point in time: milliseconds since 1970, or a datetime with a time zone."""

_ID_SIZE_BYTES: Final = 32
"""Size of a hash and of a public key."""
_ID_FIELDS: Final = ("hash", "public_key")
"""Attributes of posts, messages and users that programs may pass by mistake instead of their hash or key."""
_SHOWN_CHARACTERS: Final = 40
_COPY: Final = ". Use bytes(value)"
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MAX_WAIT_S: Final = 9_000_000_000
"""Longest time that a thread can wait: nanoseconds in 63 bits."""


def check(**given: object) -> None:
    """Raise ArgumentError for the first argument of a wrong type or value."""
    for name, value in given.items():
        _CHECKS[name](name, value)


def check_given(**given: object) -> None:
    """Check arguments as `check` does, except arguments that are None."""
    for name, value in given.items():
        if value is not None:
            _CHECKS[name](name, value)


def is_checked(name: str) -> bool:
    """Return True if `check` can check an argument of this name."""
    return name in _CHECKS


def check_id(name: str, value: object) -> None:
    """Check a hash or a public key: 32 bytes."""
    if not isinstance(value, bytes) or len(value) != _ID_SIZE_BYTES:
        hint = ""
        if isinstance(value, str):
            hint = ". Use bytes.fromhex for hex digits"
        elif isinstance(value, bytes) and len(value) == 2 * _ID_SIZE_BYTES:
            hint = ". Use bytes.fromhex(value.decode()) for hex digits"
        elif isinstance(value, bytearray | memoryview):
            hint = _COPY
        elif field := next((each for each in _ID_FIELDS if hasattr(value, each)), None):
            hint = f". Use its attribute {field}"
        _reject(name, f"{_ID_SIZE_BYTES} bytes", value, hint)


def check_text(name: str, value: object) -> None:
    """Check a str."""
    if not isinstance(value, str):
        _reject(name, "a str", value, ". Decode bytes first" if isinstance(value, bytes) else "")


def check_bytes(name: str, value: object) -> None:
    """Check bytes of any size."""
    if isinstance(value, str):  # a short one may be secret too, so only its length is shown
        raise ArgumentError(
            f"invalid argument {name}: expected bytes, got a str of {len(value)} characters. Encode a str first, or use "
            "bytes.fromhex for hex digits"
        )
    if not isinstance(value, bytes):
        _reject(name, "bytes", value, _COPY if isinstance(value, bytearray | memoryview) else "")


def check_flag(name: str, value: object) -> None:
    """Check True or False."""
    if not isinstance(value, bool):
        _reject(name, "True or False", value)


def check_integer(name: str, value: Any, least: int | None = None, most: int | None = None) -> None:
    """Check an integer in a range. A bool or float is rejected."""
    if _is_integer(value) and (least is None or value >= least) and (most is None or value <= most):
        return
    expected = "an integer" if least is None else f"an integer of at least {least}"
    _reject(name, expected if most is None else f"an integer from {least} to {most}", value)


def checked_time(name: str, value: Any) -> int:
    """Return a `Time` in milliseconds since 1970."""
    if _is_integer(value):
        return int(value)
    hint = ". Use int for the whole milliseconds" if isinstance(value, float) else ""
    if isinstance(value, dt.datetime):
        if value.utcoffset() is not None:
            return (value - _EPOCH) // dt.timedelta(milliseconds=1)
        hint = ". It has no time zone: use value.astimezone()"
    return _reject(name, "milliseconds since 1970 or a datetime with a time zone", value, hint)


def checked_window(after_ms: Time | None, before_ms: Time | None) -> tuple[int, int | None]:
    """Return a time window, after_ms <= time < before_ms, in milliseconds since 1970.

    By default, it begins at 0 and has no end.
    """
    start_ms = 0 if after_ms is None else checked_time("after_ms", after_ms)
    if before_ms is None:
        return start_ms, None
    end_ms = checked_time("before_ms", before_ms)
    if after_ms is not None and start_ms > end_ms:
        raise ArgumentError(
            f"invalid argument before_ms: the time window ends at {end_ms}, before its start at {start_ms} "
            "(after_ms). Swap them"
        )
    return start_ms, end_ms


def check_seconds(name: str, value: object) -> None:
    """Check a number of seconds that a thread can wait. A negative number becomes 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value <= _MAX_WAIT_S:
        hint = ". Omit it to wait without a timeout" if isinstance(value, float) and math.isinf(value) else ""
        _reject(name, "a number of seconds", value, hint)


def check_choice(name: str, value: object, choices: Iterable[object]) -> None:
    """Check that a value is a string in `choices`."""
    known = tuple(choices)
    if not isinstance(value, str) or value not in known:
        _reject(name, " or ".join(map(repr, known)), value)


def check_instance(name: str, value: object, kind: type | tuple[type, ...], expected: str = "") -> None:
    """Check an object of a class. Errors contain `expected`, by default the name of the class."""
    if not isinstance(value, kind):
        names = " or ".join(each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,)))
        raise ArgumentError(f"invalid argument {name}: expected {expected or names}, got {_kind_of(value)}")


def check_call(name: str, value: object) -> None:
    """Check that a value is callable."""
    if not callable(value):
        _reject(name, "a function", value)


def check_others(name: str, value: object) -> None:
    """Check a mapping of names to further values of a post/info: bytes, or None to remove the name."""
    check_instance(name, value, Mapping, "a mapping of str to bytes")
    for key, each in value.items():  # type: ignore[attr-defined] # a mapping, as checked above
        check_text(f"{name} (a key)", key)
        if each is not None:
            check_bytes(f"{name} (the value of {key[:_SHOWN_CHARACTERS]!r})", each)


def checked_each(name: str, values: Iterable[T], check_one: Callable[[str, object], None]) -> list[T]:
    """Return a list of the checked values of an iterable. A single str or bytes is rejected."""
    check_iterable(name, values)
    found = list(values)
    for each in found:
        check_one(f"{name} (one of them)", each)
    return found


def checked_ids(name: str, values: bytes | Iterable[bytes]) -> list[bytes]:
    """Return a list of checked hashes or keys, given an iterable or a single value."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        check_id(name, values)
        return [values]
    return checked_each(name, values, check_id)


def check_iterable(name: str, values: object) -> None:
    """Check an iterable that is read later, such as a generator."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        _reject(name, "an iterable of values, such as a list", values)


def _reject(name: str, expected: str, value: object, hint: str = "") -> NoReturn:
    raise ArgumentError(f"invalid argument {name}: expected {expected}, got {_shown(value)}{hint}")


def _shown(value: object) -> str:
    """Return a value as shown in an error. Bytes and long strings may be secret, so only their length is shown."""
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{_kind_of(value)} of {len(value)} bytes"
    if isinstance(value, str) and len(value) >= _SHOWN_CHARACTERS:
        return f"a str of {len(value)} characters"
    if value is None or (isinstance(value, Sized) and not isinstance(value, str)):
        return _kind_of(value)
    text = repr(value)
    return f"{text[:_SHOWN_CHARACTERS]}{'...' * (len(text) > _SHOWN_CHARACTERS)} ({type(value).__name__})"


def _is_integer(value: object) -> bool:
    kind = type(value)
    return kind is int or (kind is not bool and issubclass(kind, Integral))


def _kind_of(value: object) -> str:
    return "None" if value is None else type(value).__name__


def _each(names: str, check_one: Callable[[str, object], object]) -> dict[str, Callable[[str, object], object]]:
    return dict.fromkeys(names.split(), check_one)


_FLAGS: Final = """
    accept_role allow_missing_views create drop dry_run force incoming is_audit local moderated newest_first notify now
    only_whole over_cable private read_only signatures skip_repeated sync undrop upgrade verify with_deleted with_latest
    with_reserved without_hidden
"""
_CHECKS: Final[dict[str, Callable[[str, object], object]]] = {
    **_each("author by_author digest member public_key target user", check_id),
    **_each("channel cursor generation hex_digits key name reason text topic upto", check_text),
    **_each(_FLAGS, check_flag),
    **_each(
        "batch_posts limit processes read_threads run_size_bytes segment_size_bytes step_ms",
        partial(check_integer, least=1),
    ),
    **_each("keep_newest skew_ms verify_threads", partial(check_integer, least=0)),
    **_each("after_ms before_ms", checked_time),
    **_each("after_key prefix", check_bytes),
    **_each("catch_up_s timeout_s", check_seconds),
    **_each("call clock progress surplus", check_call),
    "after": check_integer,
    "hidden": partial(check_choice, choices=("omit", "mark", "show")),
    "others": check_others,
    "value": check_bytes,
}
"""Check of each argument name of the API."""
