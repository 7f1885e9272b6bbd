"""Is a folder on a disk of this machine? SQLite's locks and shared memory do not work over a network."""

import os
import re
from pathlib import Path

from metier.store.failures import StoreUnavailable

NETWORK_FILE_SYSTEMS = frozenset(
    (
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "ncpfs",
        "afs",
        "ceph",
        "gfs2",
        "glusterfs",
        "lustre",
        "beegfs",
        "gpfs",
        "ocfs2",
        "fuse.sshfs",
        "fuse.glusterfs",
        "fuse.ceph",
        "fuse.s3fs",
        "fuse.rclone",
        "fuse.gcsfuse",
        "davfs",
        "fuse.davfs2",
    )
)
MOUNTS = Path("/proc/self/mountinfo")


def check_local_disk(folder: Path, *, mounts: Path = MOUNTS) -> None:
    """Raises `StoreUnavailable` for a network file system. Where there is no list of mounts nothing is known."""
    try:
        text = mounts.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return
    kind = find_file_system(os.path.realpath(folder), text)
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreUnavailable(
            f"The folder '{folder}' is on a network file system ({kind}), where SQLite loses data",
            hint="Put the runs folder on a local disk, or use a PostgreSQL server with `store.backend: postgres`",
        )


def find_file_system(folder: str, mountinfo: str) -> str:
    """The type of the file system that holds an absolute path: the longest mount above it, the last of equals."""
    best, kind = "", ""
    for line in mountinfo.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split(" ")
        if not separator or len(fields) < 5:
            continue
        point = _unescape(fields[4])
        if len(point) >= len(best) and (folder == point or folder.startswith(point.rstrip("/") + "/")):
            best, kind = point, after.split(" ")[0]
    return kind


def _unescape(text: str) -> str:
    """The kernel writes blanks, tabs, newlines and backslashes of a path as three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
