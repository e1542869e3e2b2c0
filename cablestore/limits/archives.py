"""Limits of weekly archives, torrents and content stores."""

from __future__ import annotations

from typing import Final

PIECE_SIZE_BYTES: Final = 102_400
"""Size of one torrent piece. Deployed control nodes pad archives to this size."""

MAX_TORRENT_SIZE_BYTES: Final = 68_719_476_736
"""Maximum size of the data and the index of one torrent: sixteen times the largest known community. A magnet link can
claim any size."""

MAX_METAINFO_SIZE_BYTES: Final = 16_777_216
"""Maximum size of the metadata of one torrent. The metadata of the largest torrent has 20 bytes for each piece: 13.4
MB."""

MAX_INDEX_SIZE_BYTES: Final = 67_108_864
"""Maximum size of one archive index, which a reader loads into memory: 100 bytes for each piece of the largest torrent.
Writers leave out the largest deletions that do not fit."""

MAX_MAGNET_SIZE_BYTES: Final = 4_096
"""Maximum size of one magnet link. It arrives in a post/text, whose text is limited to the same size."""

MAX_TRACKERS: Final = 64
"""Maximum number of trackers in one magnet link or torrent."""

METADATA_TIMEOUT_S: Final = 20.0
"""Time to wait for peers to send the metadata of a magnet link. Deployed members wait equally long."""

STALL_TIMEOUT_S: Final = 60.0
"""Time without payload, and without progress in checking files, before a fetch fails."""

MAX_ARCHIVE_SIZE_BYTES: Final = 30_000_000
"""Maximum size of the posts and author keys in one archive, as deployed: a member holds them in memory. A larger week
is split into several archives."""

MAX_STORED_ARCHIVE_SIZE_BYTES: Final = 134_217_728
"""Maximum size of one stored archive that a reader accepts. 30 MB of the shortest posts with the longest channel names
occupy 102 MB. Writers leave out the largest tombstones that do not fit."""

MAX_ARCHIVE_TOPICS: Final = 16_384
"""Maximum number of content topics (channels) in one archive: 13 MB with the longest names."""

MAX_INDEX_ARCHIVES: Final = 65_536
"""Maximum number of archives in one index: 1,200 years with one archive a week. A larger index is rejected before it is
decoded."""

MAX_ARCHIVED_TIMESTAMP_MS: Final = 9_223_372_036_854
"""Latest timestamp that 14/WAKU2 can express in 64-bit nanoseconds, in the year 2262. Archives contain no later posts,
and an index with a later week is rejected."""

MAX_DATASET_SIZE_BYTES: Final = 68_719_476_736
"""Maximum size of one dataset with a content id: the same as one torrent. A manifest can claim any size."""

MAX_MANIFEST_SIZE_BYTES: Final = 4_096
"""Maximum size of one dataset manifest, binary or JSON. The longest filename and media type need 700 bytes in binary
and 2,300 in JSON."""

MAX_FILENAME_SIZE_BYTES: Final = 255
"""Maximum size of a filename in a manifest: the limit of common file systems."""

MAX_DATASETS: Final = 100_000
"""Maximum number of manifests in one content store, which keeps them in memory at 500 bytes each. Many manifests can
share one dataset."""

MAX_DATASET_LIST_SIZE_BYTES: Final = 67_108_864
"""Maximum size of the dataset list of a node. Clients load it into memory. It has room for MAX_DATASETS datasets of 600
bytes."""

MIN_FREE_DISK_SIZE_BYTES: Final = 67_108_864
"""Disk space that a content store and a download leave free, so that the message store can still write."""

MAX_UPLOADS_AT_ONCE: Final = 32
"""Maximum number of concurrent uploads to a content endpoint. Each holds one open file and 1 MiB of memory."""

MAX_CONTENT_FETCHES: Final = 8
"""Maximum number of concurrent fetches from other nodes by one content endpoint. Further requests are rejected."""
