"""Zstandard compression: the standard library's module from Python 3.14 on, otherwise its backport."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 14):
    from compression.zstd import ZstdCompressor, ZstdError, ZstdFile, compress, decompress
else:
    from backports.zstd import ZstdCompressor, ZstdError, ZstdFile, compress, decompress

__all__ = ["ZstdCompressor", "ZstdError", "ZstdFile", "compress", "decompress"]
