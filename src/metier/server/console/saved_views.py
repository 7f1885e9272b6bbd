"""Filters of the list of runs that a user gave a name. In the store, so that every server of a workspace has them."""

import hashlib

from msgspec import Struct

from metier.errors import UsageError
from metier.store.contexts import ContextChange, ContextStore, NewFact

MAX_VIEWS = 30
MAX_NAME_LENGTH = 40
_MAX_ADDRESS_LENGTH = 2_000
_BUCKET = "views"


class SavedView(Struct, frozen=True, kw_only=True):
    name: str
    address: str
    """The part behind the question mark."""


async def list_views(contexts: ContextStore, user: str) -> tuple[SavedView, ...]:
    """By name."""
    facts = await contexts.list_facts(_get_context(user), bucket=_BUCKET)
    return tuple(SavedView(name=fact.key, address=str(fact.value)) for fact in facts)


async def save_view(contexts: ContextStore, user: str, view: SavedView) -> None:
    """A view of the same name is replaced. Raises `UsageError`."""
    if not view.name or len(view.name) > MAX_NAME_LENGTH or not view.name.isprintable():
        raise UsageError(
            "The name of the view is missing or too long", hint=f"Write up to {MAX_NAME_LENGTH} characters"
        )
    if not view.address or len(view.address) > _MAX_ADDRESS_LENGTH:
        raise UsageError("There is no filter to save", hint="Filter the list first, then give the filter a name")
    known = {each.name for each in await list_views(contexts, user)}
    if len(known | {view.name}) > MAX_VIEWS:
        raise UsageError(f"You have {MAX_VIEWS} views, which is as many as there can be", hint="Remove one first")
    noted = NewFact(bucket=_BUCKET, key=view.name, value=view.address)
    await contexts.commit(_get_context(user), ContextChange(facts=(noted,)))


async def remove_view(contexts: ContextStore, user: str, name: str) -> None:
    """Raises `UsageError` where the user has none of this name."""
    if name not in {each.name for each in await list_views(contexts, user)}:
        raise UsageError(
            f"You have no view {name[:MAX_NAME_LENGTH]!r}", hint="The list of runs shows those that you have"
        )
    await contexts.commit(_get_context(user), ContextChange(forgotten=((_BUCKET, name),)))


def _get_context(user: str) -> str:
    """Hashed: a name of a user may be longer than an id, and must not be that of a conversation."""
    return f"console-{hashlib.sha256(user.encode()).hexdigest()}"
