"""Forged files in the folder of a backup are not restored.

The checksums are right in every case, so only signatures detect the change.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from backing_up import hashes_of, opened, rows_of
from forging import add_posts, add_rows, sign, strip_signature
from history import AUTHORS, NOW_MS
from people import ANN, BOB, raws

from cablestore import CableStore, Identity, StoreOptions, limits
from cablestore.backup import backup, restore, verify_backup
from cablestore.errors import BackupError, IdentityError
from cablestore.index.local import CONFIRMED, DRAFT, SEED, local_key
from cablestore.index.packing import pack
from cablestore.index.reader import data_key, tombstone_key
from cablestore.index.tombstone import Skeleton, Tombstone
from cablestore.protocol.body import TEXT
from cablestore.sds import causal_log

Run = Callable[..., tuple[int, str, str]]
STRANGER = Identity.derive("forged", "stranger")
GENUINE = BOB.text("default", "never said", at=NOW_MS - 9).raw
FORGED = GENUINE[:40] + bytes([GENUINE[40] ^ 1]) + GENUINE[41:]
AHEAD = BOB.text("default", "next month", at=NOW_MS + 30 * 86_400_000)


def now() -> int:
    return NOW_MS + 1


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Return a backup of a store with a causal log, drafts, a deletion and a local-only post."""
    with opened(tmp_path / "store") as store, causal_log(store) as log:
        gone = store.post("default", "gone")
        store.delete(gone.hash)
        hidden = store.post("default", "hidden")
        store.moderation.hide(posts=[hidden.hash], private=True)
        store.local.set_draft("default", "half a sentence")
        log.channel("room", "ann").send(b"one", NOW_MS)
        backup(store, tmp_path / "backup")
    return tmp_path / "backup"


@pytest.mark.parametrize("identity", [AUTHORS[0], None], ids=["with the key", "without"])
@pytest.mark.parametrize("is_signed", [False, True], ids=["unsigned", "signed by a stranger"])
def test_forged_posts_are_rejected_and_the_rest_is_restored(
    tmp_path: Path, out: Path, identity: Identity | None, is_signed: bool
) -> None:
    known = hashes_of_store(tmp_path / "store")
    add_posts(out, FORGED, AHEAD.raw, b"no post", FORGED[:70])
    files = {problem.file for problem in verify_backup(out, clock=now)[1]}
    assert {name.partition("-")[0] for name in files} == {"backup.json", "posts"}
    if is_signed:
        sign(out, STRANGER)
    else:
        strip_signature(out)
    assert [name.partition("-")[0] for name in sorted({p.file for p in verify_backup(out, clock=now)[1]})] == ["posts"]
    if is_signed and identity is not None:
        with pytest.raises(IdentityError, match="is signed by the key"):
            restore(out, tmp_path / "restored", identity=identity, clock=now)
        return
    report = restore(out, tmp_path / "restored", identity=identity, without_sealed=identity is None, clock=now)
    assert report.rejected == {"posts: bad signature": 1, "posts: too far in the future": 1, "posts: malformed": 2}
    assert (report.is_complete, report.is_authentic) == (False, False)
    with opened(tmp_path / "restored") as store:
        assert hashes_of(store) == known
        assert store.check(signatures=True).is_clean


def hashes_of_store(path: Path) -> list[bytes]:
    with opened(path) as store:
        return hashes_of(store)


def test_a_changed_manifest_is_detected_by_its_signature(tmp_path: Path, out: Path) -> None:
    """The posts are authentic, but some were removed."""
    add_posts(out, BOB.text("default", "genuine", at=NOW_MS - 9).raw)
    [problem] = verify_backup(out, clock=now)[1]
    assert (problem.file, "invalid signature" in problem.what) == ("backup.json", True)
    report = restore(out, tmp_path / "restored", identity=AUTHORS[0], clock=now)
    assert (report.is_complete, report.is_authentic, report.rejected) == (False, False, {})
    assert [found.file for found in report.problems] == ["backup.json"]


def test_posts_of_the_future_are_rejected_even_from_an_authentic_backup(tmp_path: Path) -> None:
    ahead_ms = NOW_MS + limits.MAX_FUTURE_MS * 3
    with CableStore.open(
        tmp_path / "store", options=StoreOptions(clock=lambda: ahead_ms), identity=AUTHORS[0]
    ) as store:
        store.ingest(raws(ANN.text("default", "now", at=NOW_MS), ANN.text("default", "later", at=ahead_ms)))
        backup(store, tmp_path / "backup")
    report = restore(tmp_path / "backup", tmp_path / "restored", identity=AUTHORS[0], clock=now)
    assert (report.is_authentic, report.posts, report.rejected) == (True, 1, {"posts: too far in the future": 1})
    with opened(tmp_path / "restored") as store:
        assert store.check(signatures=True).is_clean


