"""Exports without the posts that moderation hides in public, and imports into a store with drops."""

from __future__ import annotations

from pathlib import Path

from people import ANN, BOB, CYD, START_MS, raws

from cablestore import Block, CableStore, Identity, Info, Post, StoreOptions
from cablestore.export import Filters, read_manifest
from cablestore.moderation import UserRole
from cablestore.store.closed import ClosedStore

WITHOUT_HIDDEN = Filters(without_hidden=True)


def texts() -> list[Post]:
    return [person.text("default", "x") for person in (ANN, BOB, CYD)]


def exported(folder: Path) -> set[bytes]:
    with CableStore.in_memory(options=StoreOptions(verify_threads=1)) as other:
        other.import_exports([folder])
        return {message.hash for message in other.messages("default", hidden="show").messages}


def test_an_option_omits_hidden_messages(tmp_path: Path) -> None:
    """Exports of open and closed stores omit the messages, and record this.

    Posts that are hidden in private are exported.
    """
    posts = texts()
    with CableStore.open(tmp_path / "store") as store:
        store.ingest(raws(*posts))
        store.moderation.hide(users=[ANN.key], reason="spam")
        store.moderation.hide(users=[BOB.key], private=True)
        manifest = store.export(tmp_path / "open", filters=WITHOUT_HIDDEN)
        store.export(tmp_path / "all")
    ClosedStore(tmp_path / "store").export(tmp_path / "closed", filters=WITHOUT_HIDDEN)
    assert exported(tmp_path / "open") == exported(tmp_path / "closed") == {post.hash for post in posts[1:]}
    assert exported(tmp_path / "all") == {post.hash for post in posts}
    assert read_manifest(tmp_path / "open").filters == manifest.filters == WITHOUT_HIDDEN
    assert b"without_hidden" not in (tmp_path / "all" / "manifest.json").read_bytes()


def test_an_import_does_not_restore_dropped_posts(tmp_path: Path) -> None:
    posts = texts()
    with CableStore.in_memory(options=StoreOptions(verify_threads=1)) as source:
        source.ingest(raws(*posts))
        source.export(tmp_path / "all")
    with CableStore.in_memory(options=StoreOptions(verify_threads=1)) as store:
        store.ingest(raws(posts[0]))
        store.moderation.drop(users=[ANN.key])
        summary = store.import_exports([tmp_path / "all"])
        assert summary.verdicts["dropped"] == 1
        assert {message.author for message in store.messages("default").messages} == {BOB.key, CYD.key}
        assert store.check().is_clean


def test_moderation_of_a_channel_export_equals_that_of_the_whole_store(tmp_path: Path) -> None:
    """The export has the block by an admin who is in none of the channels, and the post by a user who declines a role."""
    me, later_ms = Identity.generate(), START_MS + 1_000_000
    with CableStore.open(tmp_path / "store", identity=me, options=StoreOptions(clock=lambda: START_MS)) as whole:
        whole.post("garden", "hello")
        whole.moderation.set_role(ANN.key, UserRole.ADMIN)
        whole.moderation.set_role(BOB.key, UserRole.ADMIN)
        blocks = ANN.post(Block("spam", 0, (CYD.key,), 0, 0), at=later_ms)
        whole.ingest(raws(blocks, BOB.post(Info.of(accept_role=False), at=later_ms)))
        whole.export(tmp_path / "garden", filters=Filters(channels=frozenset(["garden"])))
        with CableStore.in_memory(identity=me) as part:
            part.import_exports([tmp_path / "garden"])
            for decisions in (whole.moderation.decisions, part.moderation.decisions):
                assert decisions is not None
                assert decisions.blocked_by(CYD.key) is not None
                assert decisions.role(BOB.key) is UserRole.USER
