"""The tools that every run has: files of the workspace and pages of the web. The shell is built elsewhere."""

from collections.abc import Mapping, Sequence

from metier.tools.base import Tool
from metier.tools.edit import Edit
from metier.tools.glob import Glob
from metier.tools.grep import Grep
from metier.tools.read import Read
from metier.tools.ripgrep import find_ripgrep
from metier.tools.scope import Scope
from metier.tools.web import WebAccess, WebFetch
from metier.tools.write import Write


def build_builtin_tools(
    scope: Scope, *, environ: Mapping[str, str], skip: Sequence[str] = (), web: WebAccess | None = None
) -> tuple[Tool, ...]:
    """`skip` are folders that listing and searching pass over, such as the run store; they can still be named."""
    return (
        Read(scope),
        Write(scope),
        Edit(scope),
        Glob(scope, skip=skip),
        Grep(scope, ripgrep=find_ripgrep(environ, scope.workspace), skip=skip),
        WebFetch(web),
    )
