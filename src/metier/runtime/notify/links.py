"""Links that let the receiver of a message decide one approval without an account on the server.

A link contains a random token. Only its digest is stored, as a file in the server's private folder: reading that folder
reveals no link. Redeeming a link deletes the file, so of two concurrent requests only one succeeds.
"""

import hashlib
import json
import secrets
import time
from pathlib import Path
from typing import cast

from msgspec import Struct

from metier.ids import get_user
from metier.runtime.host import Host
from metier.settings.running_server import find_served

LIFETIME_SECONDS = 24 * 3600
PATH = "/decide"


class DecisionRight(Struct, frozen=True, kw_only=True):
    """The right that a link grants: to decide this approval under this name."""

    approval_id: str
    decider: str


class DecisionLinks(Struct, frozen=True):
    folder: Path
    """Private folder of the user who runs the server."""

    def issue(self, right: DecisionRight) -> str:
        """Issue a link and return its token."""
        self._clear_old()
        token = secrets.token_urlsafe(32)
        file = self._find(token)
        # Created with its mode before anything is written, so that other users never can read it.
        file.touch(mode=0o600)
        file.write_text(json.dumps([right.approval_id, right.decider]), encoding="utf-8")
        return token

    def find(self, token: str) -> DecisionRight | None:
        """Return the right of the link, or None if it is unknown, used or expired. The link stays valid."""
        file = self._find(token)
        try:
            is_old = time.time() - file.stat().st_mtime > LIFETIME_SECONDS
            approval_id, decider = cast("list[str]", json.loads(file.read_text(encoding="utf-8")))  # by `issue`
        except (OSError, ValueError):
            return None
        return None if is_old else DecisionRight(approval_id=approval_id, decider=decider)

    def redeem(self, token: str) -> DecisionRight | None:
        """Return the right of the link and invalidate it."""
        right = self.find(token)
        try:
            self._find(token).unlink()  # of concurrent requests, all but one fail here
        except OSError:
            return None
        return right

    def _find(self, token: str) -> Path:
        return self.folder / f"decide-{hashlib.sha256(token.encode('utf-8', 'replace')).hexdigest()}"

    def _clear_old(self) -> None:
        for file in self.folder.glob("decide-*"):
            try:
                if time.time() - file.stat().st_mtime > LIFETIME_SECONDS:
                    file.unlink()
            except OSError:
                continue  # used meanwhile


def add_links(payload: str, host: Host) -> str:
    """Add a link for each approval in the message, if a server serves the workspace now.

    Links are created when a message is sent, because the outbox must not contain any. A message that is sent again has
    new links; the first decision counts, whichever link it came through.
    """
    message = json.loads(payload)
    approvals = cast("list[str]", message.get("approvals") or [])
    served = find_served(host.home, host.workspace) if approvals else None
    if served is None:
        return payload
    decider = host.settings.notify.decider or get_user() or "operator"
    links = DecisionLinks(served.folder)
    message["links"] = [
        {
            "approval_id": each,
            "url": f"{served.url}{PATH}/{links.issue(DecisionRight(approval_id=each, decider=decider))}",
        }
        for each in approvals
    ]
    return json.dumps(message, ensure_ascii=False)
