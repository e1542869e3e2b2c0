"""Settings file of the client: keys, theme, bell and notifications, and rejected values."""

from __future__ import annotations

import codecs
import tomllib
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest
from folders import ROOT
from serving import HERE, Served
from terminals import Screen, Start
from waiting import wait_until

from cablestore import CableStore
from cablestore.chat.key_names import key_named, shown_key
from cablestore.chat.keys import KEY_ACTIONS
from cablestore.chat.settings import ChatSettings, settings_in
from cablestore.errors import ArgumentError

Command = Callable[..., tuple[int, str, str]]
Serve = Callable[..., Served]
CTRL_C, CTRL_N, CTRL_P, CTRL_Q, CTRL_X = "\x03", "\x0e", "\x10", "\x11", "\x18"
F1, F2, F3, F8, F9 = "\x1bOP", "\x1bOQ", "\x1bOR", "\x1b[19~", "\x1b[20~"
ALT_H = "\x1bh"
MOVED = """
theme = "light"
[keys]
help = ["F8", "alt+h"]
next-channel = "Ctrl+P"                # the two swap their keys
previous-channel = ["ctrl + n"]
members = ["ctrl+q"]                   # the key of an action that moves away
quit = ["CTRL+X"]
copy = ["F9"]
newest = ["f2"]
"""


def own_file(tmp_path: Path, text: str) -> Path:
    """Write the settings of the user whose clients `start_chat` starts."""
    path = tmp_path / "settings" / "cablestore" / "chat.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


@pytest.mark.thorough("True")
@pytest.mark.parametrize("is_served", [False, True])
def test_the_keys_of_the_file_are_used_and_shown(
    start_chat: Start, serving: Serve, tmp_path: Path, is_served: bool
) -> None:
    own_file(tmp_path, MOVED)
    with CableStore.open(tmp_path / "store") as store:
        for channel in ("a", "b", "c"):
            store.join(channel)
        for number in range(60):
            store.post("a", f"text {number}")
    server = serving(tmp_path / "store", "--listen", HERE) if is_served else None
    assert server is None or server.address
    client = start_chat("-s", "store", "--channel", "a")
    sees = Screen(client)
    sees.shows("F8 help")

    client.press(F1 + ALT_H)
    for line in ("F8,Alt+HHelp", "Ctrl+PNextchannel", "Ctrl+NPreviouschannel", "Ctrl+XQuit", "Ctrl+QMembers"):
        sees.finds(line.replace("+", r"\+"))
    client.press(F8)
    wait_until(lambda: "Keys and commands" not in sees.text, lambda: sees.text)

    client.press("\x1b[27u")
    sees.shows("F9 copy   Escape back   F8 help")
    client.press(CTRL_C + F9)
    sees.shows("Copied")
    assert client.clipboard == "text 59"
    client.press("\x1b[5~")
    sees.shows("F2 shows the newest")
    client.press(F2)
    wait_until(lambda: "shows the newest" not in sees.text, lambda: sees.text)
    sees.shows("1 member")
    client.press(CTRL_Q)
    wait_until(lambda: "1 member" not in sees.text, lambda: sees.text)
    client.press(CTRL_P)
    sees.finds("^#b")
    client.press(CTRL_N + CTRL_N)
    sees.finds("^#c")
    assert client.end(CTRL_X) == 0
    assert server is None or server.stop() == 0


def background(sees: Screen) -> str:
    sees.shows("Write a message")
    return str(sees.drawn.buffer[10][60].bg)


