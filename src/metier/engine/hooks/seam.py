"""The seam for hooks: which a run that begins has, and how one is run."""

from collections.abc import Mapping
from typing import Protocol

from pydantic import JsonValue

from metier.tools.hooks.definition import HookCommand
from metier.tools.hooks.hook_process import HookRun


class Hooking(Protocol):
    """Runs hooks; `tools.hooks.run.HookRunner` is one."""

    async def run(self, hook: HookCommand, data: Mapping[str, JsonValue]) -> HookRun: ...
