"""Archives by content id: published on a node or in a local store, fetched, verified and imported by members."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from archive_network import Wire
from archives import CONTROL, FIRST_MS, KEY, archived, plan_of, some_weeks, store_of
from content_nodes import ScriptedNode, ServedContent, all_running, described, served, served_in_thread
from people import ANN

from cablestore import LEGACY, CableStore, Identity, Post, limits
from cablestore.archive.content.api import item_json
from cablestore.archive.content.community import CidFolder
from cablestore.archive.content.remote import ContentRemote
from cablestore.archive.content.server import ContentServer
from cablestore.archive.content.store import ContentStore
from cablestore.archive.errors import NoRoomError, UnreachableError
from cablestore.archive.fetch import ArchiveSources, fetching
from cablestore.archive.folder import ArchiveFolder
from cablestore.archive.format import index as index_format
from cablestore.archive.format.announcement import link_text, parse_link
from cablestore.archive.format.archive import decode_archive
from cablestore.archive.format.cid import CODEC_MANIFEST, Cid, ManifestFormat, manifest_cid
from cablestore.archive.format.index import VerifiedIndex
from cablestore.archive.format.magnet import Magnet
from cablestore.archive.format.period import WEEK_MS
from cablestore.archive.importer import ArchiveImportReport
from cablestore.archive.local import cid_archives, community_folder, local_archives
from cablestore.archive.member import ImportLog, import_noted, verified_by_any_profile, wanted
from cablestore.archive.publish import ARCHIVE_FILENAME, MEDIA_TYPE, NodeTarget, Publisher, PublishReport
from cablestore.errors import ArchiveError
from cablestore.protocol.crypto import post_hash

ME = CONTROL.public_key
every_form = pytest.mark.parametrize(
    ("profile", "key"), [("rfc61", None), ("rfc61", KEY), ("status-go", None), ("status-go", KEY)], ids=str
)


def made(
    folder: Path, posts: tuple[Post, ...] = some_weeks(), profile: str = "rfc61", key: bytes | None = None
) -> ArchiveFolder:
    with store_of(posts) as store:
        return archived(store, community_folder(folder, ME), plan_of(profile, key))


def published(files: ArchiveFolder, folder: Path, key: bytes | None = None) -> PublishReport:
    """Publish into a content store on disk."""
    with ContentStore.open(folder) as store:
        return Publisher(CONTROL, LEGACY, key).publish(files, store)


def published_on(files: ArchiveFolder, url: str, key: bytes | None = None) -> PublishReport:
    with NodeTarget(url) as target:
        return Publisher(CONTROL, LEGACY, key).publish(files, target)


def fetched(
    store: CableStore, cid: Cid, folder: Path, *nodes: str, key: bytes | None = None, weeks: int = 99
) -> ArchiveImportReport:
    """Fetch the newest N weeks that are missing from the store, and import them."""
    imported = ImportLog(community_folder(folder, ME), store.identity.public_key)
    total = ArchiveImportReport()
    with fetching(cid, folder, ME, LEGACY, ArchiveSources(nodes=nodes, timeout_s=5), key) as community:
        entries = wanted(community.verified, imported)[:weeks]
        for _, found in import_noted(store, community.verified, community.fetch(entries), imported, key=key):
            total += found
    return total


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ServedContent]:
    with served(tmp_path / "node") as node:
        yield node


def with_index(folder: Path, found: PublishReport, key: bytes | None = None) -> VerifiedIndex:
    with ContentStore.open(folder) as store:
        data = b"".join(store.get(found.index_cid))
    return verified_by_any_profile(data, ME, LEGACY, data_size_bytes=None, key=key)


# --- publishing --------------------------------------------------------------------------------------


@every_form
def test_archives_are_published_without_their_padding(tmp_path: Path, profile: str, key: bytes | None) -> None:
    files = made(tmp_path, profile=profile, key=key)
    plan = plan_of(profile, key)
    found = published(files, tmp_path / "content", key)
    index, torrent = with_index(tmp_path / "content", found, key), plan.verified(files)
    assert torrent is not None
    assert (index.index.profile, index.deletions) == (plan.profile, torrent.deletions)
    assert [entry.period for entry in index.index.entries] == [entry.period for entry in torrent.index.entries]
    with ContentStore.open(tmp_path / "content") as store:
        for by_cid, entry in zip(index.index.entries, torrent.index.entries, strict=True):
            content = b"".join(store.get(Cid.parse(by_cid.cid or "")))
            stored = files.stored(entry)
            assert stored == content + bytes(entry.padding_bytes)
            assert (entry.padding_bytes > 0) == (profile == "status-go")
            index.commitments[by_cid.archive_id].check_stored(content)
            records = [*decode_archive(plan.profile, content, by_cid, key)]
            assert records == [*decode_archive(plan.profile, stored, entry, key)]
        manifests = [manifest for _, manifest in store.datasets()]
    assert sorted(manifest.filename or "" for manifest in manifests)[:-1] == [ARCHIVE_FILENAME] * len(
        index.index.entries
    )


def test_deletions_that_exceed_the_index_by_content_id_are_omitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MAX_INDEX_SIZE_BYTES: an entry by content id is longer than an entry of a torrent.

    The deletions in an index may leave no space for it.
    """
    gone = ANN.text("default", "gone later", at=FIRST_MS)
    deletions = [ANN.delete(gone, at=FIRST_MS + WEEK_MS)]
    files = made(tmp_path, (*some_weeks(), gone, *deletions))
    torrent = plan_of().verified(files)
    assert torrent is not None
    monkeypatch.setattr(index_format, "MAX_INDEX_SIZE_BYTES", len(files.index_bytes() or b""))
    found = published(files, tmp_path / "content")
    index = with_index(tmp_path / "content", found)
    assert found.deletions_left_out
    assert {*found.deletions_left_out, *map(post_hash, index.deletions)} == {*map(post_hash, torrent.deletions)}


