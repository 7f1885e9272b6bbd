"""Make the pictures of `docs/console.md`: the workspace of the console's tests, in a real browser.

.venv/bin/python scripts/console_pictures.py [folder]
"""

import io
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "server"), str(ROOT / "tests" / "cli")]
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


def main() -> None:
    from browser import running_browser, sign_in
    from console_scene import prepare, run_everything
    from model_server import running_model
    from running_server import serving

    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "console"
    target.mkdir(parents=True, exist_ok=True)
    with running_model() as model, tempfile.TemporaryDirectory() as scratch:
        folder, home = Path(scratch) / "notebook", Path(scratch) / "home"
        folder.mkdir()
        home.mkdir()
        os.environ.update(HOME=str(home), OPENAI_API_KEY="k" * 12)
        os.chdir(folder)
        workspace = prepare(folder, model)
        run_everything(workspace, model)
        with serving(folder) as server, running_browser() as browser:
            for suffix, width, names in (("", 1280, tuple(PICTURES)), ("-phone", 390, ON_A_PHONE)):
                context = browser.new_context(viewport={"width": width, "height": 844})
                page = sign_in(context, server)
                for name in names:
                    page.goto(server.url + PICTURES[name].replace("RUN", workspace.run_ids()[0]))
                    page.wait_for_load_state("load")
                    file = target / f"{name}{suffix}.png"
                    file.write_bytes(shrink(page.screenshot()))
                    sys.stdout.write(f"{file}\n")
                context.close()


def shrink(picture: bytes) -> bytes:
    """With few colours, which is all that a page has."""
    from PIL import Image

    stream = io.BytesIO()
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(64).save(stream, "PNG", optimize=True)
    return stream.getvalue()


if __name__ == "__main__":
    main()
