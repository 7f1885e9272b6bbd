"""The built-in tools: workspace files, web pages and search, and the shell."""

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
from metier.tools.shell.bash import Bash, Shell, Surroundings
from metier.tools.web.url import WebAccess
from metier.tools.web.web_fetch import WebFetch
from metier.tools.web.web_search import WebSearch


def build_builtin_tools(
    scope: Scope, *, environ: Mapping[str, str], skip: Sequence[str] = (), web: WebAccess | None = None
) -> tuple[Tool, ...]:
    """Build the file and web tools. Listing and searching skip the folders `skip`, such as the runs, unless named."""
    return (
        Read(scope),
        Write(scope),
        Edit(scope),
        Glob(scope, skip=skip),
        # Ripgrep is located by the first large search, because searching PATH slows down the start of every run.
        Grep(scope, ripgrep=partial(get_ripgrep, environ, scope.workspace), skip=skip),
        WebFetch(web),
    )


def build_search_tools(
    options: WebSearchOptions, *, environ: Mapping[str, str], web: WebAccess | None
) -> tuple[Tool, ...]:
    """Build `WebSearch`; empty if no search engine is configured. Raises `ConfigError`."""
    if not options.endpoint:
        return ()
    key = environ.get(options.api_key_env, "") if options.backend == "brave" else ""
    try:
        return (WebSearch(options, access=web, key=key),)
    except ToolFailed as error:
        raise ConfigError(f"web_search.url cannot be used: {error.message}") from error


def build_shell_tools(surroundings: Surroundings, *, shell: Shell, options: ShellOptions) -> tuple[Tool, ...]:
    """Build `Bash`; empty if it is turned off."""
    if not options.enabled or options.mode == "off":
        return ()
    return (Bash(surroundings, shell=shell, options=options),)
