"""Generator of exports of any size, similar to those of a busy network: `make_export.py OUT --posts N`.

The history is split into slices of time, and each slice becomes one segment of each export. A slice depends only on the
arguments and its number. So processes share the slices, memory is constant, and the same arguments produce the same
bytes. Some posts of a slice, its anchors, do not depend on the rest of it: other slices generate them again to link to
them.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import chain, groupby
from multiprocessing import get_context
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple

from common import print_result, refusing, seconds, sentence

from cablestore import LEGACY, Body, Delete, Identity, Info, Join, Leave, Text, Topic
from cablestore.export.manifest import MANIFEST, Segment
from cablestore.export.sort import into_blocks, merge, write_sorted
from cablestore.export.writer import ExportWriter, post_record, write_post_segment
from cablestore.index.tombstone import Skeleton, Tombstone
from cablestore.limits import MAX_TEXT_SIZE_BYTES, SEGMENT_BLOCK_SIZE_BYTES
from cablestore.protocol.body import DELETE, INFO, JOIN, LEAVE, TEXT, TOPIC, write_body
from cablestore.protocol.crypto import post_hash
from cablestore.protocol.fields import counted
from cablestore.protocol.post import decode_post
from cablestore.protocol.varint import encode_varint
from cablestore.views import CATALOG

START_MS: Final = 1_546_300_800_000
"""2019-01-01."""
SPAN_MS: Final = 5 * 365 * 86_400_000
"""Length of every history: five years, so that none extends into the future."""

CHANNELS: Final = 200
AUTHORS: Final = 20_000
SLICE_POSTS: Final = 100_000
"""Maximum number of posts of a slice: 42 MB, about the size of a segment of a store's export."""
LEAST_SLICES: Final = 4
"""Minimum number of slices, so that even a short history has deletions and links across segments."""

MIX: Final = {DELETE: 0.02, INFO: 0.01, JOIN: 0.006, LEAVE: 0.004, TOPIC: 0.002}
"""Fractions of the types of posts; the rest are texts."""
OVERLAP: Final = 0.1
"""Fraction of posts that are also in a second export, if any."""
SKEWED: Final = 0.03
"""Fraction of posts with a time that is minutes or days off."""

_ANCHOR_EVERY: Final = 33
_MEAN_LOG_SIZE: Final = math.log(224) - 0.8**2 / 2
"""Parameters of the size of texts, 224 bytes on average: half have 160 or less, one in a hundred over 1,000."""
_MINUTE_MS: Final = 60_000
_DAY_MS: Final = 86_400_000
_MOST_LINKS: Final = 16
_MEMBERSHIP: Final[dict[int, type[Join | Leave]]] = {JOIN: Join, LEAVE: Leave}
_SENTENCES: Final = 1_000
_SENTENCE_SIZE_BYTES: Final = 1_000

_KEY = itemgetter(slice(0, 64))
"""Target and author of a tombstone's record."""


