"""Text typed after `post` and `name`: empty text is rejected, and `#` is not part of a channel's name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cablestore import CableStore

Run = Callable[..., tuple[int, str, str]]
NOTHING = ["", "\n", " \t\n\n", "\u200b\n", "\u3164", "\x1b"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with CableStore.open(tmp_path / "store") as store:
        store.set_name("ann")
    return tmp_path / "store"


def channels(path: Path) -> dict[str, list[str]]:
    with CableStore.open(path) as store:
        found = [channel.name for channel in store.channels()]
        return {name: [message.text for message in store.messages(name).messages] for name in found}


@pytest.mark.parametrize("text", NOTHING, ids=ascii)
def test_an_empty_message_is_rejected(run: Run, path: Path, text: str) -> None:
    status, out, err = run("post", "alerts", "-s", path, text or " ")
    assert (status, out) == (2, "")
    assert "empty message: nothing was posted" in err
    assert channels(path) == {}


@pytest.mark.thorough
def test_empty_standard_input_is_not_posted(path: Path) -> None:
    for text in ("", "\u200b\n"):
        done = subprocess.run(
            [sys.executable, "-m", "cablestore", "post", "alerts", "-s", path],
            input=text.encode(),
            capture_output=True,
            check=False,
        )
        assert done.returncode == 2, done
        assert b"empty message: nothing was posted" in done.stderr
    assert channels(path) == {}


def test_the_hash_sign_before_a_channel_is_removed(run: Run, path: Path) -> None:
    for name in ("default", "#default", " #default ", "#DEFAULT"):
        assert run("post", name, "hi", "-s", path)[0] == 0
    assert channels(path) == {"default": ["hi"] * 4}


def test_an_invisible_name_is_rejected(run: Run, path: Path) -> None:
    status, out, err = run("name", "\u200b\u3164", "-s", path)
    assert (status, out) == (2, "")
    assert "contains only invisible characters. Choose a visible name" in err
    with CableStore.open(path) as store:
        assert store.user(store.identity.public_key).name == "ann"
