"""A run as one HTML file to hand on. The same for the command line and the console."""

from importlib.util import find_spec

from metier.errors import ConfigError
from metier.extras import hint_extra
from metier.runtime.history.run_views import read_run_view, read_step_diffs
from metier.runtime.runs import Runtime


async def render_shared_run(runtime: Runtime, run_id: str) -> str:
    """Raises `ConfigError` where the package that lays out pages is not installed."""
    if find_spec("jinja2") is None:
        raise ConfigError("A page needs the package 'jinja2', which is not installed", hint=hint_extra("server"))
    # Of the extra: loaded when a page is wanted, so that no other command needs it.
    from metier.views.page.share import render_share  # noqa: PLC0415

    view = await read_run_view(runtime, run_id)
    return render_share(view, await read_step_diffs(runtime, run_id))
