"""One pass over the content of a backup: intact pieces, posts that may be stored, and the store's signature.

Anyone who can write the folder can write pieces with the right checksums. So posts are verified like those of an import.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from cablestore.backup.manifest import MANIFEST, BackupManifest, BackupProblem, Piece, PieceKind, read_posts, read_rows
from cablestore.errors import CorruptBackupError, IdentityError, StorageError
from cablestore.files import ObjectFolder
from cablestore.index.database import Row
from cablestore.index.verdict import Outcome, Verdict
from cablestore.protocol.crypto import Identity
from cablestore.protocol.post import Post
from cablestore.store.intake import Intake, IntakeBatch

T = TypeVar("T")
Verified = tuple[Piece, list[Post], list[Outcome]]
"""A piece, its posts that may be stored, and the outcomes of the others."""


@dataclass(slots=True)
class BackupReading:
    """One pass over the content of a backup. With `salvage` a damaged piece is noted and left out, otherwise it raises."""

    folder: ObjectFolder
    manifest: BackupManifest
    salvage: bool
    problems: dict[str, BackupProblem] = field(default_factory=dict)
    """Files that are not as the store wrote them, by name."""

    def posts(self, intake: Intake) -> Iterator[Verified]:
        """Yield the posts of each piece, verified on all cores while the caller stores those of the piece before."""
        ahead: tuple[Piece, IntakeBatch] | None = None
        for piece in self.manifest.of("posts"):
            for raws in self._intact(piece, read_posts(self.folder, piece)):
                batch = intake.decode(raws)
                intake.verify(batch)
                if ahead is not None:
                    yield _verified(*ahead)
                ahead = piece, batch
        if ahead is not None:
            yield _verified(*ahead)

    def rows(self, kind: PieceKind) -> Iterator[list[Row]]:
        """Yield the rows of each piece of a kind."""
        for piece in self.manifest.of(kind):
            yield from self._intact(piece, read_rows(self.folder, piece))

    def _intact(self, piece: Piece, blocks: Iterator[T]) -> Iterator[T]:
        try:
            yield from blocks
        except (CorruptBackupError, StorageError) as error:
            if not self.salvage:
                raise
            self.problems[piece.file] = BackupProblem(piece.file, str(error))

    def lost_items(self, kind: PieceKind) -> int:
        """Return how many items were in the damaged pieces of a kind."""
        return sum(piece.items for piece in self.manifest.of(kind) if piece.file in self.problems)

    def is_authentic(self, identity: Identity | None) -> bool:
        """Tell whether the store's key signed the backup, and note a signature that is invalid.

        Raises IdentityError if another key than `identity` signed it.
        """
        manifest = self.manifest
        if manifest.signature is None:
            return False
        if identity is not None and manifest.signed_by != identity.public_key.hex():
            raise IdentityError(
                f"{self.folder} is signed by the key {manifest.signed_by}, and {identity.public_key.hex()} is another "
                "one. Name the store's own key"
            )
        if not manifest.is_signed:
            self.problems[MANIFEST] = BackupProblem(
                MANIFEST,
                f"{self.folder.file(MANIFEST)} has an invalid signature: the backup was changed by someone without the "
                "store's key. Use another copy of the backup",
            )
            return False
        return identity is not None


def _verified(piece: Piece, batch: IntakeBatch) -> Verified:
    signed = batch.signed()
    outcomes = batch.settle([Verdict.ACCEPTED if is_valid else Verdict.BAD_SIGNATURE for is_valid in signed])
    posts = [post for post, is_valid in zip(batch.posts, signed, strict=True) if is_valid]
    rejected = [] if len(posts) == len(outcomes) else [o for o in outcomes if o.verdict is not Verdict.ACCEPTED]
    return piece, posts, rejected
