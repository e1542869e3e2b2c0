"""Format of exports, and reading them: a store as a folder of files, for other stores and for jobs on many machines.

    manifest.json           the list of segments with their checksums, and its own checksum; written last
    posts-000000.seg ...    posts in order of (timestamp, hash), in blocks of about a megabyte
    tombstones-000000.seg   [target, author, value] of each tombstone, in key order
    consents-000000.seg     [user, timestamp_ms, hash, true if it accepts roles] of each statement without its post/info
    arrivals.json           the store's id, and the end of its arrival log; the only file that depends on arrival order

Equal stores produce equal bytes in all other files, in any order of arrival: docs/reference/FORMAT.md. For any content
of a folder, reading raises only ExportError, or StorageError after an I/O error.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

import blake3
from msgspec import Meta, Struct, to_builtins

from cablestore import limits
from cablestore.arguments import Time, check, check_bytes, check_text, checked_each, checked_time
from cablestore.documents import as_declared, read_checked, read_document, with_checksum
from cablestore.errors import ExportError
from cablestore.export.segment import read_segment
from cablestore.files import Location, ObjectFile, ObjectFolder, folder_of, restrict
from cablestore.index.log_position import is_shared
from cablestore.index.reader import Reader
from cablestore.index.tombstone import Tombstone
from cablestore.protocol.acts import Consent
from cablestore.protocol.body import TYPE_NUMBERS
from cablestore.protocol.crypto import HASH_SIZE_BYTES, KEY_SIZE_BYTES
from cablestore.protocol.dialect import DIALECTS, Dialect
from cablestore.reprs import hex_repr

FORMAT: Final = 1
"""Version of the format of the folder and its files: docs/reference/FORMAT.md."""
FORMAT_WITH_CONSENTS: Final = 2
"""Version of the format with statements about roles. cablestore 0.13.1 and earlier cannot read their segments."""

MANIFEST: Final = "manifest.json"
ARRIVALS: Final = "arrivals.json"
UNFINISHED: Final = "unfinished.json"
_OWN: Final = re.compile(rf"(posts|tombstones|consents)-\d{{6,}}\.seg|{re.escape(MANIFEST)}|{re.escape(ARRIVALS)}")
"""Names of files of a finished export."""


def is_own(name: str) -> bool:
    """Return True if this is the name of a file of a finished export."""
    return _OWN.fullmatch(name) is not None


SegmentKind = Literal["posts", "tombstones", "consents"]
KINDS: Final[tuple[SegmentKind, ...]] = get_args(SegmentKind)
"""Kinds in the order in which a manifest lists the segments."""
Number = Annotated[int, Meta(ge=0, le=limits.MAX_TIMESTAMP_MS)]
Hash = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Place = tuple[Number, Hash]
"""Position of a post in an export: its timestamp in milliseconds and its hash in hex."""


@dataclass(frozen=True, slots=True)
class Filters:
    """Filters of an export: a post must match all of them. `cablestore.export.filter` describes the rules.

    `channels` are names, `authors` are 32-byte public keys. Times must be `after_ms` <= time < `before_ms`.
    `without_hidden` omits messages that the store's user or the user's moderators hid in public.
    """

    channels: frozenset[str] = frozenset()
    authors: frozenset[bytes] = frozenset()
    after_ms: Time | None = None
    before_ms: Time | None = None
    without_hidden: bool = False

    __repr__ = hex_repr

    def __post_init__(self) -> None:
        """Raise ExportError for a filter that no post can match."""
        checked_each("channels", self.channels, check_text)
        checked_each("authors", self.authors, check_bytes)
        check(without_hidden=self.without_hidden)
        if not all(len(author) == KEY_SIZE_BYTES for author in self.authors):
            raise ExportError(f"invalid author filter: expected public keys of {KEY_SIZE_BYTES} bytes")
        for name in ("after_ms", "before_ms"):
            if (time := getattr(self, name)) is not None:
                object.__setattr__(self, name, checked_time(name, time))  # the class is frozen
        if not all(time is None or _is_time(time) for time in (self.after_ms, self.before_ms)):
            raise ExportError(f"invalid time filter: expected 0 to {limits.MAX_TIMESTAMP_MS} milliseconds since 1970")
        if any("\ud800" <= codepoint <= "\udfff" for channel in self.channels for codepoint in channel):
            raise ExportError("invalid channel filter: the name cannot be encoded in UTF-8")

    def fields(self) -> dict[str, Any]:
        """Return the filters as fields of the manifest."""
        more = {"without_hidden": True} if self.without_hidden else {}
        return more | {
            "channels": sorted(self.channels),
            "authors": sorted(author.hex() for author in self.authors),
            "start_ms": self.after_ms,
            "end_ms": self.before_ms,
        }


class Segment(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """File of an export. Checksums are in hex. `content_blake3` is the checksum of the msgpack before compression.

    For a segment of posts, `posts` counts posts by type. `first` and `last` are the positions of its first and last post.
    """

    file: str
    kind: SegmentKind
    items: Number
    size_bytes: Number
    blake3: Hash
    content_blake3: Hash
    posts: dict[str, Number] = {}
    first: Place | None = None
    last: Place | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """Description of an export. `views` contains the versions of the store's views.

    `folder` is a path if the export is on this disk, otherwise an ObjectFolder. `source` is always an ObjectFolder.
    """

    folder: Path | ObjectFolder
    dialect: Dialect
    views: dict[str, int]
    filters: Filters | None
    segments: tuple[Segment, ...]

    @property
    def source(self) -> ObjectFolder:
        """Folder of the export's files."""
        return folder_of(self.folder)

    @property
    def posts(self) -> dict[str, int]:
        """Number of posts by type."""
        total: Counter[str] = Counter()
        for segment in self.segments:
            total.update(segment.posts)
        return in_order_of_types(total)

    @property
    def tombstones(self) -> int:
        """Number of tombstones."""
        return sum(segment.items for segment in self.tombstone_segments)

    @property
    def content_blake3(self) -> str:
        """BLAKE3 of the segments' content checksums. It is equal for equal content, with any version of zstd."""
        return blake3.blake3(b"".join(bytes.fromhex(s.content_blake3) for s in self.segments)).hexdigest()

    @property
    def post_segments(self) -> tuple[Segment, ...]:
        """The segments of posts."""
        return tuple(segment for segment in self.segments if segment.kind == "posts")

    @property
    def tombstone_segments(self) -> tuple[Segment, ...]:
        """The segments of tombstones."""
        return tuple(segment for segment in self.segments if segment.kind == "tombstones")

    @property
    def consent_segments(self) -> tuple[Segment, ...]:
        """The segments of statements about roles whose post/infos are not in the export."""
        return tuple(segment for segment in self.segments if segment.kind == "consents")

    def encode(self) -> bytes:
        """Return the bytes of manifest.json."""
        fields = {
            "format": FORMAT_WITH_CONSENTS if self.consent_segments else FORMAT,
            "dialect": self.dialect.name,
            "views": self.views,
            "filters": None if self.filters is None else self.filters.fields(),
            "posts": self.posts,
            "tombstones": self.tombstones,
            "segments": to_builtins(self.segments),
            "content_blake3": self.content_blake3,
        }
        return with_checksum(fields)


