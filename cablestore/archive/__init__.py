"""History archives: a community's whole past in weekly archives, over BitTorrent and by content id.

A control node makes archives of its store, seeds them and announces where they are; members fetch, verify and import what
they miss. Formats are pure; what fetches and serves is behind one small interface, `engine`.
"""
