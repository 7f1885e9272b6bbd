"""Names of tools that every vendor accepts, and the way back. Pure, and the same for every request.

Vendors take letters, digits, `_` and `-`, at most 64. Ours may hold dots and slashes: `notes.search` goes out as
`notes__search` and `github/issues` as `github___issues`. A name that this cannot express without doubt gets a hash
at its end, so two tools never share a wire name.
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
    """The name on the wire. Depends on nothing but `name`, so history stays valid when the list of tools changes."""
    if _SEGMENTS.fullmatch(name):
        plain = name.replace("/", "___").replace(".", "__")
        # A name that ends like a hashed one is hashed itself: the two kinds must not meet.
        if _SAFE.fullmatch(plain) and not _HASHED.fullmatch(plain):
            return plain
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    stem = _FORBIDDEN.sub("_", name)[: MAX_LENGTH - 11]
    return f"t_{stem}_{digest}" if not stem[:1].isalpha() else f"{stem}_{digest}"


def own_names(names: Iterable[str]) -> dict[str, str]:
    """Wire name → our name, for reading a reply to a request that offered these tools."""
    return {wire_name(name): name for name in names}
