"""Index of archives in both profiles, with positions in `data` or with content ids. Pure.

An index is a protobuf map from ids to metadata. Maps are not ordered: two runs of status-go write different bytes for
the same index, with different info-hashes. Here entries are written sorted by id, and read in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from cablestore.archive.format.cid import Cid
from cablestore.archive.format.commitment import (
    Commitment,
    SignedStatement,
    Statement,
    deletion_posts,
    open_statement,
    sign,
)
from cablestore.archive.format.fitting import smallest_within
from cablestore.archive.format.profile import Entry, Profile, archive_id
from cablestore.archive.format.seal import is_sealed, seal, unseal
from cablestore.errors import ArchiveError
from cablestore.limits import (
    MAX_INDEX_ARCHIVES,
    MAX_INDEX_SIZE_BYTES,
    MAX_STORED_ARCHIVE_SIZE_BYTES,
    PIECE_SIZE_BYTES,
)
from cablestore.protocol.crypto import Identity, post_hash
from cablestore.protocol.dialect import Dialect
from cablestore.protocol.protobuf import BYTES, STRING, Document, Field, fields, repeated, sized_field

_PURPOSE: Final = b"index"
_ARCHIVES_FIELD: Final = 1
_COMMITMENT_FIELD: Final = 1000
_DELETIONS_FIELD: Final = 7
"""Field number in a statement."""
RAW_ENTRY: Final = Document("RawEntry", Field(1, "key", STRING), Field(2, "value", BYTES))
"""Entry of the map. The value remains encoded, because the archive's id is the hash of the encoded value."""
_LENGTHS_GROW_BYTES: Final = 8
"""Maximum number of bytes by which two length fields grow when deletions are added: the length of the statement, and
the length of the signed statement."""


@dataclass(frozen=True, slots=True)
class Index:
    """Index. `entries` are sorted by period, offset and id; `signed` is the control node's statement, or None."""

    profile: Profile
    entries: tuple[Entry, ...]
    signed: SignedStatement | None = None


@dataclass(frozen=True, slots=True)
class VerifiedIndex:
    """Index that its control node signed, with the commitments by archive id and the encoded post/deletes."""

    index: Index
    commitments: dict[str, Commitment]
    deletions: tuple[bytes, ...]


def make_index(profile: Profile, entries: Iterable[Entry], signed: SignedStatement | None = None) -> Index:
    """Return the index of these entries, in any order."""
    return Index(profile, tuple(sorted(entries, key=_order)), signed)


def signed_index(
    index: Index,
    commitments: Iterable[Commitment],
    identity: Identity,
    dialect: Dialect,
    *,
    deletions: Iterable[bytes] = (),
    sealed: bool,
) -> Index:
    """Return the index with a statement about its archives, signed by the control node `identity`.

    Raises ArchiveError unless there is one commitment to each archive of the index.
    """
    statement = Statement(
        identity.public_key, dialect.name, index.profile.name, sealed, tuple(commitments), tuple(deletions)
    )
    _check_commitments(index.entries, statement.commitments)
    return Index(index.profile, index.entries, sign(statement, identity))


def encode_signed_index(
    index: Index,
    commitments: Iterable[Commitment],
    identity: Identity,
    dialect: Dialect,
    deletions: Iterable[bytes],
    key: bytes | None = None,
) -> tuple[bytes, list[bytes]]:
    """Return the bytes of the signed index, and the sorted hashes of the `deletions` that do not fit.

    The largest deletions are left out. Each is also in the archive of its week, so a member that imports that archive
    deletes the same posts. Other arguments and errors are as in `signed_index` and `encode_index`.
    """
    known = tuple(commitments)

    def encoded(kept: Iterable[bytes]) -> bytes:
        return _encoded(signed_index(index, known, identity, dialect, deletions=kept, sealed=key is not None), key)

    kept, left_out = smallest_within(set(deletions), MAX_INDEX_SIZE_BYTES, _place_of_deletion)
    data = encoded(kept)
    if len(data) > MAX_INDEX_SIZE_BYTES:
        room_bytes = MAX_INDEX_SIZE_BYTES - len(encoded(())) - _LENGTHS_GROW_BYTES
        kept, more = smallest_within(kept, room_bytes, _place_of_deletion)
        data, left_out = encoded(kept), more + left_out
    _check_size(data)
    return data, sorted(map(post_hash, left_out))


def _place_of_deletion(raw: bytes) -> tuple[int, bytes]:
    return len(sized_field(_DELETIONS_FIELD, raw)), post_hash(raw)


