"""Tool names that every vendor accepts, and their reverse mapping. Pure, and the same for every request.

Vendors accept at most 64 letters, digits, `_` and `-`. Ours may contain dots and slashes: `notes.search` is sent as
`notes__search` and `github/issues` as `github___issues`. Names that would be ambiguous get a hash as a suffix, so two
tools never share a wire name.
"""

import hashlib
import re
from collections.abc import Iterable
from functools import lru_cache

MAX_LENGTH = 64

_SAFE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}", re.ASCII)
_SEGMENTS = re.compile(r"[A-Za-z0-9-]+(?:_[A-Za-z0-9-]+)*(?:[./][A-Za-z0-9-]+(?:_[A-Za-z0-9-]+)*)*", re.ASCII)
_HASHED = re.compile(r".*_[0-9a-f]{8}", re.ASCII)
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_-]", re.ASCII)


@lru_cache(maxsize=1024)
def wire_name(name: str) -> str:
    """Return the name on the wire. It depends only on `name`, so history stays valid when the tools change."""
    if _SEGMENTS.fullmatch(name):
        plain = name.replace("/", "___").replace(".", "__")
        # A name that looks hashed is hashed too, or it could equal the hashed form of another.
        if _SAFE.fullmatch(plain) and not _HASHED.fullmatch(plain):
            return plain
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    stem = _FORBIDDEN.sub("_", name)[: MAX_LENGTH - 11]
    return f"t_{stem}_{digest}" if not stem[:1].isalpha() else f"{stem}_{digest}"


def own_names(names: Iterable[str]) -> dict[str, str]:
    """Map wire names back to our names."""
    return {wire_name(name): name for name in names}
