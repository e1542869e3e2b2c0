"""Local values of the user: every new database preserves them, and other users never receive them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from people import ANN, raws

from cablestore import CableStore, limits
from cablestore.errors import ArgumentError
from cablestore.store.closed import ClosedStore, locked_folder
from cablestore.store.local_values import LocalValues


def test_values_are_kept_by_name_and_key(store: CableStore) -> None:
    local = store.local
    local.put("window", "size", b"80x24")
    local.put("window", "", b"\x00\xff")
    local.put("window!", "size", b"other name")
    local.put("win", "dow!size", b"other key")
    local.put_json("seen", "käse !\n", {"at": [1, None, "ä"]})
    assert local.get("window", "size") == b"80x24"
    assert list(local.items("window")) == [("", b"\x00\xff"), ("size", b"80x24")]
    assert list(local.items("win")) == [("dow!size", b"other key")]
    assert local.get_json("seen", "käse !\n") == {"at": [1, None, "ä"]}
    assert [key for key, _ in local.items("seen")] == ["käse !\n"]
    local.delete("window", "size")
    local.delete("window", "never there")
    assert local.get("window", "size") is None
    assert local.get_json("seen", "nothing") is None
    assert list(local.items("nothing")) == []


def test_names_of_values_do_not_collide_with_rows_of_the_store(store: CableStore) -> None:
    for name in ("witnessed", "seed", "judged", "noted", "draft", "muted", "value"):
        store.local.put(name, "", b"x")
    store.local.set_draft("default", "text")
    assert store.moderation.seed is None
    assert list(store.local.drafts()) == [("default", "text")]
    assert list(store.local.muted()) == []


def test_drafts_and_muted_channels_are_stored(store: CableStore) -> None:
    local = store.local
    assert (local.draft("default"), local.is_muted("default")) == ("", False)
    local.set_draft("default", "I wanted")
    local.mute("a!b")
    assert (local.draft("default"), local.is_muted("a!b"), list(local.muted())) == ("I wanted", True, ["a!b"])
    local.set_draft("default", "")
    local.unmute("a!b")
    assert (list(local.drafts()), list(local.muted())) == ([], [])


def test_bad_values_are_rejected_and_stored_ones_are_kept(store: CableStore) -> None:
    local = store.local
    local.put("name", "key", b"kept")
    with pytest.raises(ArgumentError, match="262,145 bytes, the maximum is 262,144"):
        local.put("name", "key", bytes(limits.MAX_LOCAL_VALUE_SIZE_BYTES + 1))
    with pytest.raises(ArgumentError, match="the maximum is"):
        local.set_draft("default", "x" * (limits.MAX_LOCAL_VALUE_SIZE_BYTES + 1))
    for name, key in (
        ("", "key"),
        ("n" * (limits.MAX_LOCAL_NAME_SIZE_BYTES + 1), ""),
        ("name", "ä" * 257),
        ("\udc80", ""),
        ("name", "\udc80"),
    ):
        with pytest.raises(ArgumentError):
            local.put(name, key, b"x")
    for use_channel in (local.draft, local.mute, local.unmute, local.is_muted):
        with pytest.raises(ArgumentError, match="the channel"):
            use_channel("\udc80")
    for value in (object(), float("nan"), {1, 2}, "\udc80"):
        with pytest.raises(ArgumentError):
            local.put_json("name", "key", value)
    local.put("name", "nested", b"[" * 100_000)
    with pytest.raises(ArgumentError, match="not JSON"):
        local.get_json("name", "nested")
    local.delete("name", "nested")
    with pytest.raises(ArgumentError, match="not JSON"):
        local.get_json("name", "key")
    local.put("name", "deep", b"[" * 100_000)
    with pytest.raises(ArgumentError, match=r"nested too deeply\. Read it with `get`"):
        local.get_json("name", "deep")
    local.put("name", "key" * 100, bytes(limits.MAX_LOCAL_VALUE_SIZE_BYTES))
    assert local.get("name", "key") == b"kept"


def fill(local: LocalValues) -> None:
    local.put("name", "key", b"value")
    local.set_draft("default", "draft")
    local.mute("default")


def assert_full(store: CableStore) -> None:
    local = store.local
    assert (local.get("name", "key"), local.draft("default")) == (b"value", "draft")
    assert local.is_muted("default")
    assert store.check().is_clean


def test_a_rebuild_keeps_local_values(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with CableStore.open(path) as store:
        store.post("default", "hello")
        fill(store.local)
        sequence = store.last_sequence
        store.rebuild()
        assert_full(store)
    ClosedStore(path).rebuild()
    with CableStore.open(path) as store:
        assert_full(store)
        assert store.last_sequence == sequence


def test_going_back_keeps_local_values(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with CableStore.open(path) as store:
        store.post("default", "hello")
        store.local.put("old", "gone by then", b"x")
        store.local.set_draft("default", "earlier")
    with locked_folder(path) as folder:
        first = folder.header.generation
        shutil.copytree(folder.database_path, tmp_path / "copy")
        folder.activate(folder.adopt(tmp_path / "copy"), keep=True)
    with CableStore.open(path) as store:
        fill(store.local)
        store.local.delete("old", "gone by then")
        store.ingest(raws(ANN.text("default", "later")))
        before = [event[:3] for event in store.events(timeout_s=0)]
    ClosedStore(path).roll_back(first)
    with CableStore.open(path) as store:
        assert_full(store)
        assert store.local.get("old", "gone by then") is None
        assert [event[:3] for event in store.events(timeout_s=0)] == before


def test_exports_have_no_local_values(tmp_path: Path) -> None:
    with CableStore.open(tmp_path / "a") as store:
        store.ingest(raws(ANN.text("default", "hello")))
        digest = store.dump_digest()
        fill(store.local)
        assert store.dump_digest() == digest
        store.export(tmp_path / "export")
    found = b"".join(file.read_bytes() for file in (tmp_path / "export").rglob("*") if file.is_file())
    assert found
    for secret in (b"draft", b"!local!"):
        assert secret not in found
    with CableStore.open(tmp_path / "b") as store:
        store.import_exports([tmp_path / "export"])
        assert store.local.draft("default") == ""
        assert store.dump_digest() == digest