@pytest.mark.thorough
def test_an_option_and_a_key_override_the_theme_of_the_file(start_chat: Start, tmp_path: Path) -> None:
    path = own_file(tmp_path, 'theme = "light"')
    found = {}
    for name, options in (("file", ()), ("option", ("--dark",)), ("other file", ("--config", "/dev/null"))):
        client = start_chat("-s", "store", *options)
        sees = Screen(client)
        found[name] = background(sees)
        client.press(F3)
        wait_until(lambda sees=sees, name=name: background(sees) != found[name])  # type: ignore[misc]  # mypy does not infer a lambda with defaults
        assert client.end(CTRL_Q) == 0
    assert found["option"] == found["other file"] != found["file"]
    assert path.read_text() == 'theme = "light"'
    client = start_chat("-s", "store")
    assert background(Screen(client)) == found["file"]
    assert client.end(CTRL_Q) == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("theme = ", "other.toml: Invalid value (at "),
        ('theme = "blue"', 'theme must be "dark" or "light"'),
        ("theme = {}", 'theme must be "dark" or "light"'),
        ('bell = "no"', "bell must be true or false"),
        ("notifications = 0", "notifications must be true or false"),
        ("colour = 1\nbel = true", "unknown settings: bel, colour. Known settings: bell, keys, notifications, theme"),
        ("[serve]\nlisten = []", "unknown settings: serve"),
        ('keys = ["f1"]', "keys must be a table"),
        ('[keys]\nqiut = ["f9"]', "unknown settings: keys.qiut. Known settings: copy, help, "),
        ("[keys]\nquit = []", "keys.quit must be an array of keys"),
        ("[keys]\nquit = [9]", "keys.quit must be an array of keys"),
        ('[keys]\nquit = ["q"]', "keys.quit: 'q' can be part of a text. Use F1 to F12"),
        ('[keys]\nquit = ["f9", "Enter"]', "keys.quit: 'Enter' has a fixed use"),
        ('[keys]\nquit = ["ctrl+shift+q"]', "'ctrl+shift+q' is not a key that every terminal sends"),
        ('[keys]\nquit = ["f9"]\ncopy = ["F9"]', "keys.copy: F9 is also a key of quit"),
        ('[keys]\nquit = ["ctrl+n"]', "keys.quit: Ctrl+N is also a key of next-channel"),
        ('[keys]\nquit = ["f9\\u001b[2J"]', "is not a key"),
        ('"\\u001b[2J" = 1', "unknown settings: \\u{1b}[2J"),
    ],
)
def test_bad_files_result_in_status_2_before_the_client_starts(
    tmp_path: Path, run: Command, text: str, reason: str
) -> None:
    file = tmp_path / "other.toml"
    file.write_text(text)
    status, out, err = run("chat", "-s", tmp_path / "store", "--config", file)
    assert (status, out) == (2, "")
    assert str(file) in err
    assert reason in err.splitlines()[-1]
    assert "\x1b" not in err
    assert not (tmp_path / "store").exists()


def test_a_named_file_must_exist_but_the_default_one_is_optional(
    tmp_path: Path, run: Command, start_chat: Start
) -> None:
    status, out, err = run("chat", "-s", tmp_path / "store", "--config", tmp_path / "none.toml")
    assert (status, out) == (2, "")
    assert f"cannot read {tmp_path}/none.toml: No such file" in err
    own_file(tmp_path, "[keys]\nquit = ['q']")
    client = start_chat("-s", "store")
    client.shows("chat.toml: keys.quit: 'q' can be part of a text")
    assert client.wait() == 2
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("mark", [codecs.BOM_UTF8, b""])
def test_files_with_a_byte_order_mark_and_crlf_are_read(tmp_path: Path, run: Command, mark: bytes) -> None:
    file = tmp_path / "chat.toml"
    file.write_bytes(mark + b"bell = true\r\n[keys]\r\nquit = 'f9'\r\n")
    status, _, err = run("chat", "-s", tmp_path / "store", "--config", file)
    assert (status, "needs a terminal" in err) == (2, True)


def test_settings_are_parsed() -> None:
    assert settings_in({}) == ChatSettings()
    found = settings_in({"theme": "light", "bell": False, "notifications": False, "keys": {"quit": "F10"}})
    assert found == ChatSettings("light", bell=False, notifications=False, keys={"quit": ("f10",)})


def test_the_names_of_actions_are_prefixes_of_their_help() -> None:
    for name, action in KEY_ACTIONS.items():
        assert action.meaning.lower().replace(" ", "-").startswith(name)


def test_default_keys_are_valid_and_shown_as_a_file_names_them() -> None:
    keys = [key for action in KEY_ACTIONS.values() for key in action.keys]
    assert len(set(keys)) == len(keys)
    assert [key_named(shown_key(key)) for key in keys] == keys


@pytest.mark.parametrize(
    "text",
    [
        *("a", "Z", "9", "é", "日", "+", " ", "", "space", "shift+a", "comma", "ctrl", "ctrl+", "f0", "f13"),
        *("tab", "shift+tab", "Esc", "return", "backspace", "up", "End", "shift+left", "alt+enter", "shift+enter"),
        *("ctrl+h", "ctrl+i", "ctrl+j", "ctrl+m", "ctrl+[", "ctrl+y", "ctrl+shift+n", "alt+b", "alt+f", "alt+1"),
    ],
)
def test_keys_that_type_or_have_a_fixed_use_are_rejected(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"has a fixed use|can be part of a text|is not a key that every terminal"):
        key_named(text)


def test_the_reference_lists_all_settings_with_their_defaults() -> None:
    page = (ROOT / "docs" / "reference" / "settings.md").read_text()
    values = tomllib.loads(page.split("## The client")[1].split("```toml\n")[1].split("```")[0])
    found = settings_in(values)
    assert values.keys() == {each.name for each in fields(ChatSettings)}
    assert replace(found, keys={}) == replace(ChatSettings(), keys={})
    assert found.keys == {name: action.keys for name, action in KEY_ACTIONS.items()}
