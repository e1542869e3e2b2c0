"""Random exports with true or forged skeletons of deleted posts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from exporting import forge
from history import CHANNELS, TIMES_MS, histories
from hypothesis import strategies as st

from cablestore import Dialect, Post, Tombstone
from cablestore.index.tombstone import Skeleton
from cablestore.protocol.body import LEAST_CHANNEL_CODEPOINTS, Delete


def _channels_of(kind: int) -> st.SearchStrategy[str | None]:
    """Draw a channel that a post of this type can have."""
    least = LEAST_CHANNEL_CODEPOINTS.get(kind)
    return st.none() if least is None else st.sampled_from([*CHANNELS[:4], *([] if least else [""])])


skeletons = st.sampled_from((0, 2, 3, 4, 5, 6)).flatmap(
    lambda kind: st.builds(
        Skeleton,
        type=st.just(kind),
        timestamp_ms=st.sampled_from(TIMES_MS),
        channel=_channels_of(kind),
        links=st.lists(st.integers(0, 3).map(lambda n: bytes([n]) * 32), max_size=2).map(tuple),
    )
)


@dataclass(frozen=True)
class Claims:
    """Exports whose tombstones have forged skeletons, and posts that are not in them."""

    dialect: Dialect
    posts: list[Post]
    exports: list[tuple[list[Post], list[Tombstone]]]
    offered: list[Post]
    """Posts that are ingested in addition."""

    @property
    def seen(self) -> list[Post]:
        """All posts of a store that imports and ingests everything."""
        return list(
            {post.hash: post for posts in (self.offered, *(e[0] for e in self.exports)) for post in posts}.values()
        )

    def write(self, folder: Path) -> list[Path]:
        return [
            forge(folder / f"export-{number}", posts, stones, self.dialect)
            for number, (posts, stones) in enumerate(self.exports)
        ]


@st.composite
def claims(draw: st.DrawFn) -> Claims:
    """Draw a history, and exports with true and false skeletons of the targets of its deletions.

    Some posts are in none of them.
    """
    dialect, posts = draw(histories(max_posts=14))
    named = [(post, target) for post in posts if isinstance(post.body, Delete) for target in post.body.hashes]
    links = st.lists(st.sampled_from([post.hash for post in posts]), max_size=2).map(tuple)
    exports = []
    for _ in range(draw(st.integers(1, 3))):
        stones: dict[tuple[bytes, bytes], Tombstone] = {}
        held = [post for post in posts if draw(st.integers(0, 3)) == 0]
        for deletion, target in draw(st.lists(st.sampled_from(named), max_size=4)) if named else []:
            forged = replace(draw(skeletons), links=draw(links))
            channel = forged.channel and dialect.channel_id(forged.channel)
            stone = Tombstone(
                target, deletion.author, deletion.timestamp_ms, deletion.hash, replace(forged, channel=channel)
            )
            known = stones.get((target, deletion.author))
            stones[target, deletion.author] = stone if known is None else known.merge(stone)
            held.append(deletion)
        exports.append((held, list(stones.values())))
    return Claims(dialect, posts, exports, [post for post in posts if draw(st.booleans())])
