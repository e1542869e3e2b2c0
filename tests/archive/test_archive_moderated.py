"""Archives and moderation: control nodes may omit hidden posts, and imports do not restore dropped ones."""

from __future__ import annotations

from pathlib import Path

from archives import CONTROL, FIRST_MS, LATE_MS, bring, plan_of, store_of
from people import ANN, BOB, CYD

from cablestore import LEGACY, CableStore, Post, encode_post
from cablestore.archive.create import create_archives
from cablestore.archive.folder import ArchiveFolder
from cablestore.moderation import Action, UserRole
from cablestore.protocol.body import Moderation, Role

PLAN = plan_of()


def texts() -> list[Post]:
    return [person.text("default", f"of {n}", at=FIRST_MS + n) for n, person in enumerate((ANN, BOB, CYD, ANN))]


def archive_of(store: CableStore, folder: Path, *, leaves_out_hidden: bool = True) -> ArchiveFolder:
    made = ArchiveFolder(folder)
    create_archives(store, made, PLAN, LATE_MS, leaves_out_hidden=leaves_out_hidden)
    return made


def imported_messages(folder: ArchiveFolder) -> set[bytes]:
    member = store_of(())
    bring(member, folder, PLAN)
    return {message.hash for message in member.messages("default", hidden="show").messages}


def test_an_option_omits_posts_hidden_by_the_control_node_and_its_authorities(tmp_path: Path) -> None:
    """The control node or a mod hides the posts. After they are unhidden, they are archived as late posts."""
    posts = texts()
    mod = BOB.post(Moderation("rude", 0, "default", (posts[2].hash,), int(Action.HIDE_POST)), at=LATE_MS - 10)
    no_mod = CYD.post(Moderation("", 0, "default", (posts[1].hash,), int(Action.HIDE_POST)), at=LATE_MS - 10)
    role = Role("", 0, "", BOB.key, UserRole.MOD.in_post)
    role_post = encode_post(role, links=(), timestamp_ms=LATE_MS - 20, identity=CONTROL, dialect=LEGACY)
    store = store_of([*posts, mod, no_mod, role_post])
    store.moderation.hide(posts=[posts[0].hash])
    assert imported_messages(archive_of(store, tmp_path / "all", leaves_out_hidden=False)) == {
        post.hash for post in posts
    }
    folder = archive_of(store, tmp_path / "some")
    assert imported_messages(folder) == {posts[1].hash, posts[3].hash}
    store.moderation.unhide(posts=[posts[0].hash])
    assert imported_messages(archive_of(store, tmp_path / "some")) == {posts[0].hash, posts[1].hash, posts[3].hash}


def test_private_actions_do_not_omit_posts(tmp_path: Path) -> None:
    posts = texts()
    store = store_of(posts)
    store.moderation.hide(users=[ANN.key], private=True)
    store.moderation.hide(posts=[posts[1].hash], private=True)
    assert imported_messages(archive_of(store, tmp_path / "some")) == {post.hash for post in posts}


def test_dropped_posts_are_not_archived_even_before_their_removal(tmp_path: Path) -> None:
    posts = texts()
    store = store_of(posts)
    store.moderation.drop(users=[ANN.key])
    assert imported_messages(archive_of(store, tmp_path, leaves_out_hidden=False)) == {posts[1].hash, posts[2].hash}


def test_an_import_does_not_restore_dropped_posts(tmp_path: Path) -> None:
    """The posts are accepted after they are undropped."""
    posts = texts()
    folder = archive_of(store_of(posts), tmp_path)
    member = store_of(posts[:1])
    member.moderation.drop(users=[ANN.key])
    member.moderation.block(users=[BOB.key])
    found = bring(member, folder, PLAN)
    assert (found.posts, found.dropped) == (1, 3)
    assert [message.author for message in member.messages("default", hidden="show").messages] == [CYD.key]
    assert member.check().is_clean
    member.moderation.undrop(users=[ANN.key])
    assert bring(member, folder, PLAN).posts == 2
    assert {message.author for message in member.messages("default").messages} == {ANN.key, CYD.key}
    assert member.check().is_clean
