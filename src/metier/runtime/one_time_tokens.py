"""One-time tokens: each is a file in a private folder, until it is redeemed or expires.

A file is named after the digest of its token, so that a listing of the folder reveals none. Redeeming a token deletes
its file: of concurrent requests only one succeeds, across all processes of a server and after a restart.
"""

import hashlib
import json
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from msgspec import Struct


class OneTimeTokens(Struct, frozen=True, kw_only=True):
    folder: Path
    """Only the user that runs the server can read it."""
    prefix: str
    """Start of the files' names."""
    lifetime_seconds: float

    def issue(self, values: Sequence[str]) -> str:
        """Store values and return the token that leads to them."""
        token = secrets.token_urlsafe(32)
        file = self._get_file(token)
        # Private before it has content, whatever the umask is.
        file.touch(mode=0o600)
        file.write_text(json.dumps(values), encoding="utf-8")
        return token

    def find(self, token: str) -> list[str] | None:
        """Return the values of a token, or None if it is unknown, used or expired. The token stays valid."""
        file = self._get_file(token)
        try:
            age = time.time() - file.stat().st_mtime
            values = cast("list[str]", json.loads(file.read_text(encoding="utf-8")))  # written by `issue`
        except (OSError, ValueError):
            return None
        return values if age <= self.lifetime_seconds else None

    def redeem(self, token: str) -> list[str] | None:
        """Return the values of a token like `find`, and invalidate it."""
        values = self.find(token)
        try:
            self._get_file(token).unlink()  # of concurrent requests, all but one fail here
        except OSError:
            return None
        return values

    def clear(self, *, only_expired: bool = False) -> None:
        """Delete unused tokens."""
        for file in self.folder.glob(f"{self.prefix}-*"):
            try:
                if not only_expired or time.time() - file.stat().st_mtime > self.lifetime_seconds:
                    file.unlink()
            except OSError:
                continue  # used meanwhile

    def _get_file(self, token: str) -> Path:
        return self.folder / f"{self.prefix}-{hashlib.sha256(token.encode('utf-8', 'replace')).hexdigest()}"