@pytest.mark.thorough("status-go-None", "rfc61-None")
@every_form
def test_equal_stores_publish_the_same_link_locally_and_on_a_node(
    tmp_path: Path, profile: str, key: bytes | None, node: ServedContent
) -> None:
    posts = list(some_weeks())
    first = published(made(tmp_path / "a", tuple(posts), profile, key), tmp_path / "content", key)
    random.Random(3).shuffle(posts)
    second = published_on(made(tmp_path / "b", tuple(posts), profile, key), node.url, key)
    assert first == second
    assert first.sent == first.archives > 3


@pytest.mark.thorough
def test_only_new_archives_are_sent_a_week_later(tmp_path: Path, node: ServedContent) -> None:
    posts = some_weeks(weeks=4)
    early = tuple(post for post in posts if post.timestamp_ms < FIRST_MS + 3 * WEEK_MS)
    files = made(tmp_path, early)
    first = published_on(files, node.url)
    nothing = PublishReport(first.index_cid, first.archives, 0, 0)
    assert published_on(files, node.url) == nothing
    assert published(files, tmp_path / "content") == first
    assert published(files, tmp_path / "content") == nothing
    made(tmp_path, posts)
    second = published_on(files, node.url)
    assert second == published(files, tmp_path / "content")
    assert second.archives == second.sent + first.archives == first.archives + 1
    entry = max(with_index(tmp_path / "content", second).index.entries, key=lambda entry: entry.period)
    with ContentStore.open(tmp_path / "content") as store:
        new = [store.manifest(cid).dataset_size_bytes for cid in (second.index_cid, Cid.parse(entry.cid or ""))]
    assert second.sent_bytes == sum(new)


def test_only_unchanged_archives_are_published(tmp_path: Path) -> None:
    files = made(tmp_path)
    data = bytearray(files.data_path.read_bytes())
    data[5_000] ^= 1
    files.data_path.write_bytes(data)
    with pytest.raises(ArchiveError, match="SHA-256"):
        published(files, tmp_path / "content")
    with pytest.raises(ArchiveError, match="Create the archives first"):
        published(ArchiveFolder(tmp_path / "nowhere"), tmp_path / "content")
    with (
        ContentStore.open(tmp_path / "content") as store,
        pytest.raises(ArchiveError, match="not signed by the control"),
    ):
        Publisher(Identity.derive("archives", "stranger"), LEGACY).publish(files, store)


def test_an_id_that_does_not_match_the_upload_is_rejected(tmp_path: Path) -> None:
    """An id of other bytes, an id of an unverifiable manifest, and no id."""
    files = made(tmp_path)
    verified = plan_of().verified(files)
    assert verified is not None
    _, first, _ = described(files.stored(verified.index.entries[0]))
    _, other, _ = described(b"other")
    unknown = Cid(CODEC_MANIFEST, b"\x07" * 32)
    cases = [
        (manifest_cid(other), item_json(manifest_cid(other), other), "returned the wrong content id"),
        (unknown, item_json(unknown, first), "Publish on another node"),
        ("nonsense", None, "invalid content id"),
    ]

    async def work(node: ScriptedNode) -> None:
        async with all_running(node) as [url]:
            await asyncio.to_thread(published_on, files, url)

    for cid, item, reason in cases:
        with pytest.raises(ArchiveError, match=reason):
            asyncio.run(work(ScriptedNode(listed={"content": []}, uploaded=str(cid).encode(), manifest=item)))


