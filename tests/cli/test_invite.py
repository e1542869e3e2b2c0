"""Invitations on the command line: creation, use, and absence of keys in process lists."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from people import ANN, BOB
from serving import HERE, KEY, OTHER_KEY, Served, cablestore
from waiting import wait_until

from cablestore import CableStore
from cablestore.cli.serve_plan import ServePlan
from cablestore.moderation import UserRole
from cablestore.peers import Address, Invitation

Command = Callable[..., tuple[int, str, str]]
PEER = Address("peer.example", 13333)
SEED = bytes([UserRole.ADMIN]) + ANN.key


def shown_to_all(process: int) -> str:
    """Return what the system shows of a process: its command line and its environment."""
    return "".join(Path(f"/proc/{process}/{name}").read_text() for name in ("cmdline", "environ"))


def texts(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in cablestore("log", "default", "--json", store=path).stdout.splitlines()]


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="this system has no /proc")
def test_an_invitation_connects_people_without_keys_in_process_lists(
    tmp_path: Path, serving: Callable[..., Served]
) -> None:
    with CableStore.open(tmp_path / "a") as store:
        store.post("default", "welcome")
        me = store.identity.public_key.hex()
    made = cablestore("invite", "--new-key", "--admin", me, store=tmp_path / "a")
    assert made.returncode == 0, made.stderr
    assert "the invitation does not contain peers" in made.stderr
    key = Invitation.parse(made.stdout).cabal_key
    assert key is not None
    file = tmp_path / "cabal"
    file.touch(0o600)
    file.write_text(made.stdout)
    one = serving(tmp_path / "a", "--invitation", file, "--listen", HERE)
    asked = cablestore("invite", "--peer", one.address, "--json", store=tmp_path / "a")  # the key comes from `serve`
    [told] = [json.loads(line) for line in asked.stdout.splitlines()]
    assert (told["peers"], told["is_encrypted"], told["roles"]) == ([one.address], True, {me: "admin"})
    invitation = Invitation.parse(told["invitation"])
    assert invitation == Invitation(key, (Address.parse(one.address),), bytes.fromhex(f"02{me}"))

    two = serving(tmp_path / "b", "--create", "--invitation", "-", given=told["invitation"])
    wait_until(lambda: texts(tmp_path / "b") == ["welcome"])
    synced = cablestore("sync", "--create", "--invitation", "-", store=tmp_path / "c", given=told["invitation"] + "\n")
    assert (synced.returncode, texts(tmp_path / "c")) == (0, ["welcome"]), synced.stderr
    assert "joined with the moderation seed of the invitation" in synced.stderr
    invited = ("--cable", "--create", "--invitation", file)
    reconciled = cablestore("reconcile", one.address, *invited, store=tmp_path / "d")
    assert (reconciled.returncode, texts(tmp_path / "d")) == (0, ["welcome"]), reconciled.stderr
    assert "joined with the moderation seed of the invitation" in reconciled.stderr
    for name in ("b", "c", "d"):
        found = cablestore("moderation", "--json", store=tmp_path / name)
        assert f'"{me}"' in found.stdout
        assert '"admin (seed)"' in found.stdout
    for served in (one, two):
        known = shown_to_all(served.process.pid)
        assert "--invitation" in known
        assert key.hex() not in known.lower()
        assert served.stop() == 0
        assert served.logged("listening" if served is one else "connected")
        assert key.hex() not in json.dumps(served.logged())


@pytest.mark.thorough
def test_the_next_peer_is_tried_and_other_keys_are_rejected(tmp_path: Path, serving: Callable[..., Served]) -> None:
    one = serving(tmp_path / "a", "--create", "--listen", HERE, CABLESTORE_SERVE_CABAL_KEY=KEY)
    assert cablestore("post", "default", "hello", store=one.store).returncode == 0 if one.address else None
    with socket.socket() as taken:  # the port is bound but does not listen
        taken.bind(("127.0.0.1", 0))
        gone = Address(*taken.getsockname())
        peers = (gone, Address.parse(one.address))
        text = str(Invitation(bytes.fromhex(KEY), peers))
        found = cablestore("sync", "--create", "--invitation", "-", store=tmp_path / "b", given=text)
        assert (found.returncode, texts(tmp_path / "b")) == (0, ["hello"]), found.stderr
        assert f"cannot connect to {gone}" in found.stderr
        text = str(Invitation(bytes.fromhex(OTHER_KEY), peers))
        found = cablestore("sync", "--create", "--invitation", "-", store=tmp_path / "c", given=text)
        assert (found.returncode, (tmp_path / "c").exists()) == (2, False)
        assert f"cannot connect to {one.address}" in found.stderr
        assert OTHER_KEY not in found.stderr


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "invitation"
    path.touch(0o600)
    path.write_text(str(Invitation(bytes.fromhex(KEY), (PEER,), SEED)))
    return path


def test_serve_uses_the_key_peers_and_seed_of_an_invitation(
    run: Command, plans: list[ServePlan], file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ("-s", tmp_path / "store", "--create")
    assert run("serve", *store, "--invitation", file) == (0, "", "")
    assert run("serve", *store, "--invitation", file, "--connect", "b.example", "--connect", str(PEER))[0] == 0
    same = ("--cabal-key", KEY, "--moderation-seed", SEED.hex())
    assert run("serve", *store, "--invitation", file, *same) == (0, "", "")
    monkeypatch.setenv("CABLESTORE_SERVE_INVITATION", str(file))
    assert run("serve", *store, "--listen", HERE) == (0, "", "")
    assert [plan.settings.cabal_key for plan in plans] == [bytes.fromhex(KEY)] * 4
    assert [plan.connect for plan in plans] == [(PEER,), (Address("b.example", 13333), PEER), (PEER,), (PEER,)]
    with CableStore.open(tmp_path / "store") as opened:
        assert opened.moderation.seed is not None
        assert opened.moderation.seed.roles == ((ANN.key, UserRole.ADMIN),)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["serve", "--invitation", "FILE", "--cabal-key", OTHER_KEY], "differs from the key in the invitation"),
        (["serve", "--invitation", "FILE", "--moderation-seed", f"01{BOB.key.hex()}"], "seed differs from"),
        (["serve", "--invitation", "missing"], "cannot read an invitation from missing: No such file"),
        (["serve", "--invitation", "KEYLESS", "--cabal-key", KEY], "differs from the key in the invitation"),
        (["serve", "--invitation", "PEERLESS"], "missing address"),
        (["serve", "--invitation", "NONE"], "it does not begin with cable:"),
        (["sync", "--invitation", "PEERLESS"], "the invitation does not contain peers. Add HOST:PORT"),
        (["sync"], "Missing argument 'HOST:PORT'"),
        (["sync", "--invitation", "NONE"], "it does not begin with cable:"),
        (["reconcile", "peer.example", "--invitation", "NONE"], "it does not begin with cable:"),
        (["invite"], "missing cabal key: use --cabal-key @FILE, use --new-key for a new cabal, or run `cablestore"),
        (["invite", "--new-key", "--cabal-key", KEY], "cannot be combined"),
        (["invite", "--new-key", "--peer", "0.0.0.0"], "invalid peer address"),
        (["invite", "--new-key", "--peer", "a:b"], "is not an address"),
        (["invite", "--new-key", "--admin", "nobody"], "no user found with the name"),
        (["invite", "--cabal-key", "@NONE"], "invalid cabal key: expected 64 hex digits"),
    ],
)
@pytest.mark.usefixtures("plans")
def test_bad_input_is_reported_in_one_error(
    run: Command, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with CableStore.open("store"):
        pass
    Path("KEYLESS").write_text(str(Invitation(None, (PEER,))))
    Path("PEERLESS").write_text(str(Invitation(bytes.fromhex(KEY))))
    Path("NONE").write_text(KEY[1:])
    file.rename("FILE")
    status, out, err = run(*arguments, "-s", "store")
    assert (status, out) == (2, "")
    assert reason in " ".join(err.split())
    assert KEY[1:] not in err
    assert "Traceback" not in err


def test_an_invitation_contains_its_arguments(run: Command, tmp_path: Path) -> None:
    with CableStore.open(tmp_path) as store:
        store.moderation.join_with_seed(SEED)
        store.set_name("me")
        me = store.identity.public_key
    (tmp_path / "key").write_text(KEY)
    given = ("--cabal-key", f"@{tmp_path / 'key'}", "--peer", "peer.example", "--peer", "[::1]:5", "--mod", "me")
    status, out, _ = run("invite", *given, "-s", tmp_path)
    assert status == 0
    assert out.endswith("\n")
    seed = SEED + bytes([UserRole.MOD]) + me
    assert Invitation.parse(out) == Invitation(bytes.fromhex(KEY), (PEER, Address("::1", 5)), seed)
    with CableStore.open(tmp_path) as store:
        store.moderation.revoke_seed()
    status, out, _ = run("invite", *given[:2], "-s", tmp_path)
    assert (status, out) == (0, f"cable:{KEY}\n")
    fresh = {run("invite", "--new-key", "-s", tmp_path)[1] for _ in range(3)}
    assert len(fresh) == 3


def test_an_invitation_to_a_new_cabal_does_not_require_a_store(
    tmp_path: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A given store must exist, because its moderation seed belongs to the invitation."""
    monkeypatch.delenv("CABLESTORE_STORE", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    status, out, errors = run("invite", "--new-key", "--admin", ANN.key.hex(), "--peer", str(PEER))
    assert (status, Invitation.parse(out).seed) == (0, SEED), errors
    for arguments, words in (
        (["--new-key", "-s", tmp_path / "missing"], "no store found"),
        ([], "no store found"),
        (["--new-key", "--admin", "ann"], "without a store, USER must consist of hex digits"),
    ):
        status, out, errors = run("invite", *arguments)
        assert (status, out) == (2, "")
        assert words in errors
    assert list(tmp_path.iterdir()) == []
