"""The Cable protocol without I/O: posts, messages, sessions and the secure channel."""
