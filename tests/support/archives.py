"""Histories of some weeks, and the archives of a store that has them, for tests of archives."""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from people import Person

from cablestore import LEGACY, CableStore, Dialect, Identity, Post, StoreOptions
from cablestore.archive.create import create_archives
from cablestore.archive.folder import ArchiveFolder
from cablestore.archive.format.period import WEEK_MS, week_of
from cablestore.archive.format.profile import PROFILES, Profile
from cablestore.archive.importer import ArchiveImportReport, import_archives
from cablestore.archive.writer import ArchivePlan
from cablestore.protocol.body import Role

FIRST_MS = week_of(1_700_000_000_000).from_ms
"""A Monday."""
CONTROL = Identity.derive("archives", "control")
KEY = bytes(range(32))
WEEKS = 5
LATE_MS = FIRST_MS + 20 * WEEK_MS
"""A time when all of it is long over."""


@lru_cache
def some_weeks(dialect: Dialect = LEGACY, weeks: int = WEEKS, per_week: int = 30) -> tuple[Post, ...]:
    """Return texts, topics, members, names and deletions, of this week's and of earlier ones."""
    rng = random.Random(7)
    people = [Person(name, dialect) for name in ("ann", "bob", "cyd")]
    posts: list[Post] = []
    for week in range(weeks):
        for step in range(per_week):
            author = rng.choice(people)
            channel = rng.choice(["default", "other", "größer/kleiner %"])
            at = FIRST_MS + week * WEEK_MS + rng.randrange(WEEK_MS)
            kind = rng.randrange(12)
            own = [post for post in posts if post.author == author.key and post.channel and post.timestamp_ms < at]
            if kind == 0:
                posts.append(author.join(channel, at=at))
            elif kind == 1:
                posts.append(author.topic(channel, f"topic {step}", at=at))
            elif kind == 2:
                posts.append(author.named(f"name {step}", at=at))
            elif kind == 3:
                posts.append(author.leave(channel, at=at))
            elif kind == 4 and own:
                posts.append(author.delete(*rng.sample(own, min(2, len(own))), at=at))
            elif kind == 5:
                posts.append(author.post(Role("", 0, "", author.key, 1), at=at))
            else:
                posts.append(
                    author.text(channel, f"week {week}, {step}".ljust(rng.choice([20, 400, 3_000]), "."), at=at)
                )
    return tuple(posts)


def store_of(posts: Iterable[Post], dialect: Dialect = LEGACY) -> CableStore:
    """Return a store in memory of the control node, or of a member."""
    store = CableStore.in_memory(
        dialect=dialect, identity=CONTROL, options=StoreOptions(verify_threads=1, clock=lambda: LATE_MS)
    )
    store.ingest([post.raw for post in posts], verify=False)
    return store


def plan_of(profile: str = "rfc61", key: bytes | None = None, dialect: Dialect = LEGACY) -> ArchivePlan:
    found: Profile = PROFILES[profile]
    return ArchivePlan(found, CONTROL, dialect, key)


def archived(store: CableStore, folder: Path, plan: ArchivePlan, now_ms: int = LATE_MS) -> ArchiveFolder:
    """Make the archives of a store in a folder that may have some."""
    found = ArchiveFolder(folder)
    create_archives(store, found, plan, now_ms)
    return found


def bring(
    store: CableStore, folder: ArchiveFolder, plan: ArchivePlan, *, merges: bool = False, weeks: int = 10**6
) -> ArchiveImportReport:
    """Import the newest N weeks of a folder, newest first."""
    verified = plan.verified(folder)
    assert verified is not None
    entries = [*reversed(verified.index.entries)][:weeks]
    fetched = ((entry, folder.stored(entry)) for entry in entries)
    total = ArchiveImportReport()
    for _, found in import_archives(store, verified, fetched, key=plan.key, merges=merges):
        total += found
    return total


def files(folder: ArchiveFolder) -> tuple[bytes, bytes]:
    """Return the bytes of both files."""
    return folder.data_path.read_bytes(), folder.index_path.read_bytes()
