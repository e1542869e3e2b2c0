"""Opening a store: which files are created, which calls are rejected, and with which messages."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import msgpack
import pytest
from people import ANN, raws

from cablestore import DRAFT8, LEGACY, CableStore, Identity
from cablestore.errors import IdentityError, OpenError, OutdatedViewError, StoreClosedError, StoreLockedError
from cablestore.export import Filters
from cablestore.index.leveldb import LevelDB
from cablestore.store import ClosedStore
from cablestore.store.key_file import load_identity, parse_identity, save_identity
from cablestore.views import CATALOG


def test_a_new_store_is_created_and_opened_again(tmp_path: Path) -> None:
    with CableStore.open(tmp_path / "a" / "b") as store:
        post = store.post("default", "hello")
    with CableStore.open(tmp_path / "a" / "b", create=False) as store:
        assert store.get(post.hash) == post
        assert store.dialect is LEGACY


def test_a_store_keeps_its_dialect(tmp_path: Path) -> None:
    CableStore.open(tmp_path, dialect=DRAFT8).close()
    with CableStore.open(tmp_path) as store:
        assert store.dialect is DRAFT8
    with pytest.raises(OpenError, match="has the dialect draft8, not legacy"):
        CableStore.open(tmp_path, dialect=LEGACY)


def test_a_missing_store_is_not_created_without_permission(tmp_path: Path) -> None:
    with pytest.raises(OpenError, match="cablestore init"):
        CableStore.open(tmp_path / "nothing", create=False)
    with pytest.raises(OpenError, match="cablestore init"):
        CableStore.open(tmp_path, create=False)
    assert list(tmp_path.iterdir()) == []


def test_a_foreign_folder_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(OpenError, match=r"it contains thesis\.tex"):
        CableStore.open(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_foreign_leveldb_is_not_changed(tmp_path: Path) -> None:
    LevelDB(tmp_path, create=True).close()
    before = sorted(file.name for file in tmp_path.iterdir())
    with pytest.raises(OpenError, match="is not a store: it contains "):
        CableStore.open(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == before


def test_a_file_is_not_a_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OpenError, match="is a file"):
        CableStore.open(tmp_path / "file")


def test_a_newer_format_is_rejected(tmp_path: Path) -> None:
    CableStore.open(tmp_path).close()
    header = json.loads((tmp_path / "STORE").read_text())
    (tmp_path / "STORE").write_text(json.dumps(header | {"format": 99}))
    with pytest.raises(OpenError, match=r"format 99, but this version of cablestore reads 1\. Install a newer version"):
        CableStore.open(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "{}", "null", "[]", '{"format": 1}', "\x00\xff", '{"format": "x", "dialect": 1, "generation": 2}']
)
def test_a_damaged_header_is_rejected(tmp_path: Path, text: str) -> None:
    CableStore.open(tmp_path).close()
    (tmp_path / "STORE").write_bytes(text.encode("latin-1"))
    with pytest.raises(OpenError, match="is not the header of a store"):
        CableStore.open(tmp_path)


def test_an_id_is_added_to_a_header_without_one(tmp_path: Path) -> None:
    with CableStore.open(tmp_path) as store:
        store.post("default", "kept")
    header = json.loads((tmp_path / "STORE").read_text())
    assert len(bytes.fromhex(header["store"])) == 16
    (tmp_path / "STORE").write_text(json.dumps({name: header[name] for name in ("format", "dialect", "generation")}))
    with CableStore.open(tmp_path) as store:
        assert [message.text for message in store.messages("default").messages] == ["kept"]
    given = json.loads((tmp_path / "STORE").read_text())
    assert len(given["store"]) == 32
    CableStore.open(tmp_path).close()
    assert json.loads((tmp_path / "STORE").read_text()) == given


def test_a_header_with_a_path_outside_the_folder_is_rejected(tmp_path: Path) -> None:
    CableStore.open(tmp_path).close()
    (tmp_path / "STORE").write_text('{"format": 1, "dialect": "legacy", "generation": "../../etc"}')
    with pytest.raises(OpenError, match="is not a generation"):
        CableStore.open(tmp_path)


def test_an_unknown_dialect_is_rejected(tmp_path: Path) -> None:
    CableStore.open(tmp_path).close()
    (tmp_path / "STORE").write_text('{"format": 1, "dialect": "klingon", "generation": "generation-000001"}')
    with pytest.raises(OpenError, match="unknown dialect 'klingon'"):
        CableStore.open(tmp_path)


def set_view_version(path: Path, name: str, version: int) -> None:
    database = LevelDB(path / "generation-000001")
    meta = {"format": 1, "dialect": "legacy", "views": CATALOG.versions | {name: version}}
    database.write({b"!meta": msgpack.packb(meta)}, sync=True)
    database.close()


def test_an_outdated_view_cannot_be_read_until_rebuilt(tmp_path: Path) -> None:
    with CableStore.open(tmp_path) as store:
        store.post("default", "x")
        before = store.dump_digest()
    set_view_version(tmp_path, "messages", 0)
    expected = CATALOG.versions["messages"]
    with pytest.raises(OutdatedViewError, match=rf"messages \(found 0, expected {expected}\).*cablestore rebuild"):
        CableStore.open(tmp_path)
    with pytest.raises(OutdatedViewError):
        ClosedStore(tmp_path).export(tmp_path / "filtered", filters=Filters(channels=frozenset({"default"})))
    assert ClosedStore(tmp_path).export(tmp_path / "whole").posts == {"text": 1, "join": 1}
    with CableStore.open(tmp_path, upgrade=True) as store:
        assert store.dump_digest() == before


def test_a_view_whose_code_is_not_installed_is_rejected_and_not_upgraded(tmp_path: Path) -> None:
    CableStore.open(tmp_path).close()
    set_view_version(tmp_path, "gone", 3)
    for upgrade in (False, True):
        with pytest.raises(OpenError, match=r"not installed: gone 3.*rebuild --drop-view gone") as error:
            CableStore.open(tmp_path, upgrade=upgrade)
        assert not isinstance(error.value, OutdatedViewError)  # no rebuild makes it readable
    with pytest.raises(OpenError, match="not installed: gone 3"):
        ClosedStore(tmp_path).rebuild()
    ClosedStore(tmp_path).rebuild(drop_views=frozenset({"gone"}))
    CableStore.open(tmp_path).close()


def test_a_second_open_in_this_process_is_rejected_and_keeps_the_lock(tmp_path: Path) -> None:
    """LevelDB's own error would release the first lock, so another process could also open the store."""
    with CableStore.open(tmp_path) as store:
        with pytest.raises(StoreLockedError, match="open in this process"):
            CableStore.open(tmp_path)
        with pytest.raises(StoreLockedError, match="open in this process"):
            CableStore.open(tmp_path / ".." / tmp_path.name)
        refused = subprocess.run(
            [sys.executable, "-c", f"import cablestore; cablestore.CableStore.open({str(tmp_path)!r})"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "StoreLockedError" in refused.stderr
        assert f"open in process {os.getpid()}" in refused.stderr
        store.post("default", "still mine")
    CableStore.open(tmp_path).close()


def test_a_lock_left_by_a_killed_process_is_ignored(tmp_path: Path) -> None:
    killed = (
        f"import cablestore, os, signal; s = cablestore.CableStore.open({str(tmp_path)!r}); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", killed], check=False).returncode == -9
    assert (tmp_path / "lock").read_text().strip().isdigit()
    CableStore.open(tmp_path).close()


AS_NOBODY = """
import os, sys
import cablestore, cablestore.store.store  # before leaving root: its Python may not be readable by others
if os.getuid() == 0:
    os.setgid(65534); os.setuid(65534)
try:
    cablestore.CableStore.open(sys.argv[1], create=sys.argv[2] == "create")
except cablestore.CableStoreError as error:
    print(type(error).__name__, error)
"""


def as_nobody(path: Path, create: bool) -> str:
    command = [sys.executable, "-c", AS_NOBODY, str(path), "create" if create else "open"]
    found = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    )
    assert "Traceback" not in found.stderr, found.stderr
    return found.stdout


