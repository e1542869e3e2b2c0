"""Formats of history archives: archives, indexes, magnet links, content ids. Encoding and decoding without I/O."""
