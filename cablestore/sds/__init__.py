"""Causal logs (SDS): every member of a channel ends with the same messages in the same order.

`message`, `dialects`, `codec`, `hashes`, `bloom` and `repair` are the formats, which are pure.
"""