def forged_rows() -> dict[str, tuple[bytes, bytes]]:
    target, author = BOB.text("default", "alive", at=NOW_MS - 7), STRANGER.public_key
    bones = Skeleton(TEXT, NOW_MS - 7, "default", ())
    stone = Tombstone(target.hash, target.author, NOW_MS - 6, b"\x07" * 32, bones)
    return {
        "draft": (local_key(DRAFT, b"default"), b"send this"),
        "seed": (local_key(SEED), pack([b"\x02" + author, NOW_MS - 5, None])),
        "witnessed": (local_key(CONFIRMED, target.hash_hex), target.author),
        "tombstone": (tombstone_key(target.hash_hex, target.author.hex().encode()), stone.encode()),
        "no tombstone": (tombstone_key(target.hash_hex, author.hex().encode()), b"\xc1"),
    }


@pytest.mark.parametrize("name", forged_rows())
def test_forged_rows_are_not_restored(tmp_path: Path, out: Path, name: str) -> None:
    """From a backup without a valid signature, local rows and tombstones without their post/delete are not restored."""
    with opened(tmp_path / "store") as store:
        expected = store.dump_digest()
    add_rows(out, "rows", forged_rows()[name])
    for spoil in (lambda _: None, strip_signature):
        spoil(out)
        target = tmp_path / f"restored-{spoil is strip_signature}"
        report = restore(out, target, identity=AUTHORS[0], clock=now)
        assert report.left_out_rows > 0
        assert bool(report.rejected) is ("tombstone" in name)
        with opened(target) as store:
            assert store.dump_digest() == expected
            assert list(store.local.drafts()) == []
            assert store.moderation.seed is None
            assert not store.ingest(raws(BOB.text("default", "alive", at=NOW_MS - 7)))[0].reason
            assert store.check(signatures=True).is_clean


@pytest.mark.parametrize("kind", ["rows", "arrivals"])
def test_rows_of_another_kind_are_rejected_as_damage(tmp_path: Path, out: Path, kind: Any) -> None:
    """A post among the rows would bypass the verification of posts."""
    add_rows(out, kind, (data_key(b"ab" * 32), FORGED))
    assert any(kind in problem.file for problem in verify_backup(out, clock=now)[1])
    with pytest.raises(BackupError, match="not a row of this kind"):
        restore(out, tmp_path / "restored", identity=AUTHORS[0], clock=now)
    assert any(kind in problem.file for problem in salvaged(tmp_path, out))


def salvaged(tmp_path: Path, out: Path) -> Any:
    return restore(out, tmp_path / "salvaged", identity=AUTHORS[0], salvage=True, clock=now).problems


def test_causal_logs_are_restored_only_if_the_key_signed_them(tmp_path: Path, out: Path) -> None:
    """Causal logs have messages that are sent again, so forged ones would be sent in the user's name."""
    assert restore(out, tmp_path / "own", identity=AUTHORS[0], clock=now).causal_log_rows > 0
    strip_signature(out)
    assert restore(out, tmp_path / "other", identity=AUTHORS[0], clock=now).causal_log_rows == 0
    assert not (tmp_path / "other" / "sds").exists()
    assert restore(out, tmp_path / "trusted", identity=AUTHORS[0], unverified=True, clock=now).causal_log_rows > 0


def test_a_backup_continues_only_a_backup_with_its_own_signature(tmp_path: Path, out: Path) -> None:
    """If a backup continued a forged one, it would sign forged data."""
    add_posts(out, FORGED)
    with opened(tmp_path / "store") as store:
        assert backup(store, out).is_full
        assert verify_backup(out, clock=now)[1] == []
        sign(out, STRANGER)
        assert backup(store, out).is_full
        assert not backup(store, out).is_full
        assert restore(out, tmp_path / "restored", identity=AUTHORS[0], clock=now).is_authentic
        assert rows_of(tmp_path / "restored") == rows_of(store)


def test_the_command_reports_rejected_posts(tmp_path: Path, run: Run) -> None:
    path, out = tmp_path / "store", tmp_path / "backup"
    with CableStore.open(path) as store:
        store.post("default", "x")
        backup(store, out)
    add_posts(out, FORGED)
    status, printed, _ = run("backup", out, "--check")
    assert (status, "that a restore rejects" in printed, "no problems found" in printed) == (1, True, False)
    words = ("restore", out, "--key", path / "identity", "--json")
    status, printed, _ = run(*words, "-s", tmp_path / "restored")
    fields = json.loads(printed.splitlines()[-1])
    assert (status, fields["posts"], fields["rejected"], fields["authentic"]) == (1, 2, 1, False)
    assert fields["left_out_rows"] > 0
    assert run("check", "--signatures", "-s", tmp_path / "restored")[0] == 0
    assert run("backup", out, "-s", path)[0] == 0
    assert run(*words, "-s", tmp_path / "again")[0] == 0


def test_a_restore_with_the_wrong_key_names_the_key_that_signed(tmp_path: Path, out: Path) -> None:
    with pytest.raises(BackupError, match="not a finished backup"):
        restore(tmp_path / "store", tmp_path / "restored")
    with pytest.raises(IdentityError, match=AUTHORS[0].public_key.hex()):
        restore(out, tmp_path / "restored", identity=STRANGER, without_sealed=True)