@pytest.mark.parametrize("manifest_format", ManifestFormat)
def test_members_fetch_from_nodes_of_every_generation(tmp_path: Path, manifest_format: ManifestFormat) -> None:
    """Each generation encodes other manifests, and therefore returns other ids for the same bytes."""

    async def work() -> None:
        with ContentStore.open(tmp_path / "content") as content:
            async with ContentServer(content, manifest_format=manifest_format) as server:
                found = await asyncio.to_thread(published_on, made(tmp_path), server.url)
                assert await asyncio.to_thread(published_on, made(tmp_path), server.url) == found._replace(
                    sent=0, sent_bytes=0
                )
                assert content.manifest(found.index_cid).manifest_format is manifest_format
                await asyncio.to_thread(fetched, member, found.index_cid, tmp_path / "got", server.url)

    with store_of(some_weeks()) as control, store_of(()) as member:
        asyncio.run(work())
        assert member.dump_digest() == control.dump_digest()


# --- fetching ----------------------------------------------------------------------------------------


@pytest.mark.thorough
@every_form
def test_a_member_fetches_all_archives_of_the_control_node(
    tmp_path: Path, profile: str, key: bytes | None, node: ServedContent
) -> None:
    """Fetch only the latest week, then the other weeks.

    A further fetch transfers nothing, and the local archives are imported without a node.
    """
    files = made(tmp_path, profile=profile, key=key)
    found = published_on(files, node.url, key)
    with store_of(some_weeks()) as control, store_of(()) as member, store_of(()) as other:
        assert fetched(member, found.index_cid, tmp_path / "got", node.url, key=key, weeks=1).archives == 1
        local = local_archives(tmp_path / "got", ME, LEGACY, key)
        assert local is not None
        assert local.origin == link_text(found.index_cid)
        here = [entry for entry in local.verified.index.entries if local.size_bytes(entry) is not None]
        assert here == [max(local.verified.index.entries, key=lambda entry: entry.period)]
        with pytest.raises(ArchiveError, match=r"not found\. Fetch the archive first"):
            local.stored(local.verified.index.entries[0])
        assert fetched(member, found.index_cid, tmp_path / "got", node.url, key=key).archives == found.archives - 1
        assert member.dump_digest() == control.dump_digest()
        assert fetched(member, found.index_cid, tmp_path / "got", node.url, key=key) == ArchiveImportReport()
        log = ImportLog(tmp_path / "other")
        entries = wanted(local.verified, log)
        stored = ((entry, local.stored(entry)) for entry in entries)
        assert len([*import_noted(other, local.verified, stored, log, key=key)]) == found.archives
        assert other.dump_digest() == control.dump_digest()


@pytest.mark.thorough
def test_no_archive_is_fetched_twice_and_another_node_is_used_if_one_fails(tmp_path: Path, node: ServedContent) -> None:
    """Archives that are stored but not imported, an offline node, and one without the archives: bytes are counted."""
    found = published_on(made(tmp_path, some_weeks(per_week=400)), node.url)
    folder = CidFolder(community_folder(tmp_path / "got", ME))
    with served(tmp_path / "empty") as empty, Wire(node.port) as wire:
        nodes = ("http://127.0.0.1:9", empty.url, f"http://{wire.address}")
        with fetching(found.index_cid, tmp_path / "got", ME, LEGACY, ArchiveSources(nodes=nodes)) as community:
            entries = wanted(community.verified, ImportLog(tmp_path))
            seen: list[tuple[int, int]] = []
            sizes = [len(stored) for _, stored in community.fetch(entries, lambda *moved: seen.append(moved))]
        whole_bytes = sum(sizes)
        assert seen[-1] == (whole_bytes, whole_bytes)
        assert [here for here, _ in seen] == [sum(sizes[: number + 1]) for number in range(len(sizes))]
        assert whole_bytes < wire.to_members_bytes < whole_bytes * 1.05 + 30_000
        before_bytes = wire.to_members_bytes
        with store_of(()) as member:
            assert fetched(member, found.index_cid, tmp_path / "got", *nodes).archives == found.archives
        assert wire.to_members_bytes - before_bytes < 30_000
        # Only a locally damaged archive is fetched again.
        before_bytes = wire.to_members_bytes
        victim = folder.path_of(Cid.parse(entries[0].cid or ""))
        victim.write_bytes(victim.read_bytes()[:-1] + b"\x01")
        (tmp_path / "got" / ME.hex() / "imported.json").unlink()
        with store_of(()) as member, store_of(some_weeks(per_week=400)) as control:
            fetched(member, found.index_cid, tmp_path / "got", *nodes)
            assert member.dump_digest() == control.dump_digest()
        assert sizes[0] < wire.to_members_bytes - before_bytes < sizes[0] * 1.05 + 30_000


