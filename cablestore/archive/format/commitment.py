"""Statement about the content of archives. The control node signs it. Pure.

The id of an archive does not depend on its content, and the indexes of other software do not contain hashes of the
content. For each archive of an index, the statement contains the hash of its bytes and the Merkle root of its posts. It
also contains the post/deletes whose targets are from earlier weeks, so that an old archive does not restore posts that
were deleted later. The statement is stored in a field of the index that other readers skip.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Final, Self

from cablestore.archive.format.merkle import MerkleTree
from cablestore.errors import ArchiveError, DecodeError
from cablestore.plurals import counted
from cablestore.protocol.body import DELETE
from cablestore.protocol.crypto import KEY_SIZE_BYTES, Identity, are_signed, is_signed, post_hash
from cablestore.protocol.dialect import Dialect
from cablestore.protocol.post import Post, decode_post
from cablestore.protocol.protobuf import BOOL, BYTES, STRING, UINT32, UINT64, Document, Field

VERSION: Final = 1
_SHA256_SIZE_BYTES: Final = 32
_CONTEXT: Final = b"\xff" * 10 + b"cablestore archive index"
"""Prefix of the signed bytes.

The signed bytes of a post begin with a varint, and ten bytes 0xff are not a varint. Therefore a signature of a post is
never valid for a statement, or the reverse."""

ARCHIVE_COMMITMENT: Final = Document(
    "ArchiveCommitment",
    Field(1, "id", STRING),
    Field(2, "sha256", BYTES),
    Field(3, "num_posts", UINT64),
    Field(4, "merkle_root", BYTES),
    Field(5, "cid", STRING, has_presence=True),
)
STATEMENT: Final = Document(
    "Statement",
    Field(1, "version", UINT32),
    Field(2, "control_key", BYTES),
    Field(3, "dialect", STRING),
    Field(4, "profile", STRING),
    Field(5, "is_sealed", BOOL),
    Field(6, "archives", ARCHIVE_COMMITMENT, is_repeated=True),
    Field(7, "deletions", BYTES, is_repeated=True),
)
SIGNED_STATEMENT: Final = Document("SignedStatement", Field(1, "statement", BYTES), Field(2, "signature", BYTES))


@dataclass(frozen=True, slots=True)
class Commitment:
    """Commitment to one archive's content: SHA-256 of its stored bytes, number and Merkle root of its posts."""

    archive_id: str
    sha256: bytes
    num_posts: int
    merkle_root: bytes
    cid: str | None = None

    def check_stored(self, stored: bytes) -> None:
        """Raise ArchiveError unless the control node signed the hash of these bytes."""
        found = hashlib.sha256(stored).digest()
        if found != self.sha256:
            raise ArchiveError(
                f"archive {self.archive_id} is damaged: its SHA-256 is {found.hex()}, the control node signed "
                f"{self.sha256.hex()}. Fetch it again"
            )

    def check_posts(self, tree: MerkleTree) -> None:
        """Raise ArchiveError unless the control node signed the root of these posts."""
        if tree.size != self.num_posts or tree.root() != self.merkle_root:
            raise ArchiveError(
                f"archive {self.archive_id} contains {counted(tree.size, 'post')} with the root "
                f"{tree.root().hex()}, the control "
                f"node signed {self.num_posts} with {self.merkle_root.hex()}. Do not import it. Request a new index"
            )


@dataclass(frozen=True, slots=True)
class Statement:
    """Content of a signed statement.

    `control_key` is the control node's public key; `deletions` are encoded post/deletes.
    """

    control_key: bytes
    dialect: str
    profile: str
    is_sealed: bool
    commitments: tuple[Commitment, ...]
    deletions: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class SignedStatement:
    """Bytes of a statement, and the control node's 64-byte signature."""

    statement: bytes
    signature: bytes

    def encode(self) -> bytes:
        """Return the encoded statement and signature, as in an index."""
        return SIGNED_STATEMENT.encode(self.statement, self.signature)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a statement and its signature. Raises ArchiveError if they are malformed."""
        return cls(*SIGNED_STATEMENT.decode(data))


def sign(statement: Statement, identity: Identity) -> SignedStatement:
    """Sign a statement. Commitments are sorted by id and deletions by hash, so equal statements have equal bytes.

    Raises ArchiveError if the statement names another control node.
    """
    if statement.control_key != identity.public_key:
        raise ArchiveError(
            "the signing key differs from the control node in the statement. Sign with the control node's key"
        )
    data = STATEMENT.encode(
        VERSION,
        statement.control_key,
        statement.dialect,
        statement.profile,
        statement.is_sealed,
        [astuple(each) for each in sorted(statement.commitments, key=lambda each: each.archive_id)],
        sorted(set(statement.deletions), key=post_hash),
    )
    return SignedStatement(data, identity.sign(_CONTEXT + data))


def open_statement(signed: SignedStatement, control_key: bytes) -> Statement:
    """Return the statement that the node with this public key signed.

    The signature is checked before the statement is decoded.

    Raises ArchiveError for an invalid signature, another version and malformed commitments.
    """
    if len(control_key) != KEY_SIZE_BYTES or not is_signed(
        control_key + signed.signature + _CONTEXT + signed.statement
    ):
        raise ArchiveError(
            f"the index is not signed by the control node {control_key.hex()}. Do not import it. Contact the owner of "
            "the community"
        )
    version, key, dialect, profile, is_sealed, archives, deletions = STATEMENT.decode(signed.statement)
    if version != VERSION or key != control_key:
        raise ArchiveError(
            f"unsupported statement version {version} for {key.hex()} in the index, expected {VERSION}. A newer "
            "version of cablestore may support it"
        )
    commitments = tuple(_checked(Commitment(*each)) for each in archives)
    return Statement(control_key, dialect, profile, is_sealed, commitments, tuple(deletions))


def deletion_posts(deletions: Sequence[bytes], dialect: Dialect) -> list[Post]:
    """Return the decoded post/deletes of a statement. Raises ArchiveError for other posts and for wrong signatures."""
    posts = []
    for raw in deletions:
        try:
            post = decode_post(raw, dialect)
        except DecodeError as error:
            raise ArchiveError(f"invalid deletion in the index: not a {dialect.name} post: {error}") from None
        if post.type != DELETE:
            raise ArchiveError(f"invalid deletion in the index: expected a post/delete, got {post!r}")
        posts.append(post)
    for post, right in zip(posts, are_signed(deletions), strict=True):
        if not right:
            raise ArchiveError(f"invalid deletion in the index: {post!r} is not signed by its author")
    return posts


def _checked(commitment: Commitment) -> Commitment:
    sizes = {len(commitment.sha256), len(commitment.merkle_root)}
    if sizes != {_SHA256_SIZE_BYTES} or not commitment.num_posts:
        raise ArchiveError(
            f"invalid commitment to archive {commitment.archive_id[:80]!r}: {commitment.num_posts} posts and hashes of "
            f"{sizes} bytes, expected at least 1 post and {_SHA256_SIZE_BYTES} bytes"
        )
    return commitment
