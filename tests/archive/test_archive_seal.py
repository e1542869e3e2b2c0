"""Encryption of archives: deterministic, authenticated, and never guessed."""

from __future__ import annotations

import nacl.bindings as sodium
import pytest
from archiving import KEY, archive_of, both, three_posts
from hypothesis import given
from hypothesis import strategies as st

from cablestore.archive.format import seal as sealing
from cablestore.archive.format.archive import decode_archive
from cablestore.archive.format.profile import Profile
from cablestore.archive.format.seal import SEAL_OVERHEAD_BYTES, seal, unseal
from cablestore.errors import ArchiveError
from cablestore.protocol.protobuf import fields


@given(st.binary(max_size=200), st.binary(min_size=32, max_size=32), st.sampled_from([b"archive", b"index"]))
def test_encryption_is_deterministic_and_only_its_key_decrypts(plain: bytes, key: bytes, purpose: bytes) -> None:
    sealed = seal(plain, key, purpose=purpose)
    assert sealed == seal(plain, key, purpose=purpose)
    assert len(sealed) == len(plain) + SEAL_OVERHEAD_BYTES
    assert unseal(sealed, key, purpose=purpose) == plain
    with pytest.raises(ArchiveError, match="cannot be decrypted"):
        unseal(sealed, bytes(31) + b"\1" if key != bytes(31) + b"\1" else bytes(32), purpose=purpose)
    with pytest.raises(ArchiveError, match="cannot be decrypted"):
        unseal(sealed, key, purpose=b"another")


def test_nonces_differ_for_different_bytes_keys_and_purposes() -> None:
    """Nonces depend on the plain bytes, the key and the purpose."""
    sealed = [
        seal(plain, key, purpose=purpose)
        for plain in (b"a", b"b")
        for key in (KEY, bytes(32))
        for purpose in (b"archive", b"index")
    ]
    assert len({each[8:32] for each in sealed}) == len(sealed)


def test_a_ciphertext_with_an_arbitrary_nonce_is_rejected() -> None:
    """The key does not permit a second form of the same archive."""
    nonce = bytes(24)
    ciphertext = sodium.crypto_aead_xchacha20poly1305_ietf_encrypt(
        b"plain", sealing.MAGIC, nonce, sealing._encryption_key(KEY, b"index")
    )
    with pytest.raises(ArchiveError, match="cannot be decrypted"):
        unseal(sealing.MAGIC + nonce + ciphertext, KEY, purpose=b"index")


def test_an_encrypted_archive_is_not_valid_protobuf() -> None:
    sealed = seal(b"", KEY, purpose=b"archive")
    with pytest.raises(ArchiveError, match="invalid field"):
        list(fields(sealed, "archive"))
    with pytest.raises(ArchiveError, match="expected 32 bytes"):
        seal(b"", b"short", purpose=b"archive")


@both
def test_a_missing_or_unneeded_key_is_rejected(profile: Profile) -> None:
    public, private = archive_of(profile, three_posts()), archive_of(profile, three_posts(), KEY)
    with pytest.raises(ArchiveError, match="not encrypted"):
        decode_archive(profile, public.stored, public.entry(profile, 0), KEY)
    with pytest.raises(ArchiveError, match="is encrypted"):
        decode_archive(profile, private.stored, private.entry(profile, 0))
    with pytest.raises(ArchiveError, match="cannot be decrypted"):
        decode_archive(profile, private.stored, private.entry(profile, 0), bytes(32))