def segment_name(kind: SegmentKind, number: int) -> str:
    """Return the name of a segment's file."""
    return f"{kind}-{number:06d}.seg"


def in_order_of_types(counts: Counter[str]) -> dict[str, int]:
    """Return the counts of post types that are not 0, in the order of the types' numbers."""
    return {name: counts[name] for name in TYPE_NUMBERS if counts[name]}


# --- reading -----------------------------------------------------------------------------------


class _Head(Struct):
    """Fields that decide whether this version can read the rest of a manifest."""

    format: Number
    dialect: str


class _FilterFields(Struct, forbid_unknown_fields=True, kw_only=True):
    without_hidden: bool = False
    channels: list[str]
    authors: list[Hash]
    start_ms: Number | None
    end_ms: Number | None


class _Rest(Struct):
    """Fields of a manifest that cannot be computed from other fields."""

    views: dict[str, Number]
    filters: _FilterFields | None
    segments: tuple[Segment, ...]


class DamagedManifestError(ExportError):
    """The manifest of an export is damaged."""


def read_manifest(folder: Location) -> Manifest:
    """Return the manifest of an export, in a folder or at a URI, after verifying its checksum.

    Raises ExportError if the export is missing or unfinished, or if its format or dialect is unknown. Raises the
    subclass DamagedManifestError if the manifest is damaged.
    """
    source = folder_of(folder)
    try:
        return _manifest_of(source, source.read(MANIFEST))
    except FileNotFoundError:
        if source.exists(UNFINISHED):
            raise ExportError(f"{source} is an unfinished export. Run the same export again to continue it") from None
        raise ExportError(f"{source} is not an export: {MANIFEST} is missing") from None
    except ValueError as error:
        raise _damaged(source.file(MANIFEST), str(error), DamagedManifestError) from None


