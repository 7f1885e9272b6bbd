"""Remember what was read from each `SKILL.md`, by path, size, times and inode. Losing the cache costs time only."""

import hashlib
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import cast

from metier.definitions.files.whole_file import replace_file
from metier.version import __version__

FORMAT = 5
FRESH_NS = 100_000_000
"""A file younger than this when it was read may change again without a new time stamp, so it is not remembered."""

type Stamp = tuple[int, int, int, int]
"""Size, modification time, change time, inode."""
type Payload = list[object]
"""What the catalog wants to have back; see `catalog`."""


def stamp_of(stat: os.stat_result) -> Stamp:
    return (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)


def digest_content(data: bytes) -> str:
    """Names the content of a `SKILL.md` in caches. Trust has a digest of its own, of the whole folder."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def get_cache_folder(environment: Mapping[str, str], *, home: Path) -> Path:
    base = environment.get("XDG_CACHE_HOME", "")
    # Not platformdirs: it reads only the environment of this process, and on macOS it names `~/Library`.
    # The XDG rules say: a relative path there is to be ignored.
    return (Path(base) if os.path.isabs(base) else home / ".cache") / "agent"  # noqa: PTH117


class CatalogCache:
    """The remembered files of one root folder. Whatever is wrong with the cache file, the answer is: nothing known."""

    def __init__(self, folder: Path, root: Path) -> None:
        key = hashlib.sha256(os.fsencode(os.path.abspath(root))).hexdigest()[:24]  # noqa: PTH100
        self._path = folder / f"skills-{key}.json"
        self._known = self._load()
        self._kept: dict[str, list[object]] = {}
        self._now = time.time_ns()
        self._is_changed = False

    def find(self, path: str, stamp: Stamp) -> Payload | None:
        known = self._known.get(path)
        if known is None or known[0] != list(stamp):
            return None
        self._kept[path] = known
        return cast("Payload", known[1])  # written by `keep`, guarded by the checksum

    def keep(self, path: str, stamp: Stamp, payload: Payload) -> None:
        self._is_changed = True
        if max(stamp[1], stamp[2]) < self._now - FRESH_NS:
            self._kept[path] = [list(stamp), payload]

    def save(self) -> None:
        """Replace the file as a whole, when something is new. A folder that cannot be written is no error."""
        if not self._is_changed and len(self._kept) == len(self._known):
            return
        body = json.dumps(self._kept, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
        with suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._path, _header(body) + body)

    def _load(self) -> dict[str, list[object]]:
        try:
            header, _, body = self._path.read_bytes().partition(b"\n")
        except OSError:
            return {}
        if header + b"\n" != _header(body):
            return {}
        return json.loads(body.decode("utf-8", "surrogatepass"))


def _header(body: bytes) -> bytes:
    """Format, version and checksum: a torn, foreign or outdated file does not match."""
    return f"{FORMAT} {__version__} {hashlib.blake2b(body, digest_size=16).hexdigest()}\n".encode()