class Made(NamedTuple):
    """A signed post, as arguments of `post_record`."""

    timestamp_ms: int
    hash: bytes
    raw: bytes
    type: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Parameters of a history: `posts` different posts in `slices` slices of time, and the number of exports."""

    posts: int
    exports: int
    seed: int
    is_hot: bool
    slices: int

    def count(self, number: int) -> int:
        """Return the number of posts of a slice."""
        return self.posts * (number + 1) // self.slices - self.posts * number // self.slices

    def start_ms(self, number: int) -> int:
        """Return the start of a slice in milliseconds."""
        return START_MS + SPAN_MS * number // self.slices

    def time_ms(self, number: int, index: int, skew_ms: int = 0) -> int:
        """Return the time of the post with this index in a slice. Offsets beyond the end wrap around."""
        start_ms = self.start_ms(number)
        size_ms = self.start_ms(number + 1) - start_ms
        return start_ms + (size_ms * index // self.count(number) + skew_ms) % size_ms


def make_exports(
    out: Path,
    posts: int,
    *,
    exports: int = 1,
    processes: int | None = None,
    seed: int = 1,
    is_hot: bool = False,
    slice_posts: int = SLICE_POSTS,
) -> list[Path]:
    """Write exports with `posts` different posts in total. Return their folders.

    A single export is `out` itself; several are folders in it, and about a tenth of the posts is then in two of them.
    With `is_hot` one channel has half of all posts and one author wrote a third. Raises ValueError if there are too few
    posts for this many exports, FileExistsError if one of them is already finished.
    """
    plan = Plan(posts, exports, seed, is_hot, max(math.ceil(posts / slice_posts), LEAST_SLICES))
    if exports < 1 or posts < plan.slices * exports:
        raise ValueError(f"{posts} posts do not fill {plan.slices} segments of each of {exports} exports")
    folders = export_folders(out, exports)
    for folder in folders:
        if (folder / MANIFEST).exists():
            raise FileExistsError(f"{folder} is a finished export already: remove it, or name another folder")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="runs-", dir=out) as scratch:
        work = [(plan, number, folders, Path(scratch)) for number in range(plan.slices)]
        segments = _in_processes(make_slice, work, min(processes or os.cpu_count() or 1, plan.slices))
        for export, folder in enumerate(folders):
            writer = ExportWriter(folder, LEGACY, CATALOG.versions, written=[of[export] for of in segments])
            writer.add_tombstones(_merged(_run(Path(scratch), export, number) for number in range(plan.slices)))
            writer.finish()
    return folders


def export_folders(out: Path, exports: int) -> list[Path]:
    """Return the folders of the exports."""
    return [out] if exports == 1 else [out / f"export-{export}" for export in range(exports)]


Work = tuple[Plan, int, list[Path], Path]


def _in_processes(make: Callable[[Work], list[Segment]], work: list[Work], processes: int) -> list[list[Segment]]:
    if processes == 1:
        return list(map(make, work))
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return list(pool.map(make, work))


def make_slice(work: Work) -> list[Segment]:
    """Write a slice's segment of each export, and a run of its tombstones. Return their entries."""
    plan, number, folders, scratch = work
    rng = random.Random(f"exports {plan.seed} {number}")
    records: list[list[bytes]] = [[] for _ in folders]
    stones: list[list[bytes]] = [[] for _ in folders]
    for index, (post, laid) in enumerate(Slice(plan, number).posts()):
        record = post_record(*post)
        for export in _exports_of(index, plan.exports, rng):
            records[export].append(record)
            stones[export] += [stone.target + stone.author + stone.for_export().encode() for stone in laid]
    for export, of_export in enumerate(stones):
        write_sorted(_run(scratch, export, number), of_export)
    return [_segment(folder, number, of_export) for folder, of_export in zip(folders, records, strict=True)]


def _exports_of(index: int, exports: int, rng: random.Random) -> Sequence[int]:
    """Return the exports of a post: each export gets some posts of every slice."""
    home = index % exports
    if exports == 1 or rng.random() >= OVERLAP:
        return (home,)
    return (home, (home + rng.randrange(1, exports)) % exports)


def _segment(folder: Path, number: int, records: list[bytes]) -> Segment:
    records.sort()
    return write_post_segment(folder, number, into_blocks([records], SEGMENT_BLOCK_SIZE_BYTES))


def _run(scratch: Path, export: int, number: int) -> Path:
    return scratch / f"tombstones-{export}-{number:06d}"


def _merged(runs: Iterable[Path]) -> Iterator[Tombstone]:
    """Yield the tombstones of all slices in order of (target, author). Deletions of the same target are merged."""
    for key, group in groupby(chain.from_iterable(merge(runs)), key=_KEY):
        first, *others = [Tombstone.decode(key[:32], key[32:], record[64:]) for record in group]
        for other in others:
            first = first.merge(other)
        yield first


# --- posts of a slice ------------------------------------------------------------------------------


@cache
def author(number: int) -> Identity:
    """Return the identity of a person, always the same one."""
    return Identity.derive("export", str(number))


