"""Rejected archives: other control nodes, their announcements and links, wrong keys, and paths outside the folder."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from archives import CONTROL, KEY, archived, plan_of, store_of
from archiving import STRANGER
from hostile import COMMUNITY, WEEKS, Made, Run, a_member, four_weeks, history, refused, refused_from_seed
from people import START_MS
from torrents import HERE, bencoded, engine, info, serving
from waiting import LIMIT_S

from cablestore import LEGACY, CableStore, Identity, Text, encode_post, limits
from cablestore.protocol.dialect import ARCHIVES_CHANNEL

OTHERS = STRANGER.public_key.hex()
PIECE = limits.PIECE_SIZE_BYTES


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return four_weeks(tmp_path / "made")


@pytest.fixture
def member(tmp_path: Path) -> Path:
    return a_member(tmp_path / "member")


# --- foreign control nodes ------------------------------------------------------------------------


def link_to(community: str, digit: str = "a") -> str:
    return f"magnet:?xt=urn:btih:{digit * 40}&dn={community}"


def announced(member: Path, identity: Identity, text: str, at_ms: int) -> None:
    """Store an author's post in the channel of announcements, as if received by Cable."""
    post = encode_post(Text(ARCHIVES_CHANNEL, text), links=(), timestamp_ms=at_ms, identity=identity, dialect=LEGACY)
    with CableStore.open(member) as store:
        [outcome] = store.ingest([post.raw])
    assert outcome.verdict.value == "accepted"


def status_of(run: Run, member: Path) -> Any:
    status, out, _ = run("archive", "status", member.with_name("got"), "--control", COMMUNITY, "--json", "-s", member)
    assert status == 0
    return json.loads(out)["link"]


def test_only_announcements_of_the_control_node_are_used(made: Made, member: Path, run: Run) -> None:
    """A stranger's announcement is newer, has a greater clock and leads to valid archives."""
    got = member.with_name("got")
    with engine(made.folder.path.parent) as seed:
        peer = ("--peer", f"{HERE}:{seed.port}", "--timeout", f"{LIMIT_S}s")
        fetch = ("fetch", "newest", got, "--control", COMMUNITY, *peer)
        link = seed.seed(COMMUNITY)
        announced(member, STRANGER, f"archives {2**63} {link}", START_MS + 9)
        assert "no announcement of control node" in refused(run, member, *fetch)
        assert status_of(run, member) is None

        announced(member, CONTROL, f"archives 7 {link_to(COMMUNITY)}", START_MS)
        announced(member, STRANGER, f"archives 8 {link}", START_MS + 10)
        announced(member, CONTROL, f"archives 5 {link_to(COMMUNITY, 'b')}", START_MS + 11)
        assert status_of(run, member) == link_to(COMMUNITY)

        announced(member, CONTROL, f"archives 8 {link}", START_MS + 12)
        assert status_of(run, member) == link
        status, _, errors = run("archive", *fetch, "-s", member)
        assert (status, errors) == (0, f"imported {WEEKS} archives: {WEEKS * 10} new posts, {WEEKS} removed\n")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "archives",
        "archives 9 magnet:?",
        f"archives -9 {link_to(COMMUNITY)}",
        f"archives {2**64} {link_to(COMMUNITY)}",
        f"archives 9 {link_to('../../etc')}",
        f"archives 9 {link_to(COMMUNITY)}&x.pe={HERE}:1",
        f"archives 9 {link_to(COMMUNITY)}\nand more",
        "archives 9 http://127.0.0.1/",
        "archives 9 codex:nothing",
    ],
)
def test_invalid_announcements_are_skipped(member: Path, run: Run, text: str) -> None:
    announced(member, CONTROL, f"archives 3 {link_to(COMMUNITY)}", START_MS)
    announced(member, CONTROL, text, START_MS + 1)
    assert status_of(run, member) == link_to(COMMUNITY)


def test_a_torrent_of_another_community_is_rejected(made: Made, member: Path, run: Run, tmp_path: Path) -> None:
    """The torrent is rejected by its link, and under the control node's name by its index, which has another author."""
    plan = plan_of()
    others = store_of(history("other"))
    archived(others, tmp_path / "others" / OTHERS, type(plan)(plan.profile, STRANGER, LEGACY))
    of_member = (tmp_path / "got", "--control", COMMUNITY, "--timeout", f"{LIMIT_S}s")
    with engine(tmp_path / "others") as seed:
        link, peer = seed.seed(OTHERS), ("--peer", f"{HERE}:{seed.port}")
        assert f"expected the community {COMMUNITY}, got {OTHERS}" in refused(
            run, member, "fetch", link, *of_member, *peer
        )
        reason = refused(run, member, "fetch", link.replace(OTHERS, COMMUNITY), *of_member, *peer)
        assert f"got {OTHERS.encode()!r}" in reason
        announced(member, CONTROL, f"archives 1 {link}", START_MS)
        assert f"expected the community {COMMUNITY}, got {OTHERS}" in refused(
            run, member, "fetch", "newest", *of_member, *peer
        )
    (tmp_path / "others" / OTHERS).rename(tmp_path / "others" / COMMUNITY)
    reason = refused(run, member, "import", tmp_path / "others", "--control", COMMUNITY)
    assert "not signed by the control node" in reason


