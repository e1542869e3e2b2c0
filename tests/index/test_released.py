"""Files of earlier versions, as these versions left them in `released/`: stores, exports, archives and causal logs.

`expected.json` beside them has the answers of the version that wrote them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from archives import KEY, bring, plan_of
from release_sample import SAMPLES, dead_in, found_by_user, found_in, local_in, make_sample, unpack

from cablestore import CableStore, StoreOptions
from cablestore.archive.folder import ArchiveFolder
from cablestore.backup import backup, restore, verify_backup
from cablestore.errors import OutdatedViewError
from cablestore.export import verify_export
from cablestore.views import CATALOG

VERSIONS = sorted(path.name.removesuffix(".tar.xz") for path in SAMPLES.glob("*.tar.xz"))
CATALOGS = {"0.12.4": CATALOG}
"""The views with which a store is opened as its version left it. Other stores are rebuilt first."""
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def released(version: str, tmp_path: Path) -> Path:
    unpack(version, tmp_path / "released")
    return tmp_path / "released"


def expected_in(released: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((released / "expected.json").read_text())
    return found


def require_upgrade(store: Path, version: str) -> None:
    """Open a store if its views are current. Otherwise check that opening it fails."""
    if CATALOGS.get(version) is CATALOG:
        CableStore.open(store).close()
        return
    with pytest.raises(OutdatedViewError, match="rebuild"):
        CableStore.open(store)


def test_a_store_is_backed_up_unchanged_and_restored_with_current_views(
    version: str, released: Path, tmp_path: Path
) -> None:
    report = backup(released / "store", tmp_path / "backup", with_key=True)
    assert (report.posts > 0, report.sealed, verify_backup(tmp_path / "backup")[1]) == (True, 1, [])
    require_upgrade(released / "store", version)  # a backup changes nothing
    restore(tmp_path / "backup", tmp_path / "restored")
    with (
        CableStore.open(tmp_path / "restored") as restored,
        CableStore.open(released / "store", upgrade=True) as upgraded,
    ):
        assert restored.dump_digest() == upgraded.dump_digest()
        assert restored.identity == upgraded.identity
        assert found_by_user(restored) == found_by_user(upgraded)
        assert restored.check(signatures=True).is_clean


def test_a_store_with_outdated_views_is_rebuilt_and_returns_the_same(version: str, released: Path) -> None:
    expected = expected_in(released)
    require_upgrade(released / "store", version)
    if version in CATALOGS:
        with CableStore.open(released / "store", options=StoreOptions(catalog=CATALOGS[version])) as store:
            assert found_in(store).items() <= expected.items()
            assert store.dump_digest() == expected["dump"]
    with CableStore.open(released / "store", upgrade=True) as store:
        found = found_in(store)
        assert local_in(store) == expected["local"] != []
        assert found_by_user(store).items() <= expected.items()
        assert {name: expected[name] for name in found} == found
        assert dead_in(store) == sorted(stone[:2] for stone in expected["tombstones"])
        assert store.check(signatures=True).is_clean
        assert sum(1 for key, _ in store.dump() if key.startswith(b"!private!")) == 1


def test_a_sample_of_this_version_is_created(tmp_path: Path) -> None:
    """Before a release that changed a format on disk, `tests/support/release_sample.py` adds it."""
    make_sample(tmp_path)
    expected = expected_in(tmp_path)
    assert expected["acts"] == 2
    assert expected["hidden"] != []
    assert verify_export(tmp_path / "export").is_clean


def test_an_export_is_verified_and_imported(released: Path, tmp_path: Path, run: Run) -> None:
    assert verify_export(released / "export", signatures=True).is_clean
    code, _, err = run("import", released / "export", "-s", tmp_path / "new")
    assert (code, err) == (0, "")
    with CableStore.open(tmp_path / "new") as store:
        expected = expected_in(released)
        found = found_in(store)
        assert {name: expected["elsewhere"][name] for name in found} == found
        assert dead_in(store) == sorted(stone[:2] for stone in expected["tombstones"])
        assert store.check().is_clean


def test_archives_are_imported(released: Path) -> None:
    with CableStore.in_memory() as store:
        imported = bring(store, ArchiveFolder(released / "archives"), plan_of("rfc61", KEY))
        assert imported.posts > 50
        assert set(found_in(store)["posts"]) <= set(expected_in(released)["posts"])
        assert store.check().is_clean


def test_causal_logs_are_read(released: Path, run: Run) -> None:
    code, out, err = run("sds", "status", "-s", released / "store", "--json")
    assert (code, err) == (0, "")
    [status] = [json.loads(line) for line in out.splitlines()]
    assert (status["channel"], status["messages"], status["waiting"], status["missing"]) == ("room", 2, 1, 1)
