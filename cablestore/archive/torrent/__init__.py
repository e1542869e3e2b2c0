"""Archives over BitTorrent."""
