"""Who writes in a store, and its key file: the seed in 64 hex digits and a line feed, mode 0600."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

from cablestore.errors import DecodeError, IdentityError
from cablestore.index.folder import IDENTITY_FILE
from cablestore.protocol.crypto import SEED_SIZE_BYTES, Identity
from cablestore.protocol.keys import parse_hex

MODE: Final = 0o600


class StoreIdentity:
    """Who writes in a store. The key file in `folder`, None for a store in memory, is made when it is first needed."""

    def __init__(self, identity: Identity | None, folder: Path | None) -> None:
        self._identity = identity
        self._path = None if folder is None else folder / IDENTITY_FILE
        self._identifying = threading.Lock()
        """Keeps two threads from making two key files."""

    @property
    def identity(self) -> Identity:
        """The identity; there is one from now on."""
        with self._identifying:
            identity = self.known()
            if identity is None:
                identity = Identity.generate()
                self._keep(identity)
            return identity

    def known(self) -> Identity | None:
        """Return the identity if there is one, without making it."""
        if self._identity is None and self._path is not None and self._path.exists():
            self._identity = load_identity(self._path)
        return self._identity

    def become(self, identity: Identity) -> None:
        """Write as `identity` from now on. Raises IdentityError where there is another already."""
        with self._identifying:
            known = self.known()
            if known is None:
                self._keep(identity)
            elif known != identity:
                raise IdentityError(
                    f"the store has the identity {known.public_key.hex()} already. Posts that it sealed would be lost with "
                    "another key: use a new store"
                )

    def _keep(self, identity: Identity) -> None:
        if self._path is not None:
            save_identity(identity, self._path)
        self._identity = identity

    def unseal(self, sealed: bytes) -> bytes:
        """Decrypt a local-only post. Raises IdentityError where there is no identity."""
        identity = self.known()
        return _no_identity(sealed) if identity is None else identity.unseal(sealed)


def unseal_of(identity: Identity | None, folder: Path) -> Callable[[bytes], bytes]:
    """Return what decrypts the local-only posts of the closed store in a folder, in other processes too."""
    known = StoreIdentity(identity, folder).known()
    return _no_identity if known is None else known.unseal


def unseal_with(key_file: Path, sealed: bytes) -> bytes:
    """Decrypt a local-only post with the identity in a key file."""
    return load_identity(key_file).unseal(sealed)


def _no_identity(_: bytes) -> NoReturn:
    raise IdentityError(
        "the store holds local-only posts but no identity to read them with: put its key file back. If it is lost, "
        "`cablestore export` brings all other posts into a new store"
    )


def save_identity(identity: Identity, path: Path) -> None:
    """Write a key file that did not exist before, mode 0600, on disk when this returns."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
    except FileExistsError:
        raise IdentityError(f"{path} exists already and is not overwritten: move it away first") from None
    except OSError as error:
        raise IdentityError(f"the identity cannot be written to {path}: {error.strerror}") from None
    with os.fdopen(descriptor, "w") as file:
        os.fchmod(descriptor, MODE)  # whatever the umask says
        file.write(identity.seed.hex() + "\n")
        file.flush()
        os.fsync(descriptor)


def load_identity(path: Path) -> Identity:
    """Read a key file: a seed (64 hex digits), or a libsodium secret key (128, seed and public key).

    Raises IdentityError where it is missing, malformed, or readable by others.
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise IdentityError(f"the identity cannot be read from {path}: {error}") from None
    if mode & 0o077:
        raise IdentityError(f"{path} has mode {mode:04o}: others could read the key. Run: chmod 600 {path}")
    return parse_identity(text)


def parse_identity(text: str) -> Identity:
    """Read an identity from 64 hex digits of seed, or 128 of a libsodium secret key."""
    try:
        if len(text) == 4 * SEED_SIZE_BYTES:
            secret = parse_hex(text, "a secret key", 2 * SEED_SIZE_BYTES)
            identity = Identity(secret[:SEED_SIZE_BYTES])
            if identity.public_key != secret[SEED_SIZE_BYTES:]:
                raise IdentityError("the two halves of the secret key do not belong together")
            return identity
        return Identity(parse_hex(text, "an identity", SEED_SIZE_BYTES))
    except DecodeError as error:
        raise IdentityError(error.reason) from None
