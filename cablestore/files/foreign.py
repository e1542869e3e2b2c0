"""Names of entries that operating systems, file managers, NAS and sync programs create in any folder.

Such entries are neither read nor removed. A folder with only such entries is treated as empty.
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
"""Names in lower case."""
_PREFIXES: Final = (
    *("._", ".nfs", ".fuse_hidden", ".smbdelete", ".afpdeleted", ".trash-", ".~lock.", ".goutputstream-"),
    *(".syncthing.", "~syncthing~", ".sync_", "._sync_", ".sync-conflict-"),
)


def is_foreign(name: str) -> bool:
    """Return True if operating systems or other programs create entries with this name in any folder."""
    lower = name.lower()
    return lower in _NAMES or lower.startswith(_PREFIXES)