@cache
def words() -> str:
    """Return the text from which all texts are cut."""
    rng = random.Random(1)
    return "".join(sentence(rng, _SENTENCE_SIZE_BYTES) for _ in range(_SENTENCES))


@cache
def zipf(number: int, hot: float) -> list[float]:
    """Return cumulated weights: the n-th of `number` has 1/n of the first's. With `hot`, the first has this fraction."""
    weights = [1 / n for n in range(1, number + 1)]
    if hot:
        weights[0] = sum(weights[1:]) * hot / (1 - hot)
    return list(itertools.accumulate(weights))


def choose_channels(plan: Plan, rng: random.Random, count: int) -> list[int]:
    """Draw channels: few are busy and many quiet."""
    return rng.choices(range(CHANNELS), cum_weights=zipf(CHANNELS, 0.5 if plan.is_hot else 0), k=count)


def choose_authors(plan: Plan, rng: random.Random, count: int) -> list[int]:
    """Draw authors: few are prolific."""
    return rng.choices(range(AUTHORS), cum_weights=zipf(AUTHORS, 1 / 3 if plan.is_hot else 0), k=count)


def anchor(plan: Plan, number: int, place: int) -> tuple[Made, int, int]:
    """Return a post that any slice can regenerate, its author and its channel. The first ones have different channels."""
    rng = random.Random(f"anchor {plan.seed} {number} {place}")
    channel = place if place < CHANNELS else choose_channels(plan, rng, 1)[0]
    who = choose_authors(plan, rng, 1)[0]
    time_ms = plan.time_ms(number, place * _ANCHOR_EVERY)
    return _signed(Text(_name(channel), _text(rng)), author(who), time_ms), who, channel


def anchors(plan: Plan, number: int) -> int:
    """Return the number of anchors of a slice."""
    return math.ceil(plan.count(number) / _ANCHOR_EVERY)


def _signed(body: Body, who: Identity, timestamp_ms: int, links: tuple[bytes, ...] = ()) -> Made:
    """Sign a post like `encode_post`, which takes 1.5 times as long because it decodes its result."""
    header = counted(links) + encode_varint(body.type) + encode_varint(timestamp_ms)
    content = header + write_body(body, LEGACY)
    raw = who.public_key + who.sign(content) + content
    return Made(timestamp_ms, post_hash(raw), raw, body.type)


def _name(channel: int) -> str:
    return f"channel-{channel}"


def _text(rng: random.Random) -> str:
    size_bytes = min(1 + int(rng.lognormvariate(_MEAN_LOG_SIZE, 0.8)), MAX_TEXT_SIZE_BYTES)
    at = rng.randrange(_SENTENCES * _SENTENCE_SIZE_BYTES - size_bytes)
    return words()[at : at + size_bytes]


