"""Prompts of an editor: text, links to files, and attached files."""

import base64
import binascii
from typing import cast
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from metier.protocols.acp.connection import INVALID_PARAMS, Params, Refusal
from metier.runtime.attachments import GivenFile
from metier.tools.media import get_media_type

MAX_PROMPT_LENGTH = 1_000_000
"""Characters of the text."""
_FILES_ONLY = "See the attached files."


class Prompt(Struct, frozen=True):
    text: str
    given: tuple[GivenFile, ...] = ()
    """Attached files: contents of buffers, pictures, documents."""


def read_prompt(blocks: object) -> Prompt:
    """Read a prompt. Raises `Refusal`."""
    if not isinstance(blocks, list):
        raise Refusal(INVALID_PARAMS, "A prompt is a list of blocks")
    texts: list[str] = []
    given: list[GivenFile] = []
    for number, block in enumerate(cast("list[object]", blocks), start=1):
        found = _read_block(cast("Params", block), number) if isinstance(block, dict) else ""
        if isinstance(found, GivenFile):
            given.append(found)
        else:
            texts.append(found)
    text = "\n\n".join(each for each in texts if each.strip()) or (_FILES_ONLY if given else "")
    if not text:
        raise Refusal(INVALID_PARAMS, "The prompt says nothing")
    if len(text) > MAX_PROMPT_LENGTH:
        raise Refusal(INVALID_PARAMS, f"The prompt is longer than {MAX_PROMPT_LENGTH} characters")
    return Prompt(text, tuple(given))


def _read_block(block: Params, number: int) -> str | GivenFile:
    match block.get("type"):
        case "text":
            return str(block.get("text", ""))
        case "resource_link":
            return f"[file {_name_file(str(block.get('uri', '')))}]"
        case "resource":
            resource: object = block.get("resource")
            return _read_resource(cast("Params", resource) if isinstance(resource, dict) else {})
        case "image":
            name = _name_file(str(block.get("uri") or "")) or f"picture-{number}"
            return _check_picture(GivenFile(name, _decode(block.get("data"))))
        case _:
            raise Refusal(INVALID_PARAMS, f"Blocks of type {str(block.get('type'))[:40]!r} are not taken")


def _read_resource(resource: Params) -> str | GivenFile:
    """Return the text of a buffer or the bytes of a file; only the name if there is neither."""
    name = _name_file(str(resource.get("uri", "")))
    if isinstance(text := resource.get("text"), str):
        return GivenFile(name, text.encode("utf-8", "replace"))
    if "blob" in resource:
        return GivenFile(name, _decode(resource["blob"]))
    return f"[file {name}]"


def _check_picture(given: GivenFile) -> GivenFile:
    if not get_media_type(given.data):
        raise Refusal(INVALID_PARAMS, "The bytes of an image are no picture that is known")
    return given


def _decode(data: object) -> bytes:
    try:
        return base64.b64decode(str(data), validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refusal(INVALID_PARAMS, "The bytes of a block are not base64") from error


def _name_file(uri: str) -> str:
    try:
        parts = urlsplit(uri)
    except ValueError:
        return uri
    return unquote(parts.path) if parts.scheme == "file" else uri
