"""Make pictures of the console: the workspace of its tests, in a real browser.

.venv/bin/python scripts/console_pictures.py                those of `docs/operations/console.md`
.venv/bin/python scripts/console_pictures.py --all FOLDER   every page, wide and on a phone, light and dark, to look at
"""

import io
import os
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from model_server import ModelServer
    from playwright.sync_api import Page
    from run_workspace import Workspace

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "server"), str(ROOT / "tests" / "cli"), str(ROOT / "tests")]
PICTURES = {
    "inbox": "/",
    "runs": "/runs",
    "run": "/runs/RUN",
    "prompt": "/runs/RUN/prompt?turn=3",
    "task": "/tasks/weekly-report",
    "skills": "/skills?probe=sum+up+my+notes",
    "policy": '/policy?tool=Bash&arguments={"command": "git push"}',
    "cost": "/cost",
}
ON_A_PHONE = ("inbox", "run")
EVERY = {
    **PICTURES,
    "runs-none": "/runs?q=nothing+like+this&cost=9",
    "run-failed": "/runs/FAILED",
    "run-children": "/runs/PARENT",
    "run-long": "/runs/LONG",
    "moment": "/runs/RUN/at?k=6",
    "exchange": "/runs/RUN/calls/2",
    "replay": "/runs/RUN/replay",
    "undo": "/runs/CHANGED/undo",
    "approval": "/approvals/APPROVAL",
    "tasks": "/tasks",
    "chats": "/chat",
    "chat": "/chat/CHAT",
    "skill": "/skills/greeter",
    "schedules": "/schedules",
    "evals": "/evals",
    "cost-task": "/cost?by=task&since=24h",
    "health": "/health",
    "missing": "/no/such/page",
}
EMPTY = {
    f"empty-{name}": EVERY[name]
    for name in ("inbox", "runs", "tasks", "chats", "skills", "schedules", "evals", "cost", "health")
}
WIDTHS = {"wide": 1280, "phone": 390}
type Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")


def main() -> None:
    if sys.argv[1:2] == ["--all"]:
        target = Path(sys.argv[2])
        make_every(target, full=True)
        make_every(target, full=False)
    else:
        make_documented(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "console")


def make_documented(target: Path) -> None:
    from browser import running_browser, sign_in
    from console_scene import run_everything
    from running_server import serving

    target.mkdir(parents=True, exist_ok=True)
    with opened_workspace() as (workspace, model):
        run_everything(workspace, model)
        with serving(workspace.folder) as server, running_browser() as browser:
            for suffix, width, names in (("", 1280, tuple(PICTURES)), ("-phone", 390, ON_A_PHONE)):
                context = browser.new_context(viewport={"width": width, "height": 844})
                page = sign_in(context, server)
                for name in names:
                    page.goto(server.url + PICTURES[name].replace("RUN", workspace.run_ids()[0]))
                    save(page, target / f"{name}{suffix}.png")
                context.close()


def make_every(target: Path, *, full: bool) -> None:
    """Whole pages, with texts that are long, written from right to left, or not there."""
    from browser import running_browser, sign_in
    from console_client import ConsoleClient
    from console_scene import fill_list, run_everything, run_rest, talk
    from running_server import serving

    target.mkdir(parents=True, exist_ok=True)
    with opened_workspace(empty=not full) as (workspace, model):
        if full:
            run_everything(workspace, model)
            names = run_rest(workspace, model)
            fill_list(workspace.folder, count=2_000)
        else:
            names = {}
        with serving(workspace.folder) as server, running_browser() as browser:
            if full:
                names |= talk(ConsoleClient(server), model)
            for scheme in SCHEMES:
                for size, width in WIDTHS.items():
                    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
                    page = sign_in(context, server)
                    for name, address in (EVERY if full else EMPTY).items():
                        known = [word for word in names if word in address]
                        page.goto(server.url + (address.replace(known[0], names[known[0]]) if known else address))
                        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                            sys.stdout.write(f"too wide: {name} {size}\n")
                        save(page, target / f"{name}-{size}-{scheme}.png", full_page=True)
                    context.close()


@contextmanager
def opened_workspace(*, empty: bool = False) -> "Generator[tuple[Workspace, ModelServer]]":
    from console_scene import prepare
    from model_server import running_model
    from run_workspace import Workspace

    with running_model() as model, tempfile.TemporaryDirectory() as scratch:
        folder, home = Path(scratch) / "notebook", Path(scratch) / "home"
        folder.mkdir()
        home.mkdir()
        os.environ.update(HOME=str(home), OPENAI_API_KEY="k" * 12)
        os.chdir(folder)
        yield (Workspace(folder) if empty else prepare(folder, model)), model


def save(page: "Page", file: Path, *, full_page: bool = False) -> None:
    page.wait_for_load_state("load")
    file.write_bytes(shrink(page.screenshot(full_page=full_page)))
    sys.stdout.write(f"{file}\n")


def shrink(picture: bytes) -> bytes:
    """With few colours, which is all that a page has."""
    from PIL import Image

    stream = io.BytesIO()
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(64).save(stream, "PNG", optimize=True)
    return stream.getvalue()


if __name__ == "__main__":
    main()
