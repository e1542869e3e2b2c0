"""Names that systems, file managers, NAS and sync programs give to entries they put into any folder.

Such entries are not ours and not the user's: a folder with nothing else is empty, and nobody reads or removes them.
"""

from __future__ import annotations

from typing import Final

_NAMES: Final = frozenset(
    {
        # file systems, snapshots, quotas
        *("lost+found", ".snapshot", ".snapshots", ".zfs", "#snapshot", "aquota.user", "aquota.group", ".autorelabel"),
        # macOS
        *(".ds_store", ".fseventsd", ".spotlight-v100", ".trashes", ".trash", ".temporaryitems", ".apdisk", "icon\r"),
        *(".documentrevisions-v100", ".localized", ".volumeicon.icns", ".metadata_never_index"),
        *(".com.apple.timemachine.donotpresent", ".appledouble", ".appledesktop", "network trash folder"),
        # Windows
        *("thumbs.db", "ehthumbs.db", "desktop.ini", "system volume information", "$recycle.bin", "recycler"),
        # NAS
        *("@eadir", "#recycle", "@recycle", "@tmp", ".@__thumb", "@sharebin", ".recycle", ".streams"),
        # desktops and programs that sync
        *(".directory", ".hidden", ".dropbox", ".dropbox.cache", ".dropbox.attr", ".sync", ".stfolder", ".stversions"),
        *(".stignore", ".owncloudsync.log", ".nextcloudsync.log", ".sync_exclude.lst"),
    }
)
"""In lower case."""
_PREFIXES: Final = (
    *("._", ".nfs", ".fuse_hidden", ".smbdelete", ".afpdeleted", ".trash-", ".~lock.", ".goutputstream-"),
    *(".syncthing.", "~syncthing~", ".sync_", "._sync_", ".sync-conflict-"),
)


def is_foreign(name: str) -> bool:
    """Return True if a system or program gives this name to an entry, whatever folder it is in."""
    lower = name.lower()
    return lower in _NAMES or lower.startswith(_PREFIXES)
