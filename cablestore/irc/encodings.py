"""Decoding of chat logs: their encoding, and the control codes that clients write into them.

Clients write the bytes from the network, so a log may contain lines in UTF-8 and lines in another encoding. A line with
a few invalid bytes and more valid bytes beyond ASCII is read as UTF-8: servers truncate long messages within a
character. All other lines are read in the other encoding of the file.
"""

from __future__ import annotations

import codecs
import io
import re
from collections import Counter
from collections.abc import Iterator
from typing import IO, Any, Final

from cablestore import limits

UTF_8: Final = "utf-8"
USUAL: Final = "cp1252"
"""Encoding of lines that are not UTF-8, if they are too short to detect an encoding."""
_HEAD_SIZE_BYTES: Final = 65_536
_LEAST_EVIDENCE_BYTES: Final = 24
"""Minimum number of bytes beyond ASCII to detect an encoding."""
_MOST_CUT_BYTES: Final = 6
"""Maximum number of bytes of two UTF-8 characters, truncated at both ends of a message."""
_NOISE: Final = 0.01
"""Difference of two encodings in charset_normalizer's `chaos` up to which USUAL is preferred."""
_MARKS: Final = {codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_KNOWN: Final = (
    *("cp1252", "cp1250", "cp1251", "koi8_r", "cp866", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "iso8859_2"),
    *("cp932", "euc_jp", "cp949", "gb18030", "big5"),
)
"""Encodings used on IRC, the likeliest first."""
_WIDE: Final = ("utf_16", "utf_32")

_CODES: Final = re.compile(
    r"\x03(?:[0-9]{1,2}(?:,[0-9]{1,2})?)?"  # a colour of mIRC
    r"|\x04(?:[0-9A-Fa-f]{6}(?:,[0-9A-Fa-f]{6})?)?"
    r"|\x1b\[[0-9;?]*[A-Za-z]"  # an escape sequence of a terminal
    r"|[\x00-\x02\x05-\x08\x0b-\x1f\x7f]"  # bold, italic, underlined, reversed, and others without a meaning here
)


def encoding_of(head: bytes) -> str:
    """Return the encoding of those lines of a file that are not UTF-8, detected in its first bytes `head`.

    Return UTF-8 if all lines in `head` are UTF-8.
    """
    for mark, name in _MARKS.items():
        if head.startswith(mark):
            return name
    for name, zeros in (("utf-16-le", head[1::2]), ("utf-16-be", head[0::2])):
        if len(zeros) > 1 and zeros.count(0) > len(zeros) // 2:
            return name
    strange = b"\n".join(line for line in head.splitlines()[:-1] or [head] if _decoded(line) is None)
    if not strange:
        return UTF_8
    if sum(byte >= 0x80 for byte in strange) < _LEAST_EVIDENCE_BYTES:
        return USUAL
    import charset_normalizer  # noqa: PLC0415 - few logs need it

    found = charset_normalizer.from_bytes(strange, cp_isolation=list(_KNOWN))
    best = found.best()
    if best is None or any(match.encoding == USUAL and match.chaos <= best.chaos + _NOISE for match in found):
        return USUAL
    return best.encoding


def detected(stream: IO[bytes]) -> tuple[str, IO[bytes]]:
    """Return the encoding of a file as in `encoding_of`, and a stream of the whole file."""
    head = stream.read(_HEAD_SIZE_BYTES)
    return encoding_of(head), io.BufferedReader(_Joined(head, stream))


def read_lines(stream: IO[bytes], encoding: str, used: Counter[str]) -> Iterator[str | None]:
    """Yield lines without control codes, and None for each line that exceeds the maximum length.

    `encoding` is the result of `encoding_of`. `used` counts the lines in each encoding except UTF-8. A file in UTF-16
    or UTF-32 adds 1.
    """
    most = limits.MAX_LOG_LINE_SIZE_BYTES
    if codecs.lookup(encoding).name.replace("-", "_").startswith(_WIDE):
        used[encoding] += 1
        stream = io.BufferedReader(_Transcoded(stream, encoding))
    other = USUAL if encoding == UTF_8 else encoding
    while data := stream.readline(most + 2):  # including the end of the line
        is_complete = data.endswith(b"\n")
        data = data.rstrip(b"\r\n")
        if len(data) > most:
            while not is_complete and (more := stream.readline(most)):
                is_complete = more.endswith(b"\n")
            yield None
            continue
        line = _decoded(data)
        if line is None:
            used[other] += 1
            line = data.decode(other, errors="replace")
        yield line if line.isprintable() else _CODES.sub("", line)


def _decoded(line: bytes) -> str | None:
    """Decode a line of UTF-8, with U+FFFD for truncated characters. Return None for other encodings."""
    try:
        return line.decode()
    except UnicodeDecodeError:
        text = line.decode(errors="surrogateescape")
    invalid_bytes = sum("\udc80" <= character <= "\udcff" for character in text)
    valid_bytes = sum(byte > 0x7F for byte in line) - invalid_bytes
    is_cut = invalid_bytes <= _MOST_CUT_BYTES and invalid_bytes < valid_bytes
    return line.decode(errors="replace") if is_cut else None


class _Joined(io.RawIOBase):
    """Stream of a file whose first bytes are already read."""

    def __init__(self, head: bytes, rest: IO[bytes]) -> None:
        super().__init__()
        self._head, self._rest = io.BytesIO(head), rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        found = self._head.read(len(buffer)) or self._rest.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)


class _Transcoded(io.RawIOBase):
    """Stream that converts an encoding with two or four bytes per character to UTF-8."""

    def __init__(self, stream: IO[bytes], encoding: str) -> None:
        super().__init__()
        self._stream, self._decoder = stream, codecs.getincrementaldecoder(encoding)(errors="replace")
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left and (data := self._stream.read(_HEAD_SIZE_BYTES)):
            self._left = self._decoder.decode(data).encode()
        found, self._left = self._left[: len(buffer)], self._left[len(buffer) :]
        buffer[: len(found)] = found
        return len(found)
