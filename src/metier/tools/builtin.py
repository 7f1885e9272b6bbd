"""The tools that every run has: files of the workspace, the shell unless it is off, and pages of the web."""

from collections.abc import Mapping, Sequence
from functools import partial

from metier.errors import ConfigError, ToolFailed
from metier.tools.base import Tool
from metier.tools.files.edit import Edit, Write
from metier.tools.files.glob import Glob
from metier.tools.files.grep import Grep, get_ripgrep
from metier.tools.files.read import Read
from metier.tools.files.scope import Scope
from metier.tools.options import ShellOptions, WebSearchOptions
from metier.tools.shell.bash import Bash, Surroundings
from metier.tools.shell.shells import Shell
from metier.tools.web.url import WebAccess
from metier.tools.web.web_fetch import WebFetch
from metier.tools.web.web_search import WebSearch


def build_builtin_tools(
    scope: Scope, *, environ: Mapping[str, str], skip: Sequence[str] = (), web: WebAccess | None = None
) -> tuple[Tool, ...]:
    """`skip` are folders that listing and searching pass over, such as the run store; they can still be named."""
    return (
        Read(scope),
        Write(scope),
        Edit(scope),
        Glob(scope, skip=skip),
        # Found when a search is large enough for it: looking through PATH costs more than the start of a run.
        Grep(scope, ripgrep=partial(get_ripgrep, environ, scope.workspace), skip=skip),
        WebFetch(web),
    )


def build_search_tools(
    options: WebSearchOptions, *, environ: Mapping[str, str], web: WebAccess | None
) -> tuple[Tool, ...]:
    """`WebSearch`, or nothing where no search engine is configured: then no model hears of it. Raises `ConfigError`."""
    if not options.endpoint:
        return ()
    key = environ.get(options.api_key_env, "") if options.backend == "brave" else ""
    try:
        return (WebSearch(options, access=web, key=key),)
    except ToolFailed as error:
        raise ConfigError(f"web_search.url cannot be used: {error.message}") from error


def build_shell_tools(surroundings: Surroundings, *, shell: Shell, options: ShellOptions) -> tuple[Tool, ...]:
    """`Bash`, or nothing where it is turned off: then no model hears of it."""
    if not options.enabled or options.mode == "off":
        return ()
    return (Bash(surroundings, shell=shell, options=options),)