def test_archives_with_another_cabal_key_are_rejected(member: Path, run: Run, tmp_path: Path) -> None:
    folder = archived(store_of(history()), tmp_path / "sealed" / COMMUNITY, plan_of(key=KEY))
    public = archived(store_of(history()), tmp_path / "public" / COMMUNITY, plan_of())
    made = Made(folder, (), ())
    for key, reason in (((), "is encrypted"), (("--cabal-key", "ab" * 32), "cannot be decrypted")):
        assert reason in refused(run, member, "import", tmp_path / "sealed", "--control", COMMUNITY, *key)
        assert reason in refused_from_seed(run, member, made, *key)
    of_public = ("import", public.path.parent, "--control", COMMUNITY, "--cabal-key", KEY.hex())
    assert "not encrypted" in refused(run, member, *of_public)


# --- paths outside the folder ---------------------------------------------------------------------


def files(*found: tuple[int, list[bytes]], **more: Any) -> list[dict[bytes, Any]]:
    return [
        {b"length": size, b"path": path, **{key.encode(): value for key, value in more.items()}} for size, path in found
    ]


def tricks(outside: Path) -> dict[str, dict[bytes, Any]]:
    """Return torrents of this community whose files are outside its folder."""
    away = [part.encode() for part in outside.parts[1:]]
    ups = [b".."] * 20
    right = files((2 * PIECE, [b"data"]), (7, [b"index"]))
    link = {b"attr": b"l", b"length": 0, b"path": [b"index.new"], b"symlink path": [*ups, *away]}
    return {
        "up": info(name=COMMUNITY.encode(), files=files((2 * PIECE, [*ups, *away]), (7, [b"index"]))),
        "absolute": info(name=COMMUNITY.encode(), files=files((2 * PIECE, [bytes(outside)]), (7, [b"index"]))),
        "an absolute name": info(name=bytes(outside)),
        "a name that goes up": info(name=b"../" * 20 + b"/".join(away)),
        "below": info(name=COMMUNITY.encode(), files=files((2 * PIECE, [b"data", b"data"]), (7, [b"index"]))),
        "a symlink": info(name=COMMUNITY.encode(), files=[*right, link]),
        "symlinks": info(
            name=COMMUNITY.encode(), files=files((2 * PIECE, [b"data"]), (7, [b"index"]), **{"symlink path": away})
        ),
        "a file more": info(name=COMMUNITY.encode(), files=[*right, *files((0, [b"run.sh"]))]),
        "a padding file": info(name=COMMUNITY.encode(), files=[*right, *files((9, [b".pad", b"1"]), attr=b"p")]),
    }


@pytest.mark.parametrize("trick", tricks(Path("/x")))
def test_a_torrent_with_files_outside_its_folder_is_rejected(
    member: Path, run: Run, tmp_path: Path, trick: str
) -> None:
    """The torrent is rejected before any file is created."""
    outside = tmp_path / "outside"
    torrent = tricks(outside)[trick]
    link = f"magnet:?xt=urn:btih:{hashlib.sha1(bencoded(torrent)).hexdigest()}&dn={COMMUNITY}"
    with serving(bencoded({b"info": torrent}), tmp_path / "theirs") as port:
        of_seed = ("--control", COMMUNITY, "--peer", f"{HERE}:{port}", "--timeout", f"{LIMIT_S}s")
        reason = refused(run, member, "fetch", link, tmp_path / "got", *of_seed)
    assert "no peer sent" not in reason
    here = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if not path.is_dir()]
    assert {path.parts[0] for path in here} <= {"member", "theirs"}
    assert not outside.exists()


@pytest.mark.parametrize("name", ["..", "../made", "/etc", "a/b", "", "\u202ea"])
def test_a_path_as_community_id_is_rejected(made: Made, run: Run, name: str) -> None:
    folder = made.folder.path.parent
    status, _, errors = run("archive", "seed", folder, "--community", name, "--listen", f"{HERE}:0")
    assert status == 2
    assert "invalid community id" in errors
    assert [path.name for path in folder.iterdir()] == [COMMUNITY]