def open_up(path: Path) -> None:
    """Make `path` readable for another user."""
    for folder in (path, *path.parents):
        try:
            folder.chmod(folder.stat().st_mode | 0o055)
        except PermissionError:
            return


def test_a_read_only_folder_raises_a_clear_error(tmp_path: Path) -> None:
    with CableStore.open(tmp_path / "store") as store:
        store.post("default", "x")
        digest = store.dump_digest()
    open_up(tmp_path)
    for file in [tmp_path / "store", *(tmp_path / "store").rglob("*")]:
        file.chmod(0o555 if file.is_dir() else 0o444)
    said = as_nobody(tmp_path / "store", create=False)
    assert said.startswith("StorageError")
    assert "Permission denied" in said
    for file in [tmp_path / "store", *(tmp_path / "store").rglob("*")]:
        file.chmod(0o755 if file.is_dir() else 0o600)
    with CableStore.open(tmp_path / "store") as store:
        assert store.dump_digest() == digest


def test_a_folder_that_cannot_be_created_raises_a_storage_error(tmp_path: Path) -> None:
    open_up(tmp_path)
    tmp_path.chmod(0o555)
    said = as_nobody(tmp_path / "store", create=True)
    tmp_path.chmod(0o755)
    assert said.startswith("StorageError")


