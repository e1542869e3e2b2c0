"""The key of a store in its backup: it is included on request, and a lost or damaged one is written again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from backing_up import opened, require_equal, rows_of
from history import AUTHORS
from people import BOB

from cablestore import CableStore, Verdict
from cablestore.backup import backup, read_backup, restore, verify_backup
from cablestore.errors import IdentityError
from cablestore.files import folder_of
from cablestore.index.local import DROP, local_key
from cablestore.index.reader import PRIVATE_PREFIX


def test_the_key_is_included_only_on_request(tmp_path: Path) -> None:
    out = tmp_path / "backup"
    with CableStore.open(tmp_path / "store") as store:
        with pytest.raises(IdentityError, match="has no readable key"):
            backup(store, out, with_key=True)
        assert not (tmp_path / "store" / "identity").exists()
        post = store.post("default", "x")
        store.moderation.hide(posts=[post.hash], private=True)
        assert (backup(store, out).has_key, (out / "identity").exists()) == (False, False)
        assert sum(key.startswith(PRIVATE_PREFIX) for key, _ in rows_of(store)) == 1
        expected = rows_of(store)
    with pytest.raises(IdentityError, match=r"1 local-only posts.*--key.*--without-local-only"):
        restore(out, tmp_path / "restored")
    with pytest.raises(IdentityError, match=r"wrong key .* is signed by the key"):
        restore(out, tmp_path / "restored", identity=AUTHORS[1])
    report = restore(out, tmp_path / "without", without_sealed=True)
    assert (report.posts, report.sealed, report.has_key) == (read_backup(folder_of(out)).items("posts"), 0, False)
    with CableStore.open(tmp_path / "without") as store:
        assert store.check().is_clean
    assert backup(tmp_path / "store", out, with_key=True).has_key
    assert (out / "identity").stat().st_mode & 0o777 == 0o600
    assert backup(tmp_path / "store", out).has_key  # the key is kept
    with pytest.raises(IdentityError, match="wrong key"):
        restore(out, tmp_path / "restored", identity=AUTHORS[1])
    restore(out, tmp_path / "restored")
    assert rows_of(tmp_path / "restored") == expected


def test_a_lost_or_damaged_key_is_detected_and_written_again(tmp_path: Path) -> None:
    out = tmp_path / "backup"
    key = out / "identity"
    with opened(tmp_path / "store") as store:
        store.post("default", "x")
        backup(store, out, with_key=True)
        whole = key.read_text()
        key.unlink()
        assert [problem.file for problem in verify_backup(out)[1]] == ["identity"]
        report = backup(store, out)
        assert (report.has_key, report.has_lost_key) == (False, True)
        assert not backup(store, out).has_lost_key
        assert read_backup(folder_of(out)).key is None
        require_equal(store, out, tmp_path / "without key")
        assert backup(store, out, with_key=True).has_key
        for full in (False, True):
            for damaged in ("", whole[:-9], "0" * 64, "\xff"):
                key.write_bytes(damaged.encode("latin-1"))
                assert [problem.file for problem in verify_backup(out)[1]] == ["identity"]
                assert backup(store, out, with_key=True, full=full).has_key
                assert (key.read_text(), key.stat().st_mode & 0o777) == (whole, 0o600)
        key.chmod(0o644)
        backup(store, out, with_key=True)
        assert key.stat().st_mode & 0o777 == 0o600
        known = key.stat().st_ino
        backup(store, out, with_key=True)
        assert key.stat().st_ino == known
        backup(store, out, with_key=True, full=True)
        assert key.stat().st_ino != known
        require_equal(store, out, tmp_path / "restored")


@pytest.mark.parametrize("left", [None, "damaged"])
def test_a_restore_does_not_need_the_key_in_the_backup(tmp_path: Path, left: str | None) -> None:
    out = tmp_path / "backup"
    with opened(tmp_path / "store") as store:
        post = store.post("default", "x")
        store.moderation.hide(posts=[post.hash], private=True)
        backup(store, out, with_key=True)
        (out / "identity").unlink()
        if left is not None:
            (out / "identity").write_text(left)
        with pytest.raises(IdentityError, match=r"--key"):
            restore(out, tmp_path / "restored")
        with pytest.raises(IdentityError, match="wrong key"):
            restore(out, tmp_path / "restored", identity=AUTHORS[1])
        restore(out, tmp_path / "restored", identity=AUTHORS[0])
        assert rows_of(tmp_path / "restored") == rows_of(store)
        assert not restore(out, tmp_path / "the rest", without_sealed=True).has_key
    with CableStore.open(tmp_path / "the rest") as store:
        assert store.check().is_clean


def test_a_restore_without_local_only_posts_accepts_the_posts_that_they_dropped(tmp_path: Path) -> None:
    """An incremental backup writes only new posts, also with local-only posts."""
    out = tmp_path / "backup"
    counted: list[int] = []
    with opened(tmp_path / "store") as store:
        store.post("default", "x")
        store.moderation.drop(users=[BOB.key], private=True)
    with opened(tmp_path / "store") as store:  # opening it records that the drops were decided
        report = backup(store, out, progress=counted.append)
        assert (report.is_full, report.sealed, report.posts, sum(counted)) == (True, 1, 2, 2)
        store.post("default", "y")
        again = backup(store, out)
        assert (again.is_full, again.posts) == (False, 3)
    for name, verdict in (("whole", Verdict.DROPPED), ("rest", Verdict.ACCEPTED)):
        restore(out, tmp_path / name, identity=AUTHORS[0], without_sealed=name == "rest")
        with opened(tmp_path / name) as store:
            assert [outcome.verdict for outcome in store.ingest([BOB.text("default", "z").raw])] == [verdict]
            has_drop = any(key.startswith(local_key(DROP)) for key, _ in rows_of(store))
            assert has_drop == (verdict is Verdict.DROPPED)
            assert store.check().is_clean


def test_a_signature_is_valid_only_for_exactly_the_same_fields(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        backup(store, tmp_path / "backup")
    manifest = read_backup(folder_of(tmp_path / "backup"))
    assert manifest.is_signed
    assert manifest.signed(BOB.identity).is_signed
    for other in (
        replace(manifest, signature=None),
        replace(manifest, signed_by=None),
        replace(manifest, signed_by=None, signature=None),
        replace(manifest, signed_by=BOB.key.hex()),
        replace(manifest, made_ms=manifest.made_ms + 1),
        replace(manifest, through=manifest.through + 1),
    ):
        assert not other.is_signed