def test_an_index_is_replaced_only_by_a_newer_one(tmp_path: Path, node: ServedContent) -> None:
    posts = some_weeks()
    early = tuple(post for post in posts if post.timestamp_ms < FIRST_MS + 3 * WEEK_MS)
    files = made(tmp_path, early)
    first = published_on(files, node.url)
    made(tmp_path, posts)
    second = published_on(files, node.url)
    with store_of(()) as member, store_of(posts) as control:
        fetched(member, first.index_cid, tmp_path / "got", node.url)
        fetched(member, second.index_cid, tmp_path / "got", node.url)
        assert member.dump_digest() == control.dump_digest()
        assert fetched(member, second.index_cid, tmp_path / "got", node.url).archives == 0
        with pytest.raises(ArchiveError, match="Use the control node's newest link"):
            fetched(member, first.index_cid, tmp_path / "got", node.url)
    folder = CidFolder(community_folder(tmp_path / "got", ME))
    assert folder.index_cid() == second.index_cid
    local = cid_archives(tmp_path / "got", ME, LEGACY, None)
    assert local is not None
    assert len(local.verified.index.entries) == second.archives


@pytest.mark.thorough
def test_a_forged_index_does_not_change_the_earlier_one_or_the_store(tmp_path: Path, node: ServedContent) -> None:
    """An index of another control node, an index under another key, an invalid index, and one that the node lacks."""
    found = published_on(made(tmp_path), node.url)
    stranger = Identity.derive("archives", "stranger")
    with store_of(some_weeks()) as store:
        plan = plan_of(key=KEY)
        foreign = archived(store, tmp_path / "foreign", type(plan)(plan.profile, stranger, LEGACY))
        sealed = archived(store, tmp_path / "sealed", plan)
    with NodeTarget(node.url) as target:
        forged = [
            (Publisher(stranger, LEGACY).publish(foreign, target).index_cid, "not signed by the control node"),
            (Publisher(CONTROL, LEGACY, KEY).publish(sealed, target).index_cid, "encrypted"),
            (manifest_cid(target.put([b"nonsense"], filename="nonsense", mimetype=MEDIA_TYPE)), "index"),
            (manifest_cid(target.put([b"\xff" * 70_000], filename="nonsense", mimetype=MEDIA_TYPE)), "index"),
            (Cid.parse(str(found.index_cid)[:-1] + "1"), "not found in the content store"),
        ]
    with store_of(()) as member:
        fetched(member, found.index_cid, tmp_path / "got", node.url)
        digest = member.dump_digest()
        for cid, reason in forged:
            with pytest.raises(ArchiveError, match=reason):
                fetched(member, cid, tmp_path / "got", node.url)
            local = cid_archives(tmp_path / "got", ME, LEGACY, None)
            assert local is not None
            assert local.origin == link_text(found.index_cid)
            assert all(local.stored(entry) for entry in local.verified.index.entries)
        assert member.dump_digest() == digest


