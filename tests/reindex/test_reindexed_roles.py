"""A user who declined roles has none in a store from an export on Spark, as after an import."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from moderated import own, verdicts_of
from people import ANN, BOB, START_MS
from reindexing import spark_session

pytest.importorskip("pyspark")

from cablestore import Block, CableStore, Info, Role, Unblock
from cablestore.errors import ExportError
from cablestore.export import read_manifest
from cablestore.index.local import CONSENT
from cablestore.moderation import UserRole
from cablestore.reindex import reindex


@pytest.fixture(scope="module", autouse=True)
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with spark_session(tmp_path_factory.mktemp("spark")):
        yield


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """Export a store that dropped the post/info in which Bob declined an admin's role."""
    with own() as store:
        verdicts_of(
            store,
            ANN.post(Role("", 0, "", BOB.key, UserRole.ADMIN.in_post), at=START_MS + 5),
            BOB.post(Info.of(name="bob", accept_role=False), at=START_MS + 10),
            ANN.post(Block("", 0, (BOB.key,), 1, 0), at=START_MS + 20),
        )
        verdicts_of(store, ANN.post(Unblock("", 0, (BOB.key,), 1), at=START_MS + 30))
        store.moderation.sweep()
        store.export(tmp_path / "export")
    return tmp_path / "export"


def consents(store: CableStore) -> list[tuple[bytes, bytes]]:
    with store.snapshot() as snapshot:
        return list(snapshot.reader.local_rows(CONSENT))


@pytest.mark.thorough
def test_a_declined_role_stays_declined(export: Path, tmp_path: Path) -> None:
    with own(tmp_path / "imported") as store:
        store.import_exports([export])
        expected = consents(store)
    reindex([export], tmp_path / "new")
    with own(tmp_path / "new") as store:
        assert consents(store) == expected != []
        decisions = store.moderation.decisions
        assert decisions is not None
        assert decisions.role(BOB.key) is UserRole.USER
        assert store.check().is_clean


@pytest.mark.thorough
def test_damaged_statements_stop_the_job_or_are_omitted_and_named(export: Path, tmp_path: Path) -> None:
    [segment] = read_manifest(export).consent_segments
    path = export / segment.file
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ExportError, match=segment.file):
        reindex([export], tmp_path / "new")
    assert not (tmp_path / "new").exists()
    report = reindex([export], tmp_path / "new", skip_corrupt=True)
    assert segment.file in "".join(report.derived.left_out.values())
