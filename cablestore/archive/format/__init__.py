"""The formats of history archives: archives, indexes, magnet links, content ids. Bytes in, values out; no I/O."""