def test_free_disk_space_and_sizes_are_checked_before_a_fetch(
    tmp_path: Path, node: ServedContent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MIN_FREE_DISK_SIZE_BYTES stays free. MAX_STORED_ARCHIVE_SIZE_BYTES and MAX_INDEX_SIZE_BYTES are not exceeded."""
    found = published_on(made(tmp_path), node.url)
    with fetching(found.index_cid, tmp_path / "got", ME, LEGACY, ArchiveSources(nodes=(node.url,))) as community:
        monkeypatch.setattr(limits, "MIN_FREE_DISK_SIZE_BYTES", 2**62)
        with pytest.raises(NoRoomError, match=r"bytes free, \d+ and a reserve of 4611686018427387904 needed"):
            next(community.fetch([*community.verified.index.entries]))
        monkeypatch.undo()
        newest = community.verified.index.entries[-1]
        assert [entry for entry, _ in community.fetch([newest])] == [newest]
        monkeypatch.setattr(limits, "MIN_FREE_DISK_SIZE_BYTES", 2**62)
        assert [entry for entry, _ in community.fetch([newest])] == [newest], "the disk needs no more space"
    folder = CidFolder(tmp_path / "other")
    with ContentRemote(found.index_cid, folder, [node.url]) as remote:
        for name in ("MAX_INDEX_SIZE_BYTES", "MAX_STORED_ARCHIVE_SIZE_BYTES"):
            monkeypatch.setattr(f"cablestore.archive.content.remote.{name}", 1_000)
        with pytest.raises(ArchiveError, match="the maximum is 1,000"):
            remote.index()
        with pytest.raises(ArchiveError, match="the maximum is 1,000"):
            remote.fetch([str(found.index_cid)])
    assert [*folder.path.iterdir()] == []


@pytest.mark.thorough
def test_a_fetch_cancelled_by_another_thread_keeps_received_data(tmp_path: Path, node: ServedContent) -> None:
    found = published_on(made(tmp_path, some_weeks(per_week=400)), node.url)
    folder = CidFolder(community_folder(tmp_path / "got", ME))
    with Wire(node.port, rate_bytes_per_s=400_000) as wire:
        with ContentRemote(found.index_cid, folder, [f"http://{wire.address}"]) as remote:
            index = verified_by_any_profile(remote.index(), ME, LEGACY, data_size_bytes=None, key=None)
            entries = wanted(index, ImportLog(tmp_path))
            coming = remote.fetch([entry.cid or "" for entry in entries])
            first = next(coming)
            threading.Timer(0.2, remote.cancel).start()
            with pytest.raises(ArchiveError, match="cancelled: received data is kept"):
                next(coming)
            with pytest.raises(ArchiveError, match="cancelled"):
                remote.index()
        assert folder.content(Cid.parse(first[0])) == first[1]
        remote.close()  # a second call has no effect
    with store_of(()) as member, store_of(some_weeks(per_week=400)) as control:
        fetched(member, found.index_cid, tmp_path / "got", node.url)
        assert member.dump_digest() == control.dump_digest()


def test_a_damaged_stored_index_is_replaced(tmp_path: Path) -> None:
    posts = some_weeks(weeks=2)
    first = published(made(tmp_path, posts[:30]), tmp_path / "node")
    second = published(made(tmp_path, posts), tmp_path / "node")
    with served_in_thread(tmp_path / "node") as node, store_of(()) as member:
        fetched(member, second.index_cid, tmp_path / "got", node.url)
        path = CidFolder(community_folder(tmp_path / "got", ME)).path_of(second.index_cid)
        path.write_bytes(path.read_bytes()[:-1])
        assert fetched(member, first.index_cid, tmp_path / "got", node.url).archives == 0
        local = cid_archives(tmp_path / "got", ME, LEGACY, None)
        assert local is not None
        assert len(local.verified.index.entries) == first.archives < second.archives


@pytest.mark.parametrize(
    ("sources", "are_local"),
    [
        (ArchiveSources(), True),
        (ArchiveSources(peers=(("127.0.0.1", 1), ("::1", 2))), True),
        (ArchiveSources(peers=(("127.0.0.1", 1), ("192.0.2.1", 2))), False),
        (ArchiveSources(peers=(("not an address", 1),)), True),
        (ArchiveSources(trackers=("http://127.0.0.1/announce",)), False),
        (ArchiveSources(dht=True), False),
        (ArchiveSources(nodes=("http://192.0.2.1",)), True),
    ],
)
def test_sources_of_torrents_are_local_if_all_peers_are(sources: ArchiveSources, are_local: bool) -> None:
    """The engine then listens only on this machine. A text that is not an address is rejected later."""
    assert sources.are_local is are_local


def test_a_fetch_without_a_reachable_peer_ends_after_its_timeout(tmp_path: Path) -> None:
    link = Magnet("ab" * 20, ME.hex())
    sources = ArchiveSources(peers=(("127.0.0.1", 9),), timeout_s=0.1)
    with pytest.raises(ArchiveError, match=r"within 0\.1 s \(1 peer"), fetching(link, tmp_path, ME, LEGACY, sources):
        pass
    assert local_archives(tmp_path, ME, LEGACY, None) is None


def test_a_fetch_without_a_reachable_node_is_rejected(tmp_path: Path) -> None:
    cid = Cid.parse("zDvZRwzmBQeyz9bfNB98bM9qwWCgRHr4ZyvgdHbjzBokpPhgtVKk")
    with pytest.raises(ArchiveError, match="no node given"):
        ContentRemote(cid, CidFolder(tmp_path), [])
    with store_of(()) as member, pytest.raises(UnreachableError, match="Try again later, or use another node"):
        fetched(member, cid, tmp_path, "http://127.0.0.1:9")
    with pytest.raises(ArchiveError, match="codex"):
        parse_link("http://127.0.0.1:9")
