"""Limits of weekly archives, torrents and content stores."""

from __future__ import annotations

from typing import Final

PIECE_SIZE_BYTES: Final = 102_400
"""One piece of a torrent. Deployed control nodes pad archives to it."""

MAX_TORRENT_SIZE_BYTES: Final = 68_719_476_736
"""Data and index of one torrent: sixteen times the largest known community. A magnet link can claim any size."""

MAX_METAINFO_SIZE_BYTES: Final = 16_777_216
"""A torrent's metadata: 20 bytes for each piece of the largest torrent, 13.4 MB."""

MAX_INDEX_SIZE_BYTES: Final = 67_108_864
"""An index, which is read into memory as a whole: 100 bytes for each piece of the largest torrent. Writers leave out the
largest deletions that do not fit."""

MAX_MAGNET_SIZE_BYTES: Final = 4_096
"""A magnet link. It comes in a post, whose text is not longer."""

MAX_TRACKERS: Final = 64
"""Trackers that a magnet link or a torrent names."""

METADATA_TIMEOUT_S: Final = 20.0
"""Seconds that peers have to send a magnet link's metadata; deployed members wait as long."""

STALL_TIMEOUT_S: Final = 60.0
"""Seconds without a byte of payload, or without progress in checking files, after which a fetch is abandoned."""

MAX_ARCHIVE_SIZE_BYTES: Final = 30_000_000
"""Posts and author keys in one archive, as deployed: a member holds them in memory. A larger week has several
archives."""

MAX_STORED_ARCHIVE_SIZE_BYTES: Final = 134_217_728
"""One archive when it is read. 30 MB of the shortest posts and longest channel names come to 102 MB. Writers leave out
the largest tombstones that do not fit beside the posts."""

MAX_ARCHIVE_TOPICS: Final = 16_384
"""Content topics that one archive names, its channels: 13 MB with the longest names."""

MAX_INDEX_ARCHIVES: Final = 65_536
"""Archives in one index: 1,200 years with one a week. Larger indexes are refused before they are decoded."""

MAX_ARCHIVED_TIMESTAMP_MS: Final = 9_223_372_036_854
"""The last millisecond that 14/WAKU2 can express in 64-bit nanoseconds, in the year 2262. Later posts are in no
archive, and an index with a week after it is refused."""

MAX_DATASET_SIZE_BYTES: Final = 68_719_476_736
"""One dataset with a content id: as much as one torrent. A manifest can claim any size."""

MAX_MANIFEST_SIZE_BYTES: Final = 4_096
"""A manifest of a dataset, its bytes or its JSON: 700 bytes with the longest filename and media type, 2,300 as JSON."""

MAX_FILENAME_SIZE_BYTES: Final = 255
"""The filename in a manifest: what file systems accept."""

MAX_DATASETS: Final = 100_000
"""Manifests in one content store, which are in memory, 500 bytes each. Many of them can share one dataset's bytes."""

MAX_DATASET_LIST_SIZE_BYTES: Final = 67_108_864
"""The list of a node's datasets, which is read into memory: 600 bytes for each of the largest number that a store
has."""

MIN_FREE_DISK_SIZE_BYTES: Final = 67_108_864
"""Space that a content store and a download leave free on the disk, so that the store of posts can still write."""

MAX_UPLOADS_AT_ONCE: Final = 32
"""Uploads that a content endpoint accepts at a time. Each has a file open and takes 1 MiB of memory."""

MAX_CONTENT_FETCHES: Final = 8
"""Datasets that a content endpoint fetches from other nodes at a time. A further request is refused."""
