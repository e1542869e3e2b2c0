"""Documents by tables: the protobuf library writes the same bytes, and reads and rejects the same ones."""

from __future__ import annotations

from typing import Any

import pytest
from archive_documents import Documents, commitment, rfc61, status_go, waku
from google.protobuf.message import DecodeError as ProtobufDecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from cablestore.archive.format.commitment import ARCHIVE_COMMITMENT, SIGNED_STATEMENT, STATEMENT
from cablestore.archive.format.index import RAW_ENTRY
from cablestore.archive.format.profile import RFC61, STATUS_GO, STATUS_GO_MESSAGE
from cablestore.errors import ArchiveError
from cablestore.protocol.protobuf import BOOL, BYTES, SINT64, STRING, UINT32, UINT64, Document, Field, fields
from cablestore.protocol.varint import encode_varint
from cablestore.protocol.waku import WAKU_MESSAGE

DOCUMENTS: list[tuple[Document, Documents]] = [
    (WAKU_MESSAGE, waku),
    (STATUS_GO_MESSAGE, status_go),
    *((table, rfc61) for table in (RFC61.archive_metadata, RFC61.index_metadata, RFC61.codex_metadata)),
    *((table, status_go) for table in (STATUS_GO.archive_metadata, STATUS_GO.index_metadata, STATUS_GO.codex_metadata)),
    *((table, commitment) for table in (ARCHIVE_COMMITMENT, STATEMENT, SIGNED_STATEMENT, RAW_ENTRY)),
]
MORE = settings(max_examples=4 * settings().max_examples)
"""Settings with more examples, because each example covers only one of the documents."""

VALUES: dict[Any, st.SearchStrategy[Any]] = {
    BYTES: st.binary(max_size=200),
    STRING: st.text(max_size=70),
    BOOL: st.booleans(),
    UINT32: st.integers(0, 2**32 - 1),
    UINT64: st.integers(0, 2**64 - 1) | st.sampled_from([0, 127, 128, 2**56 - 1, 2**56, 2**63 - 1, 2**63]),
    SINT64: st.integers(-(2**63), 2**63 - 1),
}


def values_of(field: Field) -> st.SearchStrategy[Any]:
    values = rows_of(field.kind) if isinstance(field.kind, Document) else VALUES[field.kind]
    if field.is_repeated:
        return st.lists(values, max_size=4)
    return st.just(field.absent) | values


def rows_of(table: Document) -> st.SearchStrategy[list[Any]]:
    return st.tuples(*map(values_of, table.table)).map(list)


def named(table: Document, row: list[Any]) -> dict[str, Any]:
    """Return the arguments of the library's class."""
    found = {}
    for field, value in zip(table.table, row, strict=True):
        if value is not None and isinstance(field.kind, Document):
            inner = field.kind
            found[field.name] = [named(inner, each) for each in value] if field.is_repeated else named(inner, value)
        else:
            found[field.name] = value
    return found


def row_of(table: Document, message: Any) -> list[Any]:
    """Return the values of the library's message in the order of the table."""
    row: list[Any] = []
    for field in table.table:
        value = getattr(message, field.name)
        inner = field.kind if isinstance(field.kind, Document) else None
        if field.is_repeated:
            row.append([row_of(inner, each) if inner else each for each in value])
        elif field.absent is None and not message.HasField(field.name):
            row.append(None)
        else:
            row.append(row_of(inner, value) if inner else value)
    return row


def read(table: Document, data: bytes) -> list[Any] | None:
    """Return the values that the table reads, an absent list as an empty one. Return None if it rejects the bytes."""
    try:
        row = table.decode(data)
    except ArchiveError as found:
        error = str(found)
    else:
        return [lists_in(value) for value in row]
    assert error.startswith(f"invalid {table.name} of {len(data)} bytes: ")
    assert error.endswith(". Fetch it again")
    return None


def lists_in(value: Any) -> Any:
    return [lists_in(each) for each in value] if isinstance(value, list | tuple) else value


def read_by_library(table: Document, library: Any, data: bytes) -> list[Any] | None:
    try:
        return row_of(table, library.FromString(data))
    except ProtobufDecodeError:
        return None


@MORE
@given(document=st.sampled_from(DOCUMENTS), data=st.data())
def test_any_document_is_written_and_read_as_the_library_does(
    document: tuple[Document, Documents], data: st.DataObject
) -> None:
    table, library = document[0], getattr(document[1], document[0].name)
    row = data.draw(rows_of(table))
    written = table.encode(*row)
    assert written == library(**named(table, row)).SerializeToString(deterministic=True)
    assert read(table, written) == row == read_by_library(table, library, written)
    rows = [row, data.draw(rows_of(table))]
    assert list(table.encode_each(*zip(*rows, strict=True))) == [table.encode(*each) for each in rows]


# --- foreign bytes -----------------------------------------------------------------------------------

