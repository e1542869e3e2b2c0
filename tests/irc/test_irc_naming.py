"""Assignment of files to channels and networks, and detection of private ones, through the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from irc_logs import laid

Run = Callable[..., tuple[int, str, str]]
SECRET = "the key is under the third pot"
ZNC = "[12:00:00] <{}> {}\n"
IRSSI = "--- Log opened Mon Jan 07 12:00:00 2013\n12:00 < {}> {}\n"
WEECHAT = "2013-01-07 12:00:00\t{}\t{}\n"
HEXCHAT = "**** BEGIN LOGGING AT Mon Jan  7 12:00:00 2013\n\nJan 07 12:00:00 <{}>\t{}\n"


def channels(run: Run, store: Path) -> dict[str, list[str]]:
    """Return the texts of each channel."""
    found = [json.loads(line)["channel"] for line in run("channels", "--json", "-s", store)[1].splitlines()]
    return {
        name: [json.loads(line)["text"] for line in run("log", f"#{name}", "--json", "-s", store)[1].splitlines()]
        for name in found
    }


@pytest.mark.parametrize("speaker", ["bob", "me"])
@pytest.mark.parametrize(
    ("public", "private", "line"),
    [
        ("znc/libera/#garden/2013-01-07.log", "znc/libera/bob/2013-01-07.log", ZNC),
        ("znc/libera/##garden/2013-01-07.log", "znc/libera/bob/2013-01-07.log", ZNC),
        ("irclogs/libera/#garden.log", "irclogs/libera/bob.log", IRSSI),
        ("irc.libera.#garden.weechatlog", "irc.libera.bob.weechatlog", WEECHAT),
        ("Libera-#garden.log", "Libera-bob.log", HEXCHAT),
    ],
)
def test_private_conversations_are_imported_only_on_request(
    run: Run, tmp_path: Path, public: str, private: str, line: str, speaker: str
) -> None:
    logs = tmp_path / "logs"
    laid(logs, public, line.format("ann", "hello"))
    secret = laid(logs, private, line.format(speaker, SECRET))
    status, out, _ = run("import-irc", logs, "-s", tmp_path / "store")
    assert status == 0
    assert str(secret) in out
    assert SECRET not in str(channels(run, tmp_path / "store"))
    assert run("import-irc", logs, "--queries", "-s", tmp_path / "store")[0] == 0
    found = channels(run, tmp_path / "store")
    assert sorted(found.values()) == [["hello"], [SECRET]]


@pytest.mark.parametrize("line", [ZNC, IRSSI, WEECHAT, HEXCHAT])
def test_importing_only_a_private_conversation_is_rejected(run: Run, tmp_path: Path, line: str) -> None:
    file = laid(tmp_path, "bob/2013-01-07.log", line.format("me", SECRET))
    status, _, err = run("import-irc", file, "-s", tmp_path / "store")
    assert status == 2
    assert "--queries" in err
    assert not channels(run, tmp_path / "store")
    assert run("import-irc", file, "--channel", "notes", "-s", tmp_path / "store")[0] == 0


@pytest.mark.parametrize(
    ("paths", "line"),
    [
        (("libera/#garden/2013-01-07.log", "oftc/#garden/2013-01-07.log"), ZNC),
        (("irc.libera.#garden.weechatlog", "irc.oftc.#garden.weechatlog"), WEECHAT),
        (("Libera-#garden.log", "OFTC-#garden.log"), HEXCHAT),
    ],
)
def test_channels_of_two_networks_are_separate(run: Run, tmp_path: Path, paths: tuple[str, str], line: str) -> None:
    logs = tmp_path / "logs"
    files = [laid(logs, path, line.format("ann", path)) for path in paths]
    status, out, _ = run("import-irc", logs, "-s", tmp_path / "store")
    assert status == 0
    assert "several networks" in out
    assert channels(run, tmp_path / "store") == {"garden@libera": [paths[0]], "garden@oftc": [paths[1]]}
    for file in files:
        run("import-irc", file, "-s", tmp_path / "store")
    run("import-irc", logs, "-s", tmp_path / "store")
    assert channels(run, tmp_path / "store") == {"garden@libera": [paths[0]], "garden@oftc": [paths[1]]}


def test_a_second_network_in_a_later_import_has_a_separate_channel(run: Run, tmp_path: Path) -> None:
    for network in ("libera", "oftc"):
        laid(tmp_path, f"{network}/znc/{network}/#garden/2013-01-07.log", ZNC.format("ann", network))
        run("import-irc", tmp_path / network, "-s", tmp_path / "store")
    assert channels(run, tmp_path / "store") == {"garden": ["libera"], "garden@oftc": ["oftc"]}


def test_a_network_with_several_names_has_one_channel(run: Run, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    laid(logs, "irc.libera.#garden.weechatlog", WEECHAT.format("ann", "hello"))
    laid(logs, "thelounge/Libera.Chat-2f8c71a0-5b1e/#garden.log", "[2013-01-07T12:00:05.000Z] <ann> hello\n")
    laid(logs, "irssi/#garden.log", IRSSI.format("ann", "hello"))
    assert run("import-irc", logs, "-s", tmp_path / "store")[0] == 0
    assert channels(run, tmp_path / "store") == {"garden": ["hello"]}


def test_files_that_are_not_logs_are_reported_and_others_imported(run: Run, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    laid(logs, "libera/#garden/2013-01-07.log", ZNC.format("ann", "hello"))
    laid(logs, "libera/status/2013-01-07.log", "[12:00:00] Connected\n")
    laid(logs, "README", "These are logs.\n")
    status, out, _ = run("import-irc", logs, "-s", tmp_path / "store")
    assert status == 1
    assert "README" in out
    assert json.loads(run("import-irc", logs, "--json", "-s", tmp_path / "store")[1])["not_logs"].keys() == {
        str(logs / "README"),
        str(logs / "libera/status/2013-01-07.log"),
    }
    assert channels(run, tmp_path / "store") == {"garden": ["hello"]}
