"""The key file is complete or missing, however its writing is interrupted."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from stores import scratch_folder
from waiting import LIMIT_S

from cablestore import CableStore, Identity
from cablestore.backup.manifest import KEY_FILE, own_sizes
from cablestore.errors import IdentityError, StorageError
from cablestore.files import folder_of
from cablestore.store.key_file import StoreIdentity, load_identity, save_identity
from cablestore.store.store import own_key

FULL = """
import resource, signal, sys
from pathlib import Path
from cablestore import CableStore
from cablestore.cli import main
from cablestore.errors import StorageError

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with CableStore.open(sys.argv[1]) as store:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))  # as on a full disk, no file grows
    try:
        store.identity
    except StorageError as error:
        print(error, flush=True)
    main(["keygen", sys.argv[2]])
"""

KILLED = """
import os, signal, sys
from pathlib import Path
from cablestore import Identity
from cablestore.store.key_file import save_identity

os.fchmod = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # when the file is made and has nothing in it
save_identity(Identity.generate(), Path(sys.argv[1]))
"""


KILLED_IN_A_BACKUP = """
import os, signal, sys
from cablestore.backup import backup, write

def draft(identity, path):
    os.fchmod = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    return make(identity, path)

make, write.draft_identity = write.draft_identity, draft
backup(sys.argv[1], sys.argv[2], with_key=True)
"""


def run(code: str, *args: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)


def test_a_full_disk_leaves_no_key_file_and_the_store_can_be_opened_again(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    found = run(FULL, tmp_path / "store", tmp_path / "keys" / "key")
    assert (found.returncode, found.stderr.count("\n")) == (3, 1), found.stderr
    for said in (found.stdout, found.stderr):
        assert "cannot write the identity to" in said
        assert "Check the path, the free space on its disk and its permissions" in said
    assert list((tmp_path / "keys").iterdir()) == []
    assert not list((tmp_path / "store").glob("identity*"))
    with CableStore.open(tmp_path / "store") as store:
        assert store.post("default", "there is space again").author == store.identity.public_key


def test_a_kill_while_the_key_is_written_leaves_no_key_file(tmp_path: Path) -> None:
    CableStore.open(tmp_path).close()
    assert run(KILLED, tmp_path / "identity").returncode == -signal.SIGKILL
    with CableStore.open(tmp_path) as store:
        assert store.public_key is None
        assert store.identity == load_identity(tmp_path / "identity")


def test_a_kill_while_a_backup_writes_the_key_leaves_a_valid_backup_folder(tmp_path: Path) -> None:
    with CableStore.open(tmp_path / "store") as store:
        store.post("default", "x")
    assert run(KILLED_IN_A_BACKUP, tmp_path / "store", tmp_path / "out").returncode == -signal.SIGKILL
    left = folder_of(tmp_path / "out")
    assert [name for name in left.names() if name.startswith(KEY_FILE)]
    assert sorted(own_sizes(left)) == left.names()


def test_an_empty_key_file_is_rejected_with_what_to_do(tmp_path: Path) -> None:
    CableStore.open(tmp_path).close()
    (tmp_path / "identity").touch(0o600)
    with pytest.raises(IdentityError, match=r"identity: the file is empty.*copy.*remove"):
        CableStore.open(tmp_path)
    (tmp_path / "identity").unlink()
    with CableStore.open(tmp_path) as store:
        store.post("default", "x")


def test_a_key_is_stored_on_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)
    made = Identity.generate()
    save_identity(made, tmp_path / "key")
    with pytest.raises(IdentityError, match="already exists"):
        save_identity(Identity.generate(), tmp_path / "key")
    assert load_identity(tmp_path / "key") == made
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["key"]


def test_a_key_that_cannot_be_written_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StorageError, match="cannot write the identity"):
        save_identity(Identity.generate(), tmp_path / "key")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_place_of_the_key_file_is_rejected(tmp_path: Path) -> None:
    CableStore.open(tmp_path).close()
    (tmp_path / "identity").mkdir()
    for read_only in (False, True):
        with pytest.raises(IdentityError, match=r"cannot read the identity from .*identity: Is a directory"):
            CableStore.open(tmp_path, read_only=read_only)
    with pytest.raises(IdentityError, match="it is a folder"):
        save_identity(Identity.generate(), tmp_path)


def test_saving_a_key_leaves_only_the_key_file(tmp_path: Path) -> None:
    save_identity(Identity.generate(), tmp_path / "key")
    with pytest.raises(IdentityError, match="already exists"):
        save_identity(Identity.generate(), tmp_path / "key")
    assert [file.name for file in tmp_path.iterdir()] == ["key"]


def test_threads_read_a_new_key_completely_or_not_at_all() -> None:
    wrong: list[BaseException] = []
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with scratch_folder() as folder:
            for number in range(500):
                (folder / str(number)).mkdir()
                identity = StoreIdentity(None, folder / str(number))

                def look(identity: StoreIdentity = identity) -> None:
                    try:
                        while identity.load() is None:
                            pass
                    except IdentityError as error:
                        wrong.append(error)

                looking = threading.Thread(target=look)
                looking.start()
                made = identity.identity
                looking.join()
                assert identity.load() == made
    finally:
        sys.setswitchinterval(before)
    assert wrong == []


def test_the_key_of_a_user_is_created_once_when_it_is_needed(tmp_path: Path) -> None:
    with CableStore.open(tmp_path / "store") as store:
        assert store.public_key is None
        key = own_key(store)
        assert key == own_key(store) == store.public_key == store.identity.public_key