class Slice:
    """Posts of one slice of time, each linked to the earlier ones in its channel without a link to them yet."""

    def __init__(self, plan: Plan, number: int) -> None:
        self._plan = plan
        self._number = number
        self._rng = random.Random(f"slice {plan.seed} {number}")
        self._heads: dict[int, tuple[bytes, ...]] = {}
        self._deletions: list[tuple[bytes, Identity]] = []

    def posts(self) -> Iterator[tuple[Made, list[Tombstone]]]:
        """Yield every post, and for a post/delete its tombstone, not in order of time."""
        plan, number = self._plan, self._number
        count = plan.count(number)
        types = self._rng.choices([*MIX, TEXT], [*MIX.values(), 1 - sum(MIX.values())], k=count)
        channels = choose_channels(plan, self._rng, count)
        authors = choose_authors(plan, self._rng, count)
        for index in range(count):
            if index % _ANCHOR_EVERY == 0:
                post, _, channel = anchor(plan, number, index // _ANCHOR_EVERY)
                self._heads[channel] = (*self._heads_of(channel), post.hash)[-_MOST_LINKS:]
                yield post, []
                continue
            time_ms = plan.time_ms(number, index, self._skew_ms())
            if types[index] == DELETE:
                yield self._deletion(authors[index], channels[index], time_ms)
            else:
                yield self._post(types[index], author(authors[index]), channels[index], time_ms), []

    def _skew_ms(self) -> int:
        rng = self._rng
        if rng.random() >= SKEWED:
            return 0
        return rng.choice([-1, 1]) * rng.choice([_MINUTE_MS, _DAY_MS]) * rng.randint(1, 9)

    def _heads_of(self, channel: int) -> tuple[bytes, ...]:
        """Return the links of the next post in a channel: the first ones go to the previous slice."""
        known = self._heads.get(channel)
        if known is not None:
            return known
        if self._number == 0 or channel >= anchors(self._plan, self._number - 1):
            return ()
        return (anchor(self._plan, self._number - 1, channel)[0].hash,)

    def _post(self, post_type: int, who: Identity, channel: int, time_ms: int) -> Made:
        rng = self._rng
        if post_type == INFO:
            return _signed(Info.of(name=f"nick-{rng.randrange(10**6)}"), who, time_ms)
        body: Body
        if post_type in _MEMBERSHIP:
            body = _MEMBERSHIP[post_type](_name(channel))
        else:
            body = Topic(_name(channel), _text(rng)[:80]) if post_type == TOPIC else Text(_name(channel), _text(rng))
        post = _signed(body, who, time_ms, self._heads_of(channel))
        self._heads[channel] = (post.hash,)
        return post

    def _deletion(self, who: int, channel: int, time_ms: int) -> tuple[Made, list[Tombstone]]:
        """Return a deletion, and its tombstone as in an export that holds this slice.

        Half of them delete a post of an earlier slice, which is still live there; the tombstone waits. Some name the
        post of another author or a deletion, which has no effect. The others delete a post of this slice, which is not
        written.
        """
        plan, rng = self._plan, self._rng
        by = author(who)
        skeleton = None
        chance = rng.random()
        if chance < 0.5 and self._number > 0:
            target, who = self._anchor_before(self._number)
            digest, by = target.hash, author(who)
        elif 0.5 <= chance < 0.58:
            target, owner = self._anchor_before(self._number + 1)
            digest, by = target.hash, author(who if who != owner else (who + 1) % AUTHORS)
        elif 0.58 <= chance < 0.65 and self._deletions:
            digest, by = rng.choice(self._deletions)
        else:
            target = self._post(TEXT, by, channel, plan.time_ms(self._number, 0, rng.randrange(SPAN_MS)))
            digest, skeleton = target.hash, Skeleton.of(decode_post(target.raw, LEGACY))
        post = _signed(Delete((digest,)), by, time_ms)
        self._deletions.append((post.hash, by))
        return post, [Tombstone(digest, by.public_key, time_ms, post.hash, skeleton)]

    def _anchor_before(self, number: int) -> tuple[Made, int]:
        chosen = self._rng.randrange(number)
        post, who, _ = anchor(self._plan, chosen, self._rng.randrange(anchors(self._plan, chosen)))
        return post, who


def main() -> None:
    """Generate the exports for the arguments."""
    parser = argparse.ArgumentParser(description="Make exports of any size.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--posts", type=int, required=True, help="different posts in all exports together")
    parser.add_argument(
        "--exports", type=int, default=1, help="a single export is OUT itself, several are folders in it"
    )
    parser.add_argument("--processes", type=int, help="number of processes, by default one per core")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hot", action="store_true", help="one channel has half of all posts, one author a third")
    arguments = parser.parse_args()

    def make() -> None:
        make_exports(
            arguments.out,
            arguments.posts,
            exports=arguments.exports,
            processes=arguments.processes,
            seed=arguments.seed,
            is_hot=arguments.hot,
        )

    with refusing():
        rate = arguments.posts / seconds(make)
    print_result(
        f"{arguments.posts:,} posts made and signed", f"{rate:,.0f}/s", "at least 25,000 on two cores", rate >= 25_000
    )


if __name__ == "__main__":
    main()
