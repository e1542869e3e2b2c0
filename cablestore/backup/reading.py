"""Reading a backup: its intact pieces, the posts that may be stored, and the store's signature.

Anyone who can write the folder can write pieces with the right checksums. So posts are verified as in an import.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from cablestore.backup.manifest import (
    MANIFEST,
    BackupManifest,
    BackupProblem,
    Piece,
    PieceKind,
    damaged_files,
    read_posts,
    read_rows,
)
from cablestore.errors import BackupError, IdentityError, StorageError
from cablestore.files import ObjectFolder
from cablestore.index.database import Row
from cablestore.index.verdict import Outcome, Verdict
from cablestore.protocol.crypto import Identity
from cablestore.protocol.post import Post
from cablestore.store.intake import Intake, IntakeBatch

T = TypeVar("T")
Verified = tuple[Piece, list[Post], list[Outcome]]
"""A piece, its posts that may be stored, and the outcomes of its rejected posts."""


@dataclass(slots=True)
class BackupReading:
    """Reader of a backup. With `salvage`, it records and omits damaged pieces. Otherwise, it raises BackupError."""

    folder: ObjectFolder
    manifest: BackupManifest
    salvage: bool
    file: str = MANIFEST
    """The file with the manifest."""
    problems: dict[str, BackupProblem] = field(default_factory=dict)
    """Problems of damaged and changed files, by name."""
    _listed: dict[str, BackupProblem] = field(init=False)
    """Files that are missing or have a wrong size. They are not read, because a file that grew may exceed the memory."""

    def __post_init__(self) -> None:
        """Compare the sizes of the files in the folder with the manifest."""
        listed = damaged_files(self.folder, self.manifest, self.folder.sizes())
        self._listed = {problem.file: problem for problem in listed}

    def require_complete(self) -> None:
        """Raise BackupError if a file is missing or has a wrong size."""
        for problem in self._listed.values():
            raise BackupError(problem.what)

    def posts(self, intake: Intake) -> Iterator[Verified]:
        """Yield the verified posts of each piece. All cores verify a piece while the caller stores the previous one."""
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
        if self.salvage and piece.file in self._listed:
            self.problems[piece.file] = self._listed[piece.file]
            return
        try:
            yield from blocks
        except (BackupError, StorageError) as error:
            if not self.salvage:
                raise
            self.problems[piece.file] = BackupProblem(piece.file, str(error))

    def lost_items(self, kind: PieceKind) -> int:
        """Return the number of items in the damaged pieces of a kind."""
        return sum(piece.items for piece in self.manifest.of(kind) if piece.file in self.problems)

    def require_key(self, named: str | None, identity: Identity, what: str) -> bool:
        """Return True if `named`, the public key in the backup, belongs to `identity`.

        Otherwise raise IdentityError, or with `salvage` record the problem and return False. `what` is the verb of the
        message, such as "is signed by".
        """
        if named == identity.public_key.hex():
            return True
        text = f"wrong key {identity.public_key.hex()}: {self.folder} {what} the key {named}"
        if not self.salvage:
            raise IdentityError(
                f"{text}. Pass the key of the store. If it is the key of the store, someone changed the backup. Use "
                "another copy, or restore the authentic part with --salvage"
            )
        self.problems[self.file] = BackupProblem(self.file, f"{text}. Someone changed the backup, or the key is wrong")
        return False

    def is_authentic(self, identity: Identity | None) -> bool:
        """Return True if `identity`, the store's key, signed the backup. Record an invalid signature as a problem.

        Without `identity`, only check the signature against the key in the manifest, and return False. If another key
        than `identity` signed the backup, `require_key` raises IdentityError or records the problem.
        """
        manifest = self.manifest
        if manifest.signature is None or self.file in self.problems:
            return False
        if identity is not None and not self.require_key(manifest.signed_by, identity, "is signed by"):
            return False
        if not manifest.is_signed:
            self.problems[self.file] = BackupProblem(
                self.file,
                f"{self.folder.file(self.file)} has an invalid signature: someone without the store's key changed the "
                "backup. Use another copy of the backup",
            )
            return False
        return identity is not None


def _verified(piece: Piece, batch: IntakeBatch) -> Verified:
    signed = batch.signed()
    outcomes = batch.settle([Verdict.ACCEPTED if is_valid else Verdict.BAD_SIGNATURE for is_valid in signed])
    posts = [post for post, is_valid in zip(batch.posts, signed, strict=True) if is_valid]
    rejected = [] if len(posts) == len(outcomes) else [o for o in outcomes if o.verdict is not Verdict.ACCEPTED]
    return piece, posts, rejected
