"""Is the server there, and can it reach its store?"""

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from metier.server.body import Body
from metier.server.state import State
from metier.version import __version__

router = APIRouter(tags=["health"])


class Health(Body):
    status: Annotated[str, Field(description="`ok` where the store answers.")]
    version: str


@router.get("/health")
async def get_health(state: State) -> Health:
    """Needs no token, and says nothing of the workspace."""
    await state.runtime.store.list_runs(limit=1)
    return Health(status="ok", version=__version__)
