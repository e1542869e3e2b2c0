"""Cable on the wire: posts, messages, sessions and the secure channel. Bytes in, values out; no I/O."""
