"""What earlier versions wrote is read: stores, exports, archives and causal logs, kept as they left them in `released/`.

`expected.json` beside them says what the version that wrote them answered.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from archives import KEY, bring, plan_of
from folders import TESTS

from cablestore import CableStore
from cablestore.archive.folder import ArchiveFolder
from cablestore.backup import backup, restore, verify_backup
from cablestore.errors import OutdatedViewError
from cablestore.export import verify_export
from cablestore.index.view import Catalog
from cablestore.views import CATALOG

ARCHIVES = sorted((TESTS / "released").glob("*.tar.xz"))
WITHOUT_ACTS = Catalog(
    tuple(replace(view, version=4) if view.name == "reverse" else view for view in CATALOG.views if view.name != "acts")
)
"""The views of 0.7.0 to 0.10.0."""
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(params=ARCHIVES, ids=[path.name.removesuffix(".tar.xz") for path in ARCHIVES])
def released(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path / "released", filter="data")
    return tmp_path / "released"


def expected_in(released: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((released / "expected.json").read_text())
    return found


def found_in(store: CableStore) -> dict[str, Any]:
    """Return what a store answers, in the form of `expected.json`."""
    channels = list(store.channels())
    return {
        "channels": [[channel.name, channel.topic, channel.members] for channel in channels],
        "posts": [key.removeprefix(b"!data!").decode() for key, _ in store.dump() if key.startswith(b"!data!")],
        "messages": {
            channel.name: [message.hash.hex() for message in store.messages(channel.name, limit=500).messages]
            for channel in channels
        },
        "heads": {channel.name: sorted(head.hex() for head in store.heads(channel.name)) for channel in channels},
    }


def dead_in(store: CableStore) -> list[list[str]]:
    """Return target and author of each tombstone."""
    prefix = b"!chat!deleted!"
    return sorted(key.removeprefix(prefix).decode().split("!") for key, _ in store.dump() if key.startswith(prefix))


def test_a_store_is_backed_up_as_it_is_and_restored_with_the_views_of_this_version(
    released: Path, tmp_path: Path
) -> None:
    report = backup(released / "store", tmp_path / "backup", with_key=True)
    assert (report.posts > 0, report.sealed, verify_backup(tmp_path / "backup")[1]) == (True, 1, [])
    with pytest.raises(OutdatedViewError):
        CableStore.open(released / "store")  # a backup changes nothing
    restore(tmp_path / "backup", tmp_path / "restored")
    with (
        CableStore.open(tmp_path / "restored") as restored,
        CableStore.open(released / "store", upgrade=True) as upgraded,
    ):
        assert restored.dump_digest() == upgraded.dump_digest()
        assert restored.identity == upgraded.identity
        assert restored.check(signatures=True).is_clean


def test_a_store_is_rebuilt_where_its_views_are_outdated_and_says_what_it_said(released: Path) -> None:
    """0.6.0 has outdated views. 0.7.0 lacks the view of acts, which the reverse rows list; its rows are the same."""
    expected = expected_in(released)
    with pytest.raises(OutdatedViewError, match="rebuild"):
        CableStore.open(released / "store")
    if "dump" in expected:
        with CableStore.open(released / "store", catalog=WITHOUT_ACTS) as store:
            assert found_in(store).items() <= expected.items()
            assert store.dump_digest() == expected["dump"]
    with CableStore.open(released / "store", upgrade=True) as store:
        found = found_in(store)
        if "local" in expected:
            with store.snapshot() as snapshot:
                local = [[key.hex(), value.hex()] for key, value in snapshot.reader.prefix(b"!local!")]
            judged = [b"!local!judged!".hex(), store.identity.public_key.hex()]
            swept = [b"!local!swept!".hex(), ""]
            assert [row for row in local if row not in (judged, swept)] == expected["local"] != []
        assert {name: expected[name] for name in found} == found
        assert dead_in(store) == sorted(stone[:2] for stone in expected["tombstones"])
        assert store.check(signatures=True).is_clean
        assert sum(1 for key, _ in store.dump() if key.startswith(b"!private!")) == 1


def test_an_export_is_verified_and_imported(released: Path, tmp_path: Path, run: Run) -> None:
    assert verify_export(released / "export", signatures=True).is_clean
    code, _, err = run("import", released / "export", "-s", tmp_path / "new")
    assert (code, err) == (0, "")
    with CableStore.open(tmp_path / "new") as store:
        expected = expected_in(released)
        found = found_in(store)
        assert {name: expected[name] for name in found} == found
        assert dead_in(store) == sorted(stone[:2] for stone in expected["tombstones"])
        assert store.check().is_clean


def test_archives_are_imported(released: Path) -> None:
    with CableStore.in_memory() as store:
        imported = bring(store, ArchiveFolder(released / "archives"), plan_of("rfc61", KEY))
        assert imported.posts > 50
        assert set(found_in(store)["posts"]) <= set(expected_in(released)["posts"])
        assert store.check().is_clean


def test_causal_logs_go_on(released: Path, run: Run) -> None:
    code, out, err = run("sds", "status", "-s", released / "store", "--json")
    assert (code, err) == (0, "")
    [status] = [json.loads(line) for line in out.splitlines()]
    assert (status["channel"], status["messages"], status["waiting"], status["missing"]) == ("room", 2, 1, 1)
