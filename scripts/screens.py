"""Make the pictures of `docs/screens`: the scenes of `tests/screens`, taken at a real terminal (tmux), as SVG.

.venv/bin/python scripts/screens.py
"""

import io
import os
import re
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "screens"), str(ROOT / "tests" / "cli"), str(ROOT / "tests")]


def main() -> None:
    from model_server import running_model
    from scenes import SCENES, SIZES, Place, prepare

    size = "100x30"
    for name, show in SCENES.items():
        with running_model() as model, tempfile.TemporaryDirectory() as scratch:
            folder, home = Path(scratch) / "work", Path(scratch) / "home"
            folder.mkdir()
            home.mkdir()
            prepare(folder, model.url)
            environment = {**os.environ, "HOME": str(home), "OPENAI_API_KEY": "k" * 12}
            screen = show(Place(folder, model, environment, SIZES[size]))
        target = ROOT / "docs" / "screens" / f"{name}-{size}.svg"
        target.parent.mkdir(exist_ok=True)
        target.write_text(draw(screen.styled, width=SIZES[size][0], title=f"agent: {name}"), encoding="utf-8")
        sys.stdout.write(f"{target.relative_to(ROOT)}\n")


def draw(styled: str, *, width: int, title: str) -> str:
    """A screen with its colours as an SVG."""
    console = Console(file=io.StringIO(), record=True, width=width, force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(styled))
    # Without the fonts of a server elsewhere: a page shows the picture with a font of its reader.
    return re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title=title, unique_id="screen"), flags=re.DOTALL)


if __name__ == "__main__":
    main()
