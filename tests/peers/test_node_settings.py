"""Settings of a node: their defaults, and invalid values."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cablestore import limits
from cablestore.errors import ArgumentError, NodeError
from cablestore.peers import Invitation, NodeSettings
from cablestore.peers.settings import FULL_PASS_EVERY_MS, PAGE_HASHES, SYNC_OVERLAP_MS

HOUR_MS = 60 * 60 * 1000


def test_a_setting_that_is_not_given_has_its_documented_default() -> None:
    settings = NodeSettings()
    assert (settings.max_store_size_bytes, settings.min_free_space_bytes) == (0, 0)  # unlimited
    assert (settings.reconcile_window_ms, settings.reconcile_delay_ms) == (HOUR_MS, 20_000)
    assert (SYNC_OVERLAP_MS, FULL_PASS_EVERY_MS) == (HOUR_MS, 24 * HOUR_MS)
    assert settings.page_hashes == PAGE_HASHES == 4_096  # the maximum of existing clients
    assert (settings.max_talks, settings.max_faults) == (limits.MAX_TALKS, limits.MAX_FAULTS)


@pytest.mark.parametrize("size_bytes", [0, 31, 33])
def test_a_cabal_key_of_another_size_is_rejected(size_bytes: int) -> None:
    with pytest.raises(NodeError, match=f"it has {size_bytes} bytes, expected 32"):
        NodeSettings(cabal_key=bytes(size_bytes))
    assert NodeSettings(cabal_key=bytes(32)).cabal_key == bytes(32)


@pytest.mark.parametrize("text", ["0123456789abcdef" * 2, "0123456789abcdef" * 4])
@pytest.mark.parametrize("give", [NodeSettings, Invitation])
def test_a_cabal_key_that_is_text_is_rejected_and_not_shown(give: Callable[..., object], text: str) -> None:
    """Thirty-two characters have the length of a key, and 64 are a key in hex."""
    with pytest.raises(ArgumentError, match="expected bytes, got a str of") as error:
        give(cabal_key=text)
    assert text not in str(error.value)
    with pytest.raises(ArgumentError, match=r"Use bytes\(value\)"):
        give(cabal_key=bytearray(32))