def test_a_closed_store_raises_an_error(tmp_path: Path) -> None:
    store = CableStore.open(tmp_path)
    store.close()
    store.close()
    with pytest.raises(StoreClosedError):
        store.post("default", "x")
    with pytest.raises(StoreClosedError):
        store.messages("default")
    with pytest.raises(StoreClosedError):
        store.ingest(raws(ANN.text("default", "x")))
    with pytest.raises(StoreClosedError):
        store.compact()
    with pytest.raises(StoreClosedError):
        store.stats()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_a_closed_store_has_no_open_files(tmp_path: Path) -> None:
    def opened() -> list[str]:
        files = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        return [file.name for file in files if file.is_relative_to(tmp_path)]

    with CableStore.open(tmp_path) as store:
        store.post("default", "word")
        assert len(store.search("word").hits) == 1
        assert "LOCK" in opened()
    assert opened() == []


# --- identity --------------------------------------------------------------------------------------


def test_the_key_is_created_when_first_needed_and_readable_only_by_its_user(tmp_path: Path) -> None:
    with CableStore.open(tmp_path) as store:
        store.ingest(raws(ANN.text("default", "x")))
        assert not (tmp_path / "identity").exists()
        public_key = store.identity.public_key
    assert stat.S_IMODE((tmp_path / "identity").stat().st_mode) == 0o600
    with CableStore.open(tmp_path) as store:
        assert store.identity.public_key == public_key


def test_the_key_has_mode_0600_for_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        save_identity(Identity.generate(), tmp_path / "key")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_keys_are_exported_and_imported(tmp_path: Path) -> None:
    with CableStore.open(tmp_path / "a") as a, CableStore.open(tmp_path / "b") as b:
        save_identity(a.identity, tmp_path / "key")
        b.import_identity(load_identity(tmp_path / "key"))
        assert b.identity == a.identity
    with CableStore.open(tmp_path / "b") as b:
        assert b.identity == load_identity(tmp_path / "key")
        with pytest.raises(IdentityError, match="has the identity"):
            b.import_identity(Identity.generate())


def test_a_key_file_is_never_overwritten(tmp_path: Path) -> None:
    save_identity(Identity.generate(), tmp_path / "key")
    before = (tmp_path / "key").read_text()
    with pytest.raises(IdentityError, match="already exists"):
        save_identity(Identity.generate(), tmp_path / "key")
    assert (tmp_path / "key").read_text() == before


def test_a_key_that_others_can_read_is_rejected(tmp_path: Path) -> None:
    save_identity(Identity.generate(), tmp_path / "key")
    for bit in (0o40, 0o20, 0o10, 0o4, 0o2, 0o1):
        (tmp_path / "key").chmod(0o600 | bit)
        with pytest.raises(IdentityError, match=rf"has mode {0o600 | bit:04o}.*chmod 600"):
            load_identity(tmp_path / "key")
    (tmp_path / "key").chmod(0o700)
    load_identity(tmp_path / "key")


@pytest.mark.parametrize("text", ["", "zz", "00" * 31, "00" * 64, "00" * 33, "ü" * 64])
def test_invalid_keys_are_rejected(text: str) -> None:
    with pytest.raises(IdentityError):
        parse_identity(text)


def test_a_libsodium_secret_key_is_a_key() -> None:
    identity = Identity.derive("x", "y")
    assert parse_identity((identity.seed + identity.public_key).hex()) == identity


def test_an_identity_does_not_print_its_secret() -> None:
    identity = Identity.generate()
    assert identity.seed.hex() not in repr(identity)
    assert repr(identity.seed) not in repr(identity)


def test_a_given_identity_is_used_and_not_written(tmp_path: Path) -> None:
    with CableStore.open(tmp_path, identity=ANN.identity) as store:
        assert store.post("default", "x").author == ANN.key
    assert not (tmp_path / "identity").exists()


def test_a_missing_key_file_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(IdentityError, match="cannot read the identity"):
        load_identity(tmp_path / "none")


@pytest.mark.parametrize("digits", ["5eed" * 16 + "5", "5eed" * 15, "5eed" * 15 + "seed", "5eed" * 31 + "seed"])
def test_a_malformed_key_file_is_named_and_not_shown(tmp_path: Path, digits: str) -> None:
    key_file = tmp_path / "key"
    key_file.write_text(digits)
    key_file.chmod(0o600)
    with pytest.raises(IdentityError, match=f"{key_file}.* hex digits") as error:
        load_identity(key_file)
    assert "5eed" not in str(error.value)
