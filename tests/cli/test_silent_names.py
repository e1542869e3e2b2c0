"""Commands with a name server that never answers: they can be stopped, and reach the reachable peers."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from silent_names import SilentNames, silent_names

from cablestore import CableStore
from cablestore.archive.format.cid import DatasetHasher, DatasetManifest, manifest_cid

DEAD = tuple(f"peer{number}.example:13333" for number in range(40))
"""More names than an executor has threads."""
UVLOOP = pytest.mark.parametrize("has_uvloop", [True, False], ids=["uvloop", "asyncio"])


@pytest.fixture
def names(tmp_path: Path) -> Iterator[SilentNames]:
    with silent_names(tmp_path) as found:
        yield found


def store(path: Path, *texts: str) -> Path:
    with CableStore.open(path) as made:
        for text in texts:
            made.post("default", text)
    return path


def connecting(hosts: tuple[str, ...]) -> list[str]:
    return [part for host in hosts for part in ("--connect", host)]


@pytest.mark.thorough("asyncio")
@UVLOOP
def test_a_good_peer_is_reached_beside_dead_names_and_serve_stops(
    names: SilentNames, tmp_path: Path, *, has_uvloop: bool
) -> None:
    peer = names.start("serve", "-s", store(tmp_path / "a", "a text"), "--listen", "127.0.0.1:13333")
    peer.until("listening")
    hosts = (*DEAD, "good.example:13333", "two.example:13333")
    served = names.start(
        "serve", "-s", store(tmp_path / "b"), *connecting(hosts), "--listen", "127.0.0.1:0", has_uvloop=has_uvloop
    )
    served.until('"peer": "127.0.0.1:13333"')
    served.until("reconciled")
    assert served.ends(signal.SIGTERM) == 0, served.output
    with CableStore.open(tmp_path / "b") as stored:
        assert [message.text for message in stored.messages("default").messages] == ["a text"]


@pytest.mark.thorough("asyncio")
@UVLOOP
def test_the_second_address_of_a_host_is_tried_while_the_first_is_silent(
    names: SilentNames, tmp_path: Path, *, has_uvloop: bool
) -> None:
    peer = names.start("serve", "-s", store(tmp_path / "a", "a text"), "--listen", "127.0.0.1:13333")
    peer.until("listening")
    sync = names.start("sync", "-s", store(tmp_path / "b"), "two.example:13333", has_uvloop=has_uvloop)
    assert sync.ends() == 0, sync.output
    assert "2 new posts" in sync.output


@pytest.mark.thorough("--listen-asyncio", "--metrics-uvloop", "--reconcile-listen-uvloop")
@UVLOOP
@pytest.mark.parametrize("option", ["--listen", "--metrics", "--reconcile-listen"])
def test_serve_stops_while_a_name_to_listen_on_is_looked_up(
    names: SilentNames, tmp_path: Path, option: str, *, has_uvloop: bool
) -> None:
    addresses = ["--connect", DEAD[0], option, "here.example:13333"]
    served = names.start("serve", "-s", store(tmp_path / "a"), *addresses, has_uvloop=has_uvloop)
    names.until_asked("here.example")
    assert served.ends(signal.SIGTERM) == 0, served.output
    assert "Traceback" not in served.output


@pytest.mark.thorough
def test_commands_say_that_the_name_server_does_not_answer(names: SilentNames, tmp_path: Path) -> None:
    """All run at once, because each waits for ten seconds."""
    hasher = DatasetHasher()
    hasher.update(b"content")
    content_id = manifest_cid(DatasetManifest(hasher.finish()[0], 7, None, None))
    syncs = [
        names.start("sync", "-s", store(tmp_path / f"{has_uvloop}"), DEAD[0], has_uvloop=has_uvloop)
        for has_uvloop in (True, False)
    ]
    asking = names.start("archive", "content", "delete", content_id, "--node", "http://node.example:8080")
    for sync in syncs:
        assert sync.ends() == 2, sync.output
        assert f"cannot connect to {DEAD[0]}: the name server does not answer within 10 s" in sync.output
    assert asking.ends() == 2, asking.output
    assert "http://node.example:8080 does not answer" in asking.output


@pytest.mark.thorough
@UVLOOP
def test_ctrl_c_ends_a_look_up(names: SilentNames, tmp_path: Path, *, has_uvloop: bool) -> None:
    interrupted = names.start("sync", "-s", store(tmp_path / "a"), "again.example:1", has_uvloop=has_uvloop)
    names.until_asked("again.example")
    assert interrupted.ends(signal.SIGINT) == 130, interrupted.output
    assert "Traceback" not in interrupted.output
