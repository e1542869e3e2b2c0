"""Values of options and arguments: the accepted forms at their limits, and the text of each error."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from click.types import ParamType

from cablestore import limits
from cablestore.cli.policy_options import program, storage_size
from cablestore.cli.values import (
    FolderValue,
    Integer,
    Moment,
    PathValue,
    PlainText,
    cabal_key,
    cabal_key_hex,
    channel_name,
    duration,
    duration_text,
    host_name,
    java_memory,
    moderation_seed,
    prologue,
    public_key,
    public_key_hex,
    spark_master,
    spark_remote,
    time_zone,
    token,
)
from cablestore.files import folder_of

DAY_MS = 86_400_000


def convert(kind: Any, value: object) -> Any:
    assert isinstance(kind, ParamType)
    return kind.convert(value, None, None)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (duration, " 90s ", 90_000),
        (duration, "1m", 60_000),
        (duration, "12h", 12 * 3_600_000),
        (duration, "2d", 2 * DAY_MS),
        (duration, "1w", 7 * DAY_MS),
        (duration, "1y", 365 * DAY_MS),
        (duration, 5, 5),
        (storage_size, "1kb", 1_000),
        (storage_size, "20 GB", 20 * 10**9),
        (storage_size, "3MB", 3 * 10**6),
        (storage_size, "1000TB", 10**15),
        (java_memory, "512m", "512m"),
        (java_memory, "524288K", "524288k"),
        (java_memory, " 4GB", "4g"),
        (java_memory, "16t", "16t"),
        (host_name, "Store.Example:443", "store.example:443"),
        (host_name, "x" * 63, "x" * 63),
        (channel_name, "#garden", "garden"),
        (channel_name, "é" * limits.MAX_CHANNEL_CODEPOINTS, "é" * limits.MAX_CHANNEL_CODEPOINTS),
        (public_key, "AB" * 32, bytes.fromhex("ab" * 32)),
        (public_key_hex, "AB" * 32, "ab" * 32),
        (cabal_key, f" {'0f' * 32}\n", b"\x0f" * 32),
        (cabal_key_hex, "0F" * 32, "0f" * 32),
        (prologue, "é", "é".encode()),
        (time_zone, "UTC", UTC),
        (token, "plain", "plain"),
        (spark_master, "local-cluster[2,1,1024]", "local-cluster[2,1,1024]"),
        (spark_remote, "sc://host:1/;token=x", "sc://host:1/;token=x"),
        (program, f"{sys.executable} -c 'a b'", (sys.executable, "-c", "a b")),
        (Integer(0), str(sys.maxsize), sys.maxsize),
        (Moment(), "1970-01-01T00:00:00.0019+00:00", 1),
        (Moment(), "1969-12-31T23:59:59+00:00", 0),
        (Moment(), -5, 0),
        (Moment(), 5, 5),
        (PlainText(), "é", "é"),
        (PathValue(allow_dash=True), "-", Path("-")),
        (PathValue(), "some/file", Path("some/file")),
        (PathValue(is_folder=True), "some", Path("some").resolve()),
        (PathValue(is_folder=True), Path("some"), Path("some")),
        (FolderValue(), "some", folder_of("some")),
    ],
)
def test_a_value_is_converted(kind: Any, text: object, value: object) -> None:
    assert convert(kind, text) == value


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (duration, "0s", "invalid duration '0s': expected a value such as 90s"),
        (duration, "99999999999999999999y", "expected a value such as 90s"),
        (storage_size, "0MB", "invalid size '0MB': expected a value such as 500MB"),
        (storage_size, "1001TB", "at most 1000TB"),
        (storage_size, "9" * 50, f"invalid size '{'9' * 40}': expected"),
        (java_memory, "511m", "invalid amount of memory 511m: expected 512m to 16t"),
        (java_memory, "17t", "invalid amount of memory 17t: expected 512m to 16t"),
        (java_memory, "4" * 50, f'invalid amount of memory "{"4" * 40}": expected a value such as 900m or 4g'),
        (host_name, "x" * 64, "expected NAME or NAME:PORT"),
        (channel_name, "", f"expected 1 to {limits.MAX_CHANNEL_CODEPOINTS} code points, got 0"),
        (channel_name, "x" * (limits.MAX_CHANNEL_CODEPOINTS + 1), f"got {limits.MAX_CHANNEL_CODEPOINTS + 1}"),
        (channel_name, "\udcff", "is not UTF-8"),
        (PlainText(), "\udfff", "is not UTF-8"),
        (PlainText(), "x\ud800", "is not UTF-8"),
        (cabal_key, "ab", "invalid cabal key: expected 64 hex digits, got 2 characters in the given text"),
        (cabal_key, "zz" * 32, "invalid cabal key: expected 64 hex digits, got 64 characters in the given text"),
        (cabal_key, "@/nowhere/key", "cannot read the cabal key from /nowhere/key: No such file or directory"),
        (token, "@/nowhere/key", "cannot read the token from /nowhere/key: No such file or directory"),
        (moderation_seed, "@/nowhere/key", "cannot read the moderation seed from /nowhere/key: No such file or dir"),
        (time_zone, "Mars/Base", "unknown time zone: 'Mars/Base'. Use a name such as Europe/Berlin or UTC"),
        (spark_master, "mesos://x", 'invalid Spark master "mesos://x": expected local[2]'),
        (spark_remote, "sc://", 'invalid Spark Connect server "sc://": expected sc://HOST:PORT'),
        (program, "", "invalid command: the program '' is missing or not executable"),
        (program, "no-such-program -x", "the program 'no-such-program' is missing"),
        (Integer(0), str(sys.maxsize + 1), f"is too large: the maximum is {sys.maxsize}"),
        (Moment(), "tomorrow", "invalid time 'tomorrow': expected 2024-01-31"),
        (Moment(), "9" * 20 + "y", "expected 2024-01-31"),
    ],
)
def test_an_invalid_value_is_explained(kind: Any, text: str, message: str) -> None:
    with pytest.raises(click.BadParameter) as error:
        convert(kind, text)
    assert message in error.value.message


def test_secrets_are_read_from_files_and_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    for content, key in (
        (b"\xef\xbb\xbf" + b"5e" * 32 + b"\r\n", "5e" * 32),
        (b"5e" * 31, None),
        (b"\xff5e", None),
    ):
        file.write_bytes(content)
        if key is not None:
            assert (convert(cabal_key_hex, f"@{file}"), convert(token, f"@{file}")) == (key, key)
            continue
        with pytest.raises(click.BadParameter) as error:
            convert(cabal_key, f"@{file}")
        assert str(file) in error.value.message
        assert "5e5e" not in error.value.message
    with pytest.raises(click.BadParameter, match=r"cannot read the token from .*: it is not text"):
        convert(token, f"@{file}")


def test_days_are_counted_from_midnight() -> None:
    today, yesterday = convert(Moment(), "today"), convert(Moment(), "yesterday")
    start = datetime.fromtimestamp(today / 1000, UTC).astimezone()
    assert (start.hour, start.minute, start.second, start.microsecond) == (0, 0, 0, 0)
    assert start.date() - datetime.fromtimestamp(yesterday / 1000, UTC).astimezone().date() == timedelta(days=1)
    ago = datetime.now(UTC) - datetime.fromtimestamp(convert(Moment(), "2d") / 1000, UTC)
    assert ago.days == 2


@pytest.mark.parametrize(
    ("length_ms", "text"),
    [
        (1_000, "1s"),
        (59_000, "59s"),
        (60_000, "1m"),
        (90_000, "90s"),
        (7 * DAY_MS, "1w"),
        (365 * DAY_MS, "1y"),
        (0, "0y"),
    ],
)
def test_a_duration_is_printed_in_its_longest_unit(length_ms: int, text: str) -> None:
    assert duration_text(length_ms) == text
