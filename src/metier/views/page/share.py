"""A run as one HTML file that needs nothing else: no script, no address, its own style."""

import base64
import hashlib
from collections.abc import Mapping
from functools import cache

from jinja2 import Template
from markupsafe import Markup

from metier.version import __version__
from metier.views.page.environment import STYLE_FILE, build_environment
from metier.views.run_view import RunView
from metier.views.waterfall import build_waterfall


@cache
def _open_template() -> Template:
    return build_environment().get_template("share.html")


def render_share(view: RunView, changes: Mapping[str, str] | None = None) -> str:
    """`changes` are the diffs of steps by `run:step`. A policy in the page lets nothing run and nothing be fetched."""
    style = STYLE_FILE.read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return _open_template().render(
        view=view,
        fall=build_waterfall(view),
        changes=dict(changes or {}),
        style=Markup(style),  # noqa: S704 - our own file
        style_hash=f"sha256-{digest}",
        version=__version__,
    )
