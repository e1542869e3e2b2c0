"""Socket of a process that has a store open: access, and removal of the file."""

from __future__ import annotations

import os
import socket
import stat
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from waiting import LIMIT_S

import cablestore
from cablestore import CableStore
from cablestore.errors import OwnerGoneError, StorageError
from cablestore.remote.unix_socket import NAME, connect


def test_a_file_with_the_name_of_the_socket_is_not_replaced(tmp_path: Path) -> None:
    with CableStore.open(tmp_path) as store:
        (tmp_path / NAME).write_text("mine")
        with pytest.raises(StorageError, match="cannot create a socket at"):
            cablestore.offer(store)
    assert (tmp_path / NAME).read_text() == "mine"
    assert connect(tmp_path) is None


def test_only_the_same_user_can_connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CableStore.open(tmp_path) as store, cablestore.offer(store):
        assert stat.S_IMODE((tmp_path / NAME).lstat().st_mode) == 0o600
        ours = os.geteuid()
        with monkeypatch.context() as patch:
            patch.setattr(os, "geteuid", lambda: ours + 1)
            assert connect(tmp_path) is None  # connections to sockets of other users are rejected
        if sys.platform == "linux":
            with socket.socket(socket.AF_UNIX) as stranger, monkeypatch.context() as patch:
                patch.setattr(os, "geteuid", lambda: ours + 1)
                stranger.connect(str(tmp_path / NAME))
                stranger.settimeout(LIMIT_S)
                with suppress(ConnectionResetError):
                    assert stranger.recv(1) == b""


def test_closing_removes_the_socket_and_can_be_repeated(tmp_path: Path) -> None:
    with CableStore.open(tmp_path) as store:
        server = cablestore.offer(store)
        connection = connect(tmp_path)
        assert connection is not None
        with connection:
            server.close()
            server.close()
            assert not (tmp_path / NAME).exists()
            connection.settimeout(LIMIT_S)
            with suppress(ConnectionResetError):
                assert connection.recv(1) == b""
        with pytest.raises(OwnerGoneError, match="no process serves"):
            cablestore.connect(tmp_path)
        assert not [thread for thread in threading.enumerate() if thread.name == "cablestore-serving"]


def test_a_newer_server_keeps_its_socket(tmp_path: Path) -> None:
    """A process that releases the store late does not remove the socket of the next one."""
    with CableStore.open(tmp_path) as store:
        old = cablestore.offer(store)
        with cablestore.offer(store):
            old.close()
            with cablestore.connect(tmp_path) as remote:
                assert remote.stats().channels == 0
        assert not (tmp_path / NAME).exists()


def test_a_store_in_a_deep_folder_is_reachable_with_any_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("a folder with a long name " * 4) / ("another " * 10)
    deep.mkdir(parents=True)
    if sys.platform == "linux":  # elsewhere the address uses that folder
        monkeypatch.setenv("TMPDIR", str(deep))
        monkeypatch.setattr(tempfile, "tempdir", None)
    with CableStore.open(deep / "store") as store, cablestore.offer(store):
        assert (deep / "store" / NAME).is_socket()
        with cablestore.connect(deep / "store") as remote:
            remote.post("garden", "from afar")
        assert [message.text for message in store.messages("garden").messages] == ["from afar"]
    assert not (deep / "store" / NAME).exists()