def _manifest_of(source: ObjectFolder, data: bytes) -> Manifest:
    """Return the manifest in the bytes of manifest.json. Raises ValueError if they are damaged."""
    path = source.file(MANIFEST)
    fields = read_checked(data)
    if source.is_local:
        restrict(source.path, is_own)
    head = as_declared(fields, _Head)
    if head.format not in (FORMAT, FORMAT_WITH_CONSENTS):
        raise ExportError(
            f"{path} has format {head.format}, but this version of cablestore reads {FORMAT} and "
            f"{FORMAT_WITH_CONSENTS}. Install another version"
        )
    if head.dialect not in DIALECTS:
        raise ExportError(f"{path} has the unknown dialect {head.dialect!r:.80}, expected one of {', '.join(DIALECTS)}")
    rest = as_declared(fields, _Rest)
    check_segments(rest.segments)
    filters = None if rest.filters is None else _filters_of(rest.filters)
    manifest = Manifest(plain(source), DIALECTS[head.dialect], rest.views, filters, rest.segments)
    if manifest.encode() != data:
        raise ValueError("its fields or totals do not match its segments")
    return manifest


def plain(source: ObjectFolder) -> Path | ObjectFolder:
    """Return the path of a folder on this disk, or any other folder unchanged."""
    return source.path if source.is_local else source


def _damaged(path: ObjectFile, reason: str, kind: type[ExportError] = ExportError) -> ExportError:
    return kind(f"{path} is damaged: {reason}. Copy the export again, or create a new one")


def check_segments(segments: Sequence[Segment]) -> None:
    """Raise ValueError unless segments are sorted by kind, numbered from 0 for each kind, and consistent.

    Raises ExportError for an unknown post type.
    """
    counts = Counter(segment.kind for segment in segments)
    expected = [segment_name(kind, number) for kind in KINDS for number in range(counts[kind])]
    for segment, name in zip(segments, expected, strict=True):
        if segment.file != name:
            raise ValueError(f"it lists the segment {segment.file!r:.80}, expected {name}")
        if unknown := segment.posts.keys() - TYPE_NUMBERS.keys():
            raise ExportError(
                f"unknown post type in the export: {min(unknown)!r:.80}. Install a newer version of cablestore"
            )
        has_posts = segment.kind == "posts"
        ends = {segment.first is not None, segment.last is not None}
        are_counts_right = [*segment.posts] == [name for name in TYPE_NUMBERS if name in segment.posts]
        are_counts_right &= sum(segment.posts.values()) == has_posts * segment.items
        if ends != {has_posts} or not are_counts_right:
            raise ValueError(f"the entry of {name} has inconsistent fields")


