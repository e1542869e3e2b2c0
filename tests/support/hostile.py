"""Archives of a control node that are changed with hostile intent, and commands that must reject them, for tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from archive_network import digest
from archives import CONTROL, FIRST_MS, archived, plan_of, store_of
from people import ANN, BOB
from torrents import HERE, engine
from waiting import LIMIT_S

from cablestore import LEGACY, CableStore, Identity, Post, limits
from cablestore.archive.folder import ArchiveFolder
from cablestore.archive.format.commitment import Commitment
from cablestore.archive.format.index import encode_index, make_index, signed_index
from cablestore.archive.format.period import WEEK_MS
from cablestore.archive.format.profile import RFC61, Entry, with_id

PIECE = limits.PIECE_SIZE_BYTES
COMMUNITY = CONTROL.public_key.hex()
WEEKS = 4

Run = Callable[..., tuple[int, str, str]]


def history(text: str = "text") -> list[Post]:
    """Return ten posts a week: an archive of one piece each."""
    moments_ms = [FIRST_MS + week * WEEK_MS + n for week in range(WEEKS) for n in range(10)]
    return [ANN.text("default", f"{text} {at_ms}", at=at_ms) for at_ms in moments_ms]


class Made(NamedTuple):
    """Archives of a control node, which tests change and sign again."""

    folder: ArchiveFolder
    entries: tuple[Entry, ...]
    commitments: tuple[Commitment, ...]

    def sign(self, identity: Identity = CONTROL, **more: Any) -> None:
        """Write an index of these entries and commitments, signed by this identity."""
        index = signed_index(make_index(RFC61, self.entries), self.commitments, identity, LEGACY, sealed=False, **more)
        self.folder.write_index(encode_index(index))

    def change(self, number: int, **changes: Any) -> Made:
        """Change the entry of a week and its commitment."""
        entry = with_id(RFC61, self.entries[number]._replace(**changes))
        return self.put(number, entry, self.commitments[number])

    def put(self, number: int, entry: Entry, commitment: Commitment) -> Made:
        """Replace a week's archive by another."""
        stated = Commitment(entry.archive_id, commitment.sha256, commitment.num_posts, commitment.merkle_root)
        entries, commitments = [*self.entries], [*self.commitments]
        entries[number], commitments[number] = entry, stated
        return self._replace(entries=tuple(entries), commitments=tuple(commitments))

    def write(self, at_bytes: int, content: bytes) -> None:
        """Change `data`."""
        with self.folder.data_path.open("r+b") as data:
            data.seek(at_bytes)
            data.write(content)

    def flip(self, at_bytes: int) -> None:
        """Change a bit of `data`."""
        self.write(at_bytes, bytes([self.folder.data_path.read_bytes()[at_bytes] ^ 1]))


def four_weeks(folder: Path) -> Made:
    """Create the archives of four weeks in a folder."""
    files = archived(store_of(history()), folder / COMMUNITY, plan_of())
    verified = plan_of().verified(files)
    assert verified is not None
    entries = verified.index.entries
    assert [entry.size_bytes for entry in entries] == [PIECE] * WEEKS
    return Made(files, entries, tuple(verified.commitments[entry.archive_id] for entry in entries))


def a_member(path: Path) -> Path:
    """Create a store with posts that an import of the archives would remove."""
    with CableStore.open(path) as store:
        store.ingest([BOB.text("default", "mine", at=FIRST_MS + week * WEEK_MS + 5).raw for week in range(WEEKS)])
    return path


def refused(run: Run, member: Path, *command: object) -> str:
    """Run a command that must be rejected without a change of the store. Return the reason."""
    before = digest(member)
    status, _, errors = run("archive", *command, "-s", member)
    assert (status, digest(member)) == (2, before), errors
    assert errors.startswith("cablestore: ")
    assert errors.count("\n") == 1
    assert 20 < len(errors) < 1_000
    return errors


def left_out(run: Run, member: Path, *command: object) -> str:
    """Run a command that must report damaged archives and import the others. Return its output."""
    status, out, errors = run("archive", *command, "-s", member)
    assert status == 1, errors
    said = " ".join(errors.split())
    assert "left out" in said
    assert "damaged archive" in said
    return out


def left_out_from_seed(run: Run, member: Path, made: Made) -> str:
    """Fetch from a seed whose torrent is created from the folder as it is, so that each piece has a valid SHA-1."""
    return _from_seed(left_out, run, member, made)


def refused_from_folder(run: Run, member: Path, made: Made) -> str:
    return refused(run, member, "import", made.folder.path.parent, "--control", COMMUNITY)


def refused_from_seed(run: Run, member: Path, made: Made, *more: object) -> str:
    """Fetch as `left_out_from_seed` does. Everything must be rejected."""
    return _from_seed(refused, run, member, made, *more)


def _from_seed(outcome: Callable[..., str], run: Run, member: Path, made: Made, *more: object) -> str:
    got = member.with_name("got")
    with engine(made.folder.path.parent) as seed:
        link, peer = seed.seed(COMMUNITY), f"{HERE}:{seed.port}"
        of_seed = ("--control", COMMUNITY, "--peer", peer, "--timeout", f"{LIMIT_S}s")
        return outcome(run, member, "fetch", link, got, *of_seed, *more)


def nothing_was_fetched(member: Path) -> bool:
    """Return True if the member has no archives on disk."""
    return not [*member.with_name("got").rglob("data")]
