"""Pictures and documents of a run: stored as blobs when they come in, loaded when a request is sent."""

from collections.abc import Iterable
from dataclasses import replace

from metier.engine.turn_cache import MediaFinder
from metier.messages import MediaPart
from metier.providers.base import ModelRequest
from metier.store.base import Store
from metier.tools.base import Media


async def store_media(store: Store, media: Iterable[Media]) -> tuple[MediaPart, ...]:
    """Store media as blobs, and return the parts that name them. A blob lives as long as an entry refers to it."""
    return tuple(
        [
            MediaPart(
                media_type=each.media_type,
                digest=await store.put_blob(each.data),
                name=each.name,
                width=each.width,
                height=each.height,
                pages=each.pages,
            )
            for each in media
        ]
    )


async def load_media(request: ModelRequest, store: Store, finder: MediaFinder) -> ModelRequest:
    """Return the request with the bytes of its media; the same object without media."""
    digests = finder.list_digests(request.messages)
    if not digests:
        return request
    return replace(request, media={digest: await store.get_blob(digest) for digest in sorted(digests)})
