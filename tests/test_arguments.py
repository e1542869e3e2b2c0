"""Messages about wrong arguments: the whole text, for each check and at each limit."""

from __future__ import annotations

import datetime as dt

import pytest

from cablestore.arguments import (
    check,
    check_given,
    check_instance,
    checked_ids,
    checked_time,
    checked_window,
)
from cablestore.errors import ArgumentError

ID = bytes(range(32))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"digest": "ab"}, "32 bytes, got 'ab' (str). Use bytes.fromhex for hex digits"),
        ({"digest": b"a" * 64}, "32 bytes, got bytes of 64 bytes. Use bytes.fromhex(value.decode()) for hex digits"),
        ({"digest": b"a" * 63}, "32 bytes, got bytes of 63 bytes"),
        ({"digest": b"a" * 31}, "32 bytes, got bytes of 31 bytes"),
        ({"digest": bytearray(ID)}, "32 bytes, got bytearray of 32 bytes. Use bytes(value)"),
        ({"digest": 5}, "32 bytes, got 5 (int)"),
        ({"digest": None}, "32 bytes, got None"),
        ({"channel": b"c"}, "a str, got bytes of 1 bytes. Decode bytes first"),
        ({"channel": 5}, "a str, got 5 (int)"),
        ({"value": "x"}, "bytes, got a str of 1 characters. Encode a str first, or use bytes.fromhex for hex digits"),
        ({"value": memoryview(b"x")}, "bytes, got memoryview of 1 bytes. Use bytes(value)"),
        ({"value": 5}, "bytes, got 5 (int)"),
        ({"sync": 1}, "True or False, got 1 (int)"),
        ({"limit": 0}, "an integer of at least 1, got 0 (int)"),
        ({"limit": True}, "an integer of at least 1, got True (bool)"),
        ({"keep_newest": -1}, "an integer of at least 0, got -1 (int)"),
        ({"after": 1.0}, "an integer, got 1.0 (float)"),
        (
            {"after_ms": 1.5},
            "milliseconds since 1970 or a datetime with a time zone, got 1.5 (float). Use int for the whole milliseconds",
        ),
        ({"timeout_s": 9_000_000_001}, "a number of seconds, got 9000000001 (int)"),
        ({"timeout_s": True}, "a number of seconds, got True (bool)"),
        ({"timeout_s": float("nan")}, "a number of seconds, got nan (float)"),
        (
            {"timeout_s": float("inf")},
            "a number of seconds, got inf (float). Omit it to wait without a timeout",
        ),
        ({"hidden": "none"}, "'omit' or 'mark' or 'show', got 'none' (str)"),
        ({"clock": 5}, "a function, got 5 (int)"),
        ({"channel": ["a", "b"]}, "a str, got list"),
        ({"limit": "x" * 39}, f"an integer of at least 1, got '{'x' * 39}... (str)"),
        ({"limit": "x" * 38}, f"an integer of at least 1, got '{'x' * 38}' (str)"),
        ({"limit": "x" * 40}, "an integer of at least 1, got a str of 40 characters"),
    ],
)
def test_a_message_has_the_expected_and_the_given_value(given: dict[str, object], expected: str) -> None:
    with pytest.raises(ArgumentError) as error:
        check(**given)
    assert str(error.value) == f"invalid argument {next(iter(given))}: expected {expected}"


def test_values_at_the_limits_are_accepted() -> None:
    check(digest=ID, channel="", value=b"", limit=1, keep_newest=0, timeout_s=9_000_000_000, hidden="omit", clock=len)
    check(timeout_s=-1, after=-5, sync=False, after_ms=0)
    check_given(digest=None, limit=None)
    with pytest.raises(ArgumentError, match="limit"):
        check_given(digest=None, limit=0)


def test_a_time_is_rounded_down_to_milliseconds() -> None:
    moment = dt.datetime(1970, 1, 1, 1, 0, 0, 1999, tzinfo=dt.timezone(dt.timedelta(hours=1)))
    assert (checked_time("after_ms", moment), checked_time("after_ms", 7)) == (1, 7)


def test_a_window_may_be_empty_but_not_reversed() -> None:
    assert checked_window(None, None) == (0, None)
    assert checked_window(5, 5) == (5, 5)
    assert checked_window(None, -1) == (0, -1)
    with pytest.raises(ArgumentError, match=r"ends at 4, before its start at 5 \(after_ms\)"):
        checked_window(5, 4)


def test_ids_are_one_value_or_an_iterable_of_values() -> None:
    assert checked_ids("hashes", ID) == [ID]
    assert checked_ids("hashes", iter([ID, ID])) == [ID, ID]
    for wrong in ("x", b"x", 5):
        with pytest.raises(ArgumentError, match=r"^invalid argument hashes: expected 32 bytes"):
            checked_ids("hashes", wrong)  # type: ignore[arg-type] # wrong on purpose
    with pytest.raises(ArgumentError, match=r"^invalid argument hashes \(one of them\): expected 32 bytes"):
        checked_ids("hashes", [ID, b"x"])


def test_an_instance_is_named_by_its_classes() -> None:
    check_instance("options", 5, (int, str))
    with pytest.raises(ArgumentError, match=r"^invalid argument options: expected int or str, got list$"):
        check_instance("options", [], (int, str))
    with pytest.raises(ArgumentError, match=r"^invalid argument options: expected numbers, got None$"):
        check_instance("options", None, int, "numbers")
