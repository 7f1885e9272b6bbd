"""A real Chromium for the tests of the console: Debian's, driven by Playwright."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from console_scene import prepare
from model_server import ModelServer, running_model
from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, sync_playwright
from run_workspace import Workspace
from running_server import RunningServer, serving

from agent_command import AGENT
from metier.server.users import LoginCodes, User

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
AXE = Path(sys.prefix) / "servers-node/node_modules/axe-core/axe.min.js"
WAIT_MILLISECONDS = 100_000
PHONE = ViewportSize(width=390, height=844)


@contextmanager
def running_browser() -> Generator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


def sign_in(context: BrowserContext, server: RunningServer) -> Page:
    """Open a tab signed in by the link that `agent serve` prints."""
    assert server.config is not None
    code = LoginCodes(server.config.private).issue(User(name=server.config.owner, role="operator"))
    page = context.new_page()
    page.set_default_timeout(WAIT_MILLISECONDS)
    page.goto(f"{server.url}/login?code={code}")
    return page


class ProcessWorkspace(Workspace):
    """A workspace that runs commands as processes, because the browser's event loop runs in this one."""

    def agent(self, *args: str) -> int:
        done = subprocess.run(
            [AGENT, *args],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=120,
            check=False,
        )
        return done.returncode


class Scene:
    """A workspace and a server shared by the tests of a file, because starting them is slow."""

    def __init__(self, workspace: Workspace, model: ModelServer, server: RunningServer) -> None:
        self.workspace, self.model, self.server = workspace, model, server
        self.folder = workspace.folder


@contextmanager
def open_scene(base: Path, fill: Callable[[Workspace, ModelServer], None]) -> Generator[Scene]:
    """Open a workspace filled by `fill`, with its server."""
    with pytest.MonkeyPatch.context() as patch, running_model() as model:
        for name in ("home", "notebook"):
            (base / name).mkdir()
        patch.setenv("HOME", str(base / "home"))
        patch.setenv("OPENAI_API_KEY", "k" * 12)
        patch.chdir(base / "notebook")
        workspace = ProcessWorkspace(prepare(base / "notebook", model).folder)
        fill(workspace, model)
        with serving(workspace.folder) as server:
            yield Scene(workspace, model, server)


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
