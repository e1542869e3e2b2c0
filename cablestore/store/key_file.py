"""Identity of a store and its key file: the seed as 64 hex digits and a line feed, mode 0600."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

from cablestore.errors import DecodeError, IdentityError
from cablestore.files import read_small, storage_errors, sync_folder, text_of, unique_suffix
from cablestore.index.folder import IDENTITY_FILE
from cablestore.index.opening import reject_write
from cablestore.protocol.crypto import SEED_SIZE_BYTES, Identity
from cablestore.protocol.keys import parse_hex

MODE: Final = 0o600


class StoreIdentity:
    """Identity under which a store writes. The key file in `folder` is created when it is first needed.

    A store in memory has no folder and no key file. A `read_only` store may belong to another user, or be on a disk
    without file modes. It accepts any mode, treats an unreadable key file as missing, and does not create a key file.
    """

    def __init__(self, identity: Identity | None, folder: Path | None, *, read_only: bool = False) -> None:
        self._identity = identity
        self.known_key = None if identity is None else identity.public_key
        """The public key of the identity that `load` or `identity` returned last, otherwise None."""
        self._read_only = read_only
        self._path = None if folder is None else folder / IDENTITY_FILE
        self._identifying = threading.Lock()
        """Lock that prevents two threads from creating two key files."""

    @property
    def identity(self) -> Identity:
        """The identity. If it is missing, the first use creates it, or raises IdentityError in a read-only store."""
        if self._identity is not None:
            return self._identity
        with self._identifying:
            identity = self.load()
            if identity is None and self._read_only:
                raise IdentityError("the store has no readable key, and cannot create a key because it is read-only")
            if identity is None:
                identity = Identity.generate()
                self._keep(identity)
            return identity

    def load(self) -> Identity | None:
        """Return the identity, None if the store has none yet. The first call that finds a key file reads it."""
        if self._identity is None and self._path is not None and self._path.exists():
            if not self._read_only:
                self._set(load_identity(self._path))
            elif _is_readable(self._path):
                self._set(load_identity(self._path, any_mode=True))
        return self._identity

    def _set(self, identity: Identity) -> None:
        self.known_key = identity.public_key  # first, because other threads read the key after the identity
        self._identity = identity

    def become(self, identity: Identity) -> None:
        """Sign new posts with `identity`. Raises IdentityError if the store has another identity."""
        with self._identifying:
            known = self.load()
            if known is None:
                self._keep(identity)
            elif known != identity:
                raise IdentityError(
                    f"the store already has the identity {known.public_key.hex()}. Another key could not decrypt its "
                    "local-only posts. Use a new store"
                )

    def _keep(self, identity: Identity) -> None:
        if self._read_only:
            reject_write()
        if self._path is not None:
            save_identity(identity, self._path)
        self._set(identity)

    def unseal(self, sealed: bytes) -> bytes:
        """Decrypt a local-only post. Raises IdentityError if the store has no identity."""
        identity = self.load()
        return _no_identity(sealed) if identity is None else identity.unseal(sealed)


def unseal_of(identity: Identity | None, folder: Path, *, read_only: bool = False) -> Callable[[bytes], bytes]:
    """Return a function that decrypts the local-only posts of a closed store. It can be pickled."""
    known = StoreIdentity(identity, folder, read_only=read_only).load()
    return _no_identity if known is None else known.unseal


def unseal_with(key_file: Path, sealed: bytes) -> bytes:
    """Decrypt a local-only post with the identity in a key file."""
    return load_identity(key_file).unseal(sealed)


def _no_identity(_: bytes) -> NoReturn:
    raise IdentityError(
        "cannot decrypt local-only posts: the store has no identity. Restore its key file. If the key is lost, copy "
        "all other posts to a new store with `cablestore export`"
    )


def save_identity(identity: Identity, path: Path) -> None:
    """Write a new key file with mode 0600 and flush it to disk.

    The file appears under its name only when it is complete. Raises IdentityError if the file exists, StorageError if
    it cannot be written.
    """
    save_secret(identity.seed, path, "identity")


def save_secret(secret: bytes, path: Path, what: str) -> None:
    """Write a secret to a new file, as `save_identity` does. `what` names the secret in error messages."""
    draft = _draft(secret, path, what)
    with storage_errors(f"cannot write the {what} to {path}"):
        try:
            _name(draft, path)
        except FileExistsError:
            raise IdentityError(f"{path} already exists and is not overwritten. Move this file away first") from None
        finally:
            draft.unlink(missing_ok=True)
        sync_folder(path.parent)


def draft_identity(identity: Identity, path: Path) -> Path:
    """Write a key file beside `path` under a temporary name, and flush it to disk. Return the temporary path."""
    return _draft(identity.seed, path, "identity")


def _draft(secret: bytes, path: Path, what: str) -> Path:
    if path.is_dir():
        raise IdentityError(f"cannot write the {what} to {path}: it is a folder. Choose a new file")
    draft = path.with_name(path.name + unique_suffix())
    with storage_errors(f"cannot write the {what} to {path}"):
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
        try:
            with os.fdopen(descriptor, "w") as file:
                os.fchmod(descriptor, MODE)  # regardless of the umask
                file.write(secret.hex() + "\n")
                file.flush()
                os.fsync(descriptor)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
    return draft


def _name(draft: Path, path: Path) -> None:
    """Move the file `draft` to `path`. Raises FileExistsError if `path` exists or another process is creating it."""
    try:
        os.link(draft, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: an empty file reserves the name first
        path.touch(MODE, exist_ok=False)
        draft.replace(path)


def _is_readable(path: Path) -> bool:
    try:
        path.open().close()
    except PermissionError:
        return False
    except OSError as error:
        raise IdentityError(f"cannot read the identity from {path}: {error.strerror}") from None
    return True


def load_identity(path: Path, *, any_mode: bool = False) -> Identity:
    """Read a key file: a seed (64 hex digits) or a libsodium secret key (128 hex digits: seed and public key).

    Raises IdentityError if the file is missing, malformed, or accessible to other users. With `any_mode`, a file that
    other users can access is accepted.
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        text = text_of(read_small(path)).strip()
    except UnicodeDecodeError:
        raise IdentityError(f"cannot read the identity from {path}: it is not a text file") from None
    except OSError as error:
        raise IdentityError(f"cannot read the identity from {path}: {error.strerror}") from None
    if not text:
        raise IdentityError(
            f"cannot read the identity from {path}: the file is empty. Restore the key from a copy. Without a copy, "
            "remove the file, and the store creates a new key"
        )
    if mode & 0o077 and not any_mode:
        raise IdentityError(f"{path} has mode {mode:04o}, so other users could read the key. Run: chmod 600 {path}")
    try:
        return parse_identity(text)
    except IdentityError as error:
        raise IdentityError(f"invalid key file {path}: {error}") from None


def parse_identity(text: str) -> Identity:
    """Parse an identity: 64 hex digits of a seed, or 128 hex digits of a libsodium secret key.

    Raises IdentityError, whose message does not contain the digits.
    """
    try:
        if len(text) == 4 * SEED_SIZE_BYTES:
            secret = parse_hex(text, "a secret key", 2 * SEED_SIZE_BYTES, is_secret=True)
            identity = Identity(secret[:SEED_SIZE_BYTES])
            if identity.public_key != secret[SEED_SIZE_BYTES:]:
                raise IdentityError("the seed and the public key of the secret key do not match")
            return identity
        return Identity(parse_hex(text, "an identity", SEED_SIZE_BYTES, is_secret=True))
    except DecodeError as error:
        raise IdentityError(error.reason) from None