def _filters_of(fields: _FilterFields) -> Filters:
    channels, authors = frozenset(fields.channels), frozenset(map(bytes.fromhex, fields.authors))
    return Filters(channels, authors, fields.start_ms, fields.end_ms, fields.without_hidden)


def read_posts(folder: Location, segment: Segment) -> Iterator[list[bytes]]:
    """Yield the encoded posts of a segment in blocks, in order of (timestamp, hash).

    The file's checksum is verified first. Raises ExportError, which contains the file's name, if the file is missing or
    damaged or does not match the manifest. Raises StorageError after an I/O error.
    """
    path = folder_of(folder).file(segment.file)
    for block in _blocks(path, segment, "posts"):
        if any(type(raw) is not bytes or len(raw) > limits.MAX_POST_SIZE_BYTES for raw in block):
            raise _damaged(path, "it contains an item that is not a post")
        yield list(block)


def read_tombstones(folder: Location, segment: Segment) -> Iterator[list[Tombstone]]:
    """Yield the tombstones of a segment in blocks, in key order. Raises the same errors as `read_posts`."""
    path = folder_of(folder).file(segment.file)
    for block in _blocks(path, segment, "tombstones"):
        yield [_tombstone(path, item) for item in block]


def read_consents(folder: Location, segment: Segment) -> Iterator[list[Consent]]:
    """Yield the statements of a segment in blocks, as claims. Raises the same errors as `read_posts`."""
    path = folder_of(folder).file(segment.file)
    for block in _blocks(path, segment, "consents"):
        yield [_consent(path, item) for item in block]


def _consent(path: ObjectFile, item: Any) -> Consent:
    match item:
        case [bytes() as user, int() as timestamp_ms, bytes() as digest, bool() as accepts] if (
            len(user) == KEY_SIZE_BYTES and len(digest) == HASH_SIZE_BYTES and _is_time(timestamp_ms)
        ):
            return Consent(user, digest, timestamp_ms, accepts, is_claim=True)
    raise _damaged(path, "it contains an item that is not a statement about roles")


def _blocks(path: ObjectFile, segment: Segment, kind: SegmentKind) -> Iterator[tuple[Any, ...]]:
    if segment.kind != kind:
        raise ValueError(f"{segment.file} contains {segment.kind}, expected {kind}")
    items = 0
    for block in read_segment(path, segment.blake3):
        items += len(block)
        yield block
    if items != segment.items:
        raise _damaged(path, f"it contains {items} {kind}, expected {segment.items} as in the manifest")


def _tombstone(path: ObjectFile, item: Any) -> Tombstone:
    try:
        return Tombstone.read(item)
    except ValueError:
        raise _damaged(path, "it contains an item that is not a tombstone") from None


def _is_time(value: Any) -> bool:
    return type(value) is int and 0 <= value <= limits.MAX_TIMESTAMP_MS


class CoveredLog(Struct, frozen=True):
    """Part of a store's arrival log that an export covers: up to entry `through`, which `mark` identifies in hex.

    `mark` is None in an export of cablestore 0.12 or earlier.
    """

    store: str
    through: Number
    mark: Annotated[str, Meta(pattern=r"\A([0-9a-f]{2})*\Z")] | None = None

    def position_in(self, reader: Reader) -> int:
        """Return `through` if this store's log has the same history up to that entry, otherwise 0."""
        is_ours = self.mark is None or is_shared(reader, self.through, bytes.fromhex(self.mark))
        return self.through if is_ours else 0


def read_arrivals(folder: Location) -> CoveredLog | None:
    """Return the part of a store's arrival log that an export covers.

    Return None for an export of a store in memory. Raises ExportError if the file is malformed.
    """
    source = folder_of(folder)
    path = source.file(ARRIVALS)
    try:
        data = source.read(ARRIVALS)
    except FileNotFoundError:
        return None
    try:
        return read_document(data, CoveredLog)
    except ValueError as error:
        raise _damaged(path, str(error)) from None
