"""Check the built site: search works, and no request leaves it."""

import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import override

import pytest

from metier.version import __version__

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


class _QuietHandler(http.server.SimpleHTTPRequestHandler):
    @override
    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site: the one that `./dev test` built, or one built here without warnings."""
    if ready := os.environ.get("METIER_SITE"):
        return Path(ready)
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(DOCS, folder / "docs")
    (folder / "mkdocs.yml").write_text((ROOT / "mkdocs.yml").read_text("utf-8"))
    command = [Path(sys.executable).with_name("zensical"), "build", "--strict"]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    assert "No issues found" in built.stdout + built.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def site(built: Path) -> Iterator[str]:
    """Serve the site on loopback and yield its address."""
    handler = partial(_QuietHandler, directory=str(built))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_marks_of_blocks_are_invisible(built: Path) -> None:
    pages = [path.read_text("utf-8") for path in built.rglob("*.html")]
    visible = [re.sub(r"<!--.*?-->|<[^>]*>", "", page, flags=re.DOTALL) for page in pages]

    assert len(pages) > 50
    assert [
        page[:200] for page in visible if "&lt;!--" in page or re.search(r"^(prepare|checked (as|by) )", page)
    ] == []


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_search_finds_a_page_and_no_request_leaves_the_site(site: str) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-background-networking", "--disable-gpu"]
        )
        page = browser.new_page()
        page.set_default_timeout(60_000)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(site)
        page.keyboard.press("/")
        page.keyboard.type("resume token", delay=20)
        page.get_by_text(re.compile(r"^[1-9]\d* results$")).wait_for()
        browser.close()

    assert [url for url in asked if not url.startswith((site, "data:", "blob:"))] == []


def test_site_has_logo_tabs_palette_version_and_llms_txt(built: Path) -> None:
    home = (built / "index.html").read_text("utf-8")

    for mark in ("md-logo", "md-tabs__link", "__palette_1", f"Metier {__version__}", "recording.svg"):
        assert mark in home, mark
    assert (built / "llms.txt").read_text("utf-8").startswith("# Metier\n")


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize("width", [390, 1280])
def test_pages_are_as_wide_as_the_window(site: str, width: int) -> None:
    from playwright.sync_api import sync_playwright

    wider: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-background-networking", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.set_default_timeout(60_000)
        for path in ("", "reference/settings/", "reference/commands/", "reference/http/", "security/", "how-to/chat/"):
            page.goto(f"{site}/{path}")
            if page.evaluate("document.documentElement.scrollWidth") > width:
                wider.append(path)
        browser.close()

    assert wider == []
