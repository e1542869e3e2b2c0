"""No secret is in what a program shows of its settings, say in a traceback or a log."""

from __future__ import annotations

import pytest
from people import ANN

from cablestore.archive.format.profile import RFC61
from cablestore.archive.publish import Publisher
from cablestore.archive.writer import ArchivePlan
from cablestore.peers import Invitation, NodeSettings
from cablestore.protocol.crypto import Identity
from cablestore.protocol.dialect import DRAFT8

SECRET = bytes(range(100, 132))


@pytest.mark.parametrize(
    "holder",
    [
        NodeSettings(cabal_key=SECRET),
        Invitation(SECRET, (), b""),
        ArchivePlan(RFC61, ANN.identity, DRAFT8, SECRET),
        Publisher(ANN.identity, DRAFT8, SECRET),
        Identity(SECRET),
    ],
    ids=lambda holder: type(holder).__name__,
)
def test_what_is_shown_has_no_secret(holder: object) -> None:
    for secret in (SECRET, ANN.identity.seed):
        for shown in (repr(holder), str(holder) if not isinstance(holder, Invitation) else ""):
            assert repr(secret) not in shown
            assert secret.hex() not in shown