def encode_index(index: Index, key: bytes | None = None) -> bytes:
    """Return the bytes of an index, encrypted with a 32-byte cabal key if given. Equal indexes have equal bytes.

    Raises ArchiveError for an index that exceeds `limits.MAX_INDEX_ARCHIVES` or `limits.MAX_INDEX_SIZE_BYTES`.
    """
    data = _encoded(index, key)
    _check_size(data)
    return data


def _encoded(index: Index, key: bytes | None) -> bytes:
    """Return the bytes of an index of any size, encrypted with `key` if given."""
    if len(index.entries) > MAX_INDEX_ARCHIVES:
        raise ArchiveError(f"too many archives in the index: {len(index.entries)}, the maximum is {MAX_INDEX_ARCHIVES}")
    write = index.profile.write_index_metadata
    data = repeated(
        _ARCHIVES_FIELD,
        (
            RAW_ENTRY.encode(entry.archive_id, write(entry))
            for entry in sorted(index.entries, key=lambda entry: entry.archive_id)
        ),
    )
    if index.signed is not None:
        data += sized_field(_COMMITMENT_FIELD, index.signed.encode())
    return data if key is None else seal(data, key, purpose=_PURPOSE)


def _check_size(data: bytes) -> None:
    if len(data) > MAX_INDEX_SIZE_BYTES:
        raise ArchiveError(f"index too large: {len(data)} bytes, the maximum is {MAX_INDEX_SIZE_BYTES}")


def decode_index(
    data: bytes, profile: Profile, *, data_size_bytes: int | None = None, key: bytes | None = None
) -> Index:
    """Decode an index.

    `data_size_bytes` is the size of `data` with the archives, or None for an index by content id. With a key, the index
    must be encrypted with it. Without a key, it must not be encrypted. Checks that each id matches the metadata, that
    each archive consists of whole pieces within `data`, and that archives do not overlap. The signature is not checked:
    see `verify_index`. Raises ArchiveError if a check fails.
    """
    return _decoded(_plain(data, key), profile, data_size_bytes, None)


def verify_index(
    data: bytes,
    profile: Profile,
    control_key: bytes,
    dialect: Dialect,
    *,
    data_size_bytes: int | None = None,
    key: bytes | None = None,
) -> VerifiedIndex:
    """Decode and verify an index that the control node with this public key signed for this profile and dialect.

    The signature is checked first, then the properties that `decode_index` checks. The statement must list exactly the
    archives of the index, and its deletions must be signed post/deletes. The bytes must equal the encoding by
    `encode_index`. Raises ArchiveError if a check fails.
    """
    plain = _plain(data, key)
    statement = open_statement(_signed_in(plain), control_key)
    found = (statement.profile, statement.dialect, statement.is_sealed)
    if found != (profile.name, dialect.name, key is not None):
        raise ArchiveError(
            f"the statement is for (profile, dialect, sealed) {found}, expected "
            f"{(profile.name, dialect.name, key is not None)}. Check the configuration"
        )
    index = _decoded(plain, profile, data_size_bytes, frozenset(each.archive_id for each in statement.commitments))
    _check_commitments(index.entries, statement.commitments)
    deletion_posts(statement.deletions, dialect)
    if encode_index(index, key) != data:
        raise ArchiveError("the encoding of the index differs from the encoding by cablestore. Fetch it again")
    return VerifiedIndex(index, {each.archive_id: each for each in statement.commitments}, statement.deletions)


def _plain(data: bytes, key: bytes | None) -> bytes:
    """Return the document of an index, decrypted if there is a key."""
    if len(data) > MAX_INDEX_SIZE_BYTES:
        raise ArchiveError(
            f"index too large: {len(data)} bytes, the maximum is {MAX_INDEX_SIZE_BYTES}. Contact the owner of the "
            "community"
        )
    if key is not None:
        return unseal(data, key, purpose=_PURPOSE)
    if is_sealed(data):
        raise ArchiveError("the index is encrypted, expected a public index. Pass the cabal key (--cabal-key)")
    return data


