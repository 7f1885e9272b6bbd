"""One-time codes that a browser exchanges for a cookie. Each is a file: of two requests with it, one deletes it.

So a code works once, whichever process of the server gets it, and also after a restart.
"""

import json
import secrets
import time
from pathlib import Path

from msgspec import Struct

from metier.server.security.users import Role, User, digest_token

LIFETIME_SECONDS = 600


class LoginCodes(Struct, frozen=True):
    folder: Path
    """Belongs to the user that runs the server alone."""

    def issue(self, user: User) -> str:
        """A code that signs in as this user, once, within ten minutes."""
        code = secrets.token_urlsafe(24)
        file = self._find(code)
        file.touch(mode=0o600)
        file.write_text(json.dumps([user.name, user.role]), encoding="utf-8")
        return code

    def redeem(self, code: str) -> User | None:
        """The user of a code; None where it is unknown, used or too old."""
        file = self._find(code)
        try:
            made_at, text = file.stat().st_mtime, file.read_text(encoding="utf-8")
            file.unlink()  # fails for all but one of those that redeem it at the same time
        except OSError:
            return None
        if time.time() - made_at > LIFETIME_SECONDS:
            return None
        name, role = _parse(text)
        return User(name=name, role=role)

    def clear(self) -> None:
        """Remove codes that were never used."""
        for file in self.folder.glob("code-*"):
            file.unlink(missing_ok=True)

    def _find(self, code: str) -> Path:
        return self.folder / f"code-{digest_token(code)}"


def _parse(text: str) -> tuple[str, Role]:
    name, role = json.loads(text)  # written by `issue`
    return name, role
