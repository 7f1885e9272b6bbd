"""A real Chromium for the tests of the console: Debian's, driven by Playwright."""

import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright
from running_server import RunningServer

from metier.server.security.login_codes import LoginCodes
from metier.server.security.users import User

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
AXE = Path(sys.prefix) / "servers-node/node_modules/axe-core/axe.min.js"
WAIT_MILLISECONDS = 100_000


@contextmanager
def running_browser() -> Generator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


def sign_in(context: BrowserContext, server: RunningServer) -> Page:
    """A tab of a person who came by the link that `agent serve` prints."""
    assert server.recipe is not None
    code = LoginCodes(server.recipe.private).issue(User(name=server.recipe.owner, role="operator"))
    page = context.new_page()
    page.set_default_timeout(WAIT_MILLISECONDS)
    page.goto(f"{server.url}/login?code={code}")
    return page


class Watched:
    """Violations of a page: script errors and requests to other hosts."""

    def __init__(self, page: Page, server: RunningServer) -> None:
        self.errors: list[str] = []
        self.strays: list[str] = []
        self._home = server.url
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self._note(request.url))

    def _note(self, url: str) -> None:
        if not url.startswith((self._home, "data:", "about:")):
            self.strays.append(url)