def _parts(plain: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the encoded entries and the signed statement of an index, each as (field number, value).

    Raises ArchiveError for unknown fields and if there are too many archives.
    """
    archives = commitments = 0
    for field, value in fields(plain, "index"):
        archives += field == _ARCHIVES_FIELD
        commitments += field == _COMMITMENT_FIELD
        if field not in (_ARCHIVES_FIELD, _COMMITMENT_FIELD) or isinstance(value, int) or commitments > 1:
            raise ArchiveError(f"unknown field {field} in the index. A newer version of cablestore may support it")
        if archives > MAX_INDEX_ARCHIVES:
            raise ArchiveError(f"too many archives in the index: the maximum is {MAX_INDEX_ARCHIVES}")
        yield field, value


def _signed_in(plain: bytes) -> SignedStatement:
    """Return the statement of an index. Raises ArchiveError if the statement is missing."""
    for field, value in _parts(plain):
        if field == _COMMITMENT_FIELD:
            return SignedStatement.decode(value)
    raise ArchiveError("the index is not signed. Import it only if you trust its source")


def _decoded(plain: bytes, profile: Profile, data_size_bytes: int | None, stated: frozenset[str] | None) -> Index:
    """Decode the document of an index. With `stated`, an entry is rejected before decoding if `stated` lacks its id."""
    entries: dict[str, Entry] = {}
    signed: SignedStatement | None = None
    for field, value in _parts(plain):
        if field == _COMMITMENT_FIELD:
            signed = SignedStatement.decode(value)
            continue
        entry = _read_entry(profile, value, data_size_bytes, stated)
        if entry.archive_id in entries:
            raise ArchiveError(f"the index contains archive {entry.archive_id} twice. Request a new index")
        entries[entry.archive_id] = entry
    index = make_index(profile, entries.values(), signed)
    _check_apart(index.entries)
    return index


def _read_entry(profile: Profile, data: bytes, data_size_bytes: int | None, stated: frozenset[str] | None) -> Entry:
    name, metadata = RAW_ENTRY.decode(data)
    # The id is a hash of the metadata, so only metadata that the control node signed is decoded.
    if stated is not None and name not in stated:
        raise ArchiveError(
            f"archive {name[:80]!r} of the index is not among the {len(stated)} archives of its statement. Request a "
            "new index"
        )
    if archive_id(metadata) != name:
        raise ArchiveError(
            f"archive {name[:80]!r} of the index has the metadata of {archive_id(metadata)}. Fetch the index again"
        )
    entry = profile.read_index_metadata(name, metadata, by_cid=data_size_bytes is None)
    if profile.write_index_metadata(entry) != metadata:
        raise ArchiveError(
            f"invalid metadata of archive {name}: expected metadata of a {profile.name} index "
            f"{'by content id' if data_size_bytes is None else 'of offsets'}. Check the profile and the form"
        )
    if data_size_bytes is not None:
        _check_place(entry, data_size_bytes)
    else:
        Cid.parse(entry.cid or "")
    return entry


def _check_place(entry: Entry, data_size_bytes: int) -> None:
    offset, size, padding = entry.offset_bytes, entry.size_bytes, entry.padding_bytes
    if offset % PIECE_SIZE_BYTES or size % PIECE_SIZE_BYTES:
        reason = f"expected whole pieces of {PIECE_SIZE_BYTES}"
    elif not 0 < size <= MAX_STORED_ARCHIVE_SIZE_BYTES:
        reason = f"expected 1 to {MAX_STORED_ARCHIVE_SIZE_BYTES}"
    elif offset + size > data_size_bytes:
        reason = f"`data` has only {data_size_bytes}"
    elif padding > PIECE_SIZE_BYTES or padding >= size:
        reason = f"its padding of {padding} bytes exceeds a piece, or is the whole archive"
    else:
        return
    raise ArchiveError(
        f"invalid position of archive {entry.archive_id}: {size} bytes at {offset}: {reason}. Request a new index"
    )


def _check_apart(entries: Iterable[Entry]) -> None:
    end_bytes = 0
    for entry in sorted((entry for entry in entries if entry.cid is None), key=lambda entry: entry.offset_bytes):
        if entry.offset_bytes < end_bytes:
            raise ArchiveError(
                f"archive {entry.archive_id} overlaps the archive that ends at byte {end_bytes} of `data`. Request a "
                "new index"
            )
        end_bytes = entry.offset_bytes + entry.size_bytes


def _check_commitments(entries: tuple[Entry, ...], commitments: tuple[Commitment, ...]) -> None:
    """Raise ArchiveError unless each entry has one commitment, with the same content id if the entry has one."""
    stated = {each.archive_id: each.cid for each in commitments}
    if len(stated) != len(commitments) or stated.keys() != {entry.archive_id for entry in entries}:
        raise ArchiveError(
            f"the {len(commitments)} archives of the statement differ from the {len(entries)} archives of the index. "
            "Request a new index"
        )
    for entry in entries:
        if entry.cid is not None and stated[entry.archive_id] != entry.cid:
            raise ArchiveError(
                f"archive {entry.archive_id} has the content id {entry.cid}, but the statement contains "
                f"{stated[entry.archive_id]}. Request a new index"
            )


def _order(entry: Entry) -> tuple[int, int, int, str]:
    return (*entry.period, entry.offset_bytes, entry.archive_id)
