"""History archives: a community's whole past in weekly archives, over BitTorrent and by content id.

A control node makes archives of its store, seeds them and announces where they are. Members fetch, verify and import
the archives that they lack. The formats (`format`) are pure. Fetching has one small interface, `remote.Remote`, for
torrents (`torrent`) and for content ids (`content`).
"""
