"""Links with which the receiver of a message decides about one approval, without an account on the server.

A link holds a random word. Only its digest is kept, in a file of the server's private folder: a reader of that folder
has no link, and of two requests that use one the second finds no file.
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
    """The right that a link grants: to decide this approval, under this name, and nothing else."""

    approval_id: str
    decider: str


class DecisionLinks(Struct, frozen=True):
    folder: Path
    """Private folder of the user that runs the server."""

    def issue(self, right: DecisionRight) -> str:
        """Issue a link and return its random word."""
        self._clear_old()
        word = secrets.token_urlsafe(32)
        file = self._find(word)
        file.touch(mode=0o600)
        file.write_text(json.dumps([right.approval_id, right.decider]), encoding="utf-8")
        return word

    def find(self, word: str) -> DecisionRight | None:
        """Return the right of the link, or None if it is unknown, used or expired. Looking it up does not use it."""
        file = self._find(word)
        try:
            is_old = time.time() - file.stat().st_mtime > LIFETIME_SECONDS
            approval_id, decider = cast("list[str]", json.loads(file.read_text(encoding="utf-8")))  # by `issue`
        except (OSError, ValueError):
            return None
        return None if is_old else DecisionRight(approval_id=approval_id, decider=decider)

    def redeem(self, word: str) -> DecisionRight | None:
        """Return the right of the link and use it up."""
        right = self.find(word)
        try:
            self._find(word).unlink()  # fails for all but one of those that redeem it at the same time
        except OSError:
            return None
        return right

    def _find(self, word: str) -> Path:
        return self.folder / f"decide-{hashlib.sha256(word.encode('utf-8', 'replace')).hexdigest()}"

    def _clear_old(self) -> None:
        for file in self.folder.glob("decide-*"):
            try:
                if time.time() - file.stat().st_mtime > LIFETIME_SECONDS:
                    file.unlink()
            except OSError:
                continue  # used meanwhile


def add_links(payload: str, host: Host) -> str:
    """Add a link for each approval in the message, if a server serves the workspace now.

    Links are made when a message is sent, because the outbox must not hold one. A message that is sent again has new
    ones; of all links of an approval one decision counts.
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
