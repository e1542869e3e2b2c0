"""The names that classes of `cablestore.sds` had up to version 0.7 are those of the same classes, with a warning."""

from __future__ import annotations

import pytest

from cablestore import sds


@pytest.mark.parametrize(
    ("old", "new"), [("Kind", sds.MessageKind), ("Message", sds.SdsMessage), ("Verdict", sds.ReceiveResult)]
)
def test_an_old_name_is_that_of_the_same_class(old: str, new: type) -> None:
    with pytest.warns(DeprecationWarning, match=f"cablestore.sds.{old} is now cablestore.sds.{new.__name__}"):
        assert getattr(sds, old) is new


def test_other_names_are_none() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = sds.Nothing
