"""Errors of JSON documents name the field and the problem in the terms of JSON."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from cablestore.documents import as_declared, read_checked, read_document, with_checksum


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        (b'{"a": [1, "x"]}', dict[str, list[int]], "[...][1]: expected whole number, got string"),
        (b'["x"]', dict[str, int], "expected object, got array"),
        (b'{"a": 1}', dict[str, int | str | None], None),
        (b'{"a": 1.5}', dict[str, bool | str], "[...]: expected boolean or string, got number"),
        (b'{"a": ', dict[str, Any], "input data was truncated"),
        (b"[" * 100_000, list[Any], "it is nested too deeply"),
    ],
)
def test_an_error_has_the_field_and_the_problem(data: bytes, kind: Any, message: str | None) -> None:
    if message is None:
        assert read_document(data, kind) == {"a": 1}
        return
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the whole message is compared
        read_document(data, kind)
    assert str(error.value) == message


def test_an_error_is_printable_and_has_at_most_160_characters() -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011 - as above
        as_declared({"a" * 300 + "\x1b": 5, "b": "x"}, dict[str, int])
    assert str(error.value) == "[...]: expected whole number, got string"
    one_letter: Any = Literal["a"]
    with pytest.raises(ValueError) as error:  # noqa: PT011 - as above
        as_declared("x" * 300, one_letter)
    assert str(error.value) == "invalid enum value '".ljust(160, "x")


def test_a_manifest_has_a_checksum_of_its_fields() -> None:
    fields = {"b": 1, "a": ["é"]}
    data = with_checksum(fields)
    assert read_checked(data) == fields
    for damaged in (data.replace(b'"b": 1', b'"b": 2'), b'{"b": 1}', b'{"b": 1, "blake3": 5}'):
        with pytest.raises(ValueError, match=r"^its BLAKE3 checksum does not match its content$"):
            read_checked(damaged)
