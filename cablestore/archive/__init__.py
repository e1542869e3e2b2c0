"""History archives: the posts of a community in weekly archives, over BitTorrent and by content id.

A control node creates archives of its store, seeds them and announces a link to them. Members fetch, verify and import
the archives that they lack. The formats (`format`) are pure. Torrents (`torrent`) and content ids (`content`) share the
interface `remote.Remote` for fetching.
"""