NUMBERS = st.sampled_from([1, 2, 3, 4, 5, 6, 7, 10, 11, 15, 16, 31, 2**29 - 1])
LOOSE = st.sampled_from(
    [b"", b"\x80", b"\x80\x00", b"\xff" * 9 + b"\x01", b"\xff" * 9 + b"\x7f", b"\x80" * 10, b"\x81\x00"]
)
CONTENTS: st.SearchStrategy[bytes] = st.deferred(
    lambda: st.binary(max_size=12) | st.text(max_size=6).map(str.encode) | STREAMS
)
FIELDS = st.one_of(
    st.tuples(NUMBERS, st.integers(0, 2**64 - 1) | st.integers(0, 3)).map(
        lambda found: encode_varint(found[0] << 3) + encode_varint(found[1])
    ),
    st.tuples(NUMBERS, CONTENTS).map(
        lambda found: encode_varint(found[0] << 3 | 2) + encode_varint(len(found[1])) + found[1]
    ),
    st.tuples(NUMBERS, CONTENTS).map(
        lambda found: encode_varint(found[0] << 3 | 3) + found[1] + encode_varint(found[0] << 3 | 4)
    ),
    st.tuples(NUMBERS, st.integers(0, 7), st.binary(max_size=8) | LOOSE).map(
        lambda found: encode_varint(found[0] << 3 | found[1]) + found[2]
    ),
)
STREAMS: st.SearchStrategy[bytes] = st.lists(FIELDS, max_size=5).map(b"".join)


def damaged(data: bytes) -> st.SearchStrategy[bytes]:
    """Draw the bytes unchanged, truncated, with a changed byte, or with extra bytes."""
    at = st.integers(0, len(data))
    return st.one_of(
        st.just(data),
        at.map(lambda end: data[:end]),
        st.tuples(at, st.binary(max_size=2)).map(lambda found: data[: found[0]] + found[1] + data[found[0] + 1 :]),
        st.tuples(at, LOOSE).map(lambda found: data[: found[0]] + found[1] + data[found[0] :]),
    )


@MORE
@given(document=st.sampled_from(DOCUMENTS), data=st.data())
def test_any_bytes_are_read_or_rejected_as_by_the_library(
    document: tuple[Document, Documents], data: st.DataObject
) -> None:
    table, library = document[0], getattr(document[1], document[0].name)
    known = rows_of(table).map(lambda row: table.encode(*row))
    encoded = data.draw(st.one_of(STREAMS, known, st.tuples(known, STREAMS, known).map(b"".join)).flatmap(damaged))
    assert read(table, encoded) == read_by_library(table, library, encoded)


GROUPS = {depth: b"\x7b" * depth + b"\x7c" * depth for depth in (1, 99, 100, 101)}


@pytest.mark.parametrize(
    "encoded",
    [
        pytest.param(bytes.fromhex("12020801 12021002 120408072200"), id="documents are merged"),
        pytest.param(bytes.fromhex("1201ff 120161"), id="an invalid string before a valid one"),
        pytest.param(bytes.fromhex("1203eda080"), id="half of a surrogate pair"),
        pytest.param(bytes.fromhex("8a80000161"), id="a tag with zeros at the end"),
        pytest.param(bytes.fromhex("8a80808080000161"), id="a tag of six bytes"),
        pytest.param(bytes.fromhex("8a808080100161"), id="a tag of more than 32 bits"),
        pytest.param(encode_varint(2**32) + b"\0", id="a tag of 33 bits, the smallest"),
        pytest.param(encode_varint(2**32 - 8) + b"\0", id="the last field"),
        pytest.param(bytes.fromhex("0a81800061"), id="a size with zeros at the end"),
        pytest.param(bytes.fromhex("0a81808080800061"), id="a size of six bytes"),
        pytest.param(bytes.fromhex("0affffffff0761"), id="a size of 2 GB"),
        pytest.param(b"\x18" + b"\xff" * 9 + b"\x7f", id="a number of 70 bits"),
        pytest.param(b"\x28" + b"\x80" * 9 + b"\x02", id="a true value beyond 64 bits"),
        pytest.param(b"\x18" + b"\x80" * 10 + b"\x01", id="a number of eleven bytes"),
        pytest.param(b"\x18\x80", id="a number that is cut"),
        pytest.param(b"\x08\xff\xff\xff\xff\xff\x01", id="a number of 42 bits in 32"),
        pytest.param(b"\x02\x01a", id="the field 0"),
        pytest.param(b"\x03\x04", id="a group in the field 0"),
        pytest.param(b"\x7b\x00\x01\x7c", id="the field 0 within a group"),
        pytest.param(b"\x7b\x03\x04\x7c", id="a group in the field 0 within a group"),
        pytest.param(b"\x7b\x7e\x7c", id="a kind that no field has"),
        pytest.param(b"\x7c", id="the end of no group"),
        pytest.param(b"\x7b\x74", id="the end of another group"),
        pytest.param(b"\x7b", id="a group without end"),
        pytest.param(b"\x7d\0\0\0", id="a fixed size that is cut"),
        pytest.param(b"\x15\0\0\0\0\x09" + bytes(8), id="fixed sizes instead of numbers and bytes"),
        *(pytest.param(data, id=f"{depth} groups") for depth, data in GROUPS.items()),
        *(
            pytest.param(b"\x12" + encode_varint(len(data)) + data, id=f"{depth} groups in a document")
            for depth, data in GROUPS.items()
        ),
    ],
)
def test_unusual_bytes_are_read_or_rejected_as_by_the_library(encoded: bytes) -> None:
    for table, documents in DOCUMENTS:
        assert read(table, encoded) == read_by_library(table, getattr(documents, table.name), encoded), table.name


@pytest.mark.parametrize(("field", "value"), [(UINT64, -1), (UINT64, 2**64), (SINT64, 2**63), (SINT64, -(2**63) - 1)])
def test_a_number_beyond_64_bits_is_not_encoded(field: Any, value: int) -> None:
    with pytest.raises(ValueError, match="18446744073709551615"):
        Document("Number", Field(1, "number", field)).encode(value)


def test_fields_of_fixed_size_are_rejected_in_a_large_document() -> None:
    with pytest.raises(ArchiveError, match="fixed size"):
        list(fields(b"\x0d\0\0\0\0", "archive"))
