"""Static embedding models, which have a vector for each token. The vector of a text is the sum of its tokens' vectors.

The files are only data: `safetensors` reads the weights and `tokenizers` splits the text, both from the extra
`embeddings`. No pickle is opened, and no code from the folder is run. Every problem of a folder is an
`EmbeddingsFailed` with a hint.
"""

import hashlib
import json
import math
import os
import struct
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypedDict, cast

import anyio
from anyio.to_thread import run_sync

from metier.definitions.files.contained_path import read_contained
from metier.extras import hint_extra
from metier.routing.skill import EmbeddingsFailed
from metier.routing.vectors import Vector, build_vector

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MAX_WEIGHTS_BYTES = 640 * 1024 * 1024
"""Files are read whole, so that their hash is the hash of the data used. The largest known model has 512 MB."""
MAX_TOKENIZER_BYTES = 64 * 1024 * 1024
MAX_TOKENS = 512
"""Maximum number of tokens of a text."""
MAX_NUMBERS = 8_192
"""Maximum length of a vector."""
WEIGHTS_FILE, TOKENIZER_FILE, MODULES_FILE = "model.safetensors", "tokenizer.json", "modules.json"
LAYOUTS = (".", "0_StaticEmbedding")
"""Locations of the two files: model2vec's and sentence-transformers'."""

_PROCEDURE = "1"
"""Version of the computation; increase it when vectors change."""
_NUMBERS: Mapping[str, str] = {"F64": "d", "F32": "f", "F16": "e", "I8": "b"}
_INDEXES: Mapping[str, str] = {"I64": "q", "I32": "i"}
_TABLES = ("embeddings", "embedding.weight")
_WEIGHTS, _MAPPING = "weights", "mapping"
_PARTS = frozenset({"StaticEmbedding", "Normalize"})
_MEGABYTE = 1024 * 1024
_READABLE = (
    f"Use a static model: '{WEIGHTS_FILE}' with the tensor 'embeddings' or 'embedding.weight', and "
    f"'{TOKENIZER_FILE}', in the folder or in its subfolder '{LAYOUTS[1]}'; for another model set "
    "routing.embeddings.base_url to a server"
)
_AGAIN = "Fetch the model again"


class _Tensor(TypedDict):
    """A tensor as `safetensors` returns it."""

    dtype: str
    shape: list[int]
    data: bytes


class _Files(NamedTuple):
    weights: Path
    tokenizer: Path
    within: Path
    """The folder that links may not leave."""


class StaticModel:
    """A loaded model. Immutable."""

    def __init__(self, identity: str, tokenizer: "Tokenizer", *, unknown: int | None, table: "_Table") -> None:
        self.identity = identity
        self.table = table
        self._tokenizer = tokenizer
        self._unknown = unknown

    async def embed(self, texts: Sequence[str]) -> list[Vector | None]:
        """Embed texts; None for one without known tokens. Raises `EmbeddingsFailed` for non-finite numbers."""
        # In a thread, because a whole catalog takes seconds.
        return await run_sync(lambda: [self._embed(text) for text in texts])

    def _embed(self, text: str) -> Vector | None:
        # The tokenizer is written in Rust, whose strings can't hold a lone surrogate.
        valid = text.encode("utf-8", "replace").decode()
        encoded = _try(lambda: self._tokenizer.encode(valid, add_special_tokens=False).ids, "cannot tokenize a text")
        tokens = [token for token in encoded if token != self._unknown]
        return build_vector(self.table.add(tokens)) if tokens else None


class _Table:
    """The vectors of all tokens, in the file's format."""

    def __init__(self, tensor: _Tensor, *, weights: Sequence[float], mapping: Sequence[int]) -> None:
        self._data = tensor["data"]
        self._row = struct.Struct(f"<{tensor['shape'][1]}{_NUMBERS[tensor['dtype']]}")
        self._weights = weights
        self._mapping = mapping

    def add(self, tokens: Sequence[int]) -> Sequence[float]:
        """Return the sum of the vectors, which has the same direction as their mean."""
        try:
            places = [self._mapping[token] for token in tokens] if self._mapping else tokens
            rows: list[Sequence[float]] = [self._row.unpack_from(self._data, at * self._row.size) for at in places]
            if self._weights:
                pairs = zip(rows, tokens, strict=True)
                rows = [[number * self._weights[token] for number in row] for row, token in pairs]
        except (IndexError, struct.error) as error:
            raise _misfit() from error
        # In plain Python: `numpy` is no dependency, because its import would slow down every command.
        found: list[float] = [sum(column) for column in zip(*rows, strict=True)]
        if not all(map(math.isfinite, found)):
            raise _no_numbers()
        return found

    def check(self) -> None:
        """Check every number. Raises `EmbeddingsFailed`."""
        if not all(math.isfinite(sum(row)) for row in self._row.iter_unpack(self._data)):
            raise _no_numbers()


def load_model(folder: Path, *, workspace: Path) -> StaticModel:
    """Load the model of a folder, cached until its files change. Raises `EmbeddingsFailed`.

    A folder inside the workspace must not link out of it.
    """
    files = _get_files(folder, workspace)
    try:
        stamps = tuple(_stamp(path) for path in (files.weights, files.tokenizer))
    except OSError as error:
        raise _unreadable(error) from error
    return _load(files, stamps)


def _stamp(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _get_files(folder: Path, workspace: Path) -> _Files:
    if not folder.is_dir():
        there = "is not a folder" if folder.exists() else "does not exist"
        raise EmbeddingsFailed(
            f"The folder '{folder}' for the embedding model {there}", hint="Correct routing.embeddings.folder"
        )
    base = next((folder / place for place in LAYOUTS if (folder / place / WEIGHTS_FILE).exists()), None)
    if base is None:
        raise _unsupported(folder, f"it has no '{WEIGHTS_FILE}'")
    if other := _get_other_parts(folder):
        raise _unsupported(folder, f"it has a part {other!r}")
    if not (base / TOKENIZER_FILE).exists():
        raise EmbeddingsFailed(f"The embedding model in '{folder}' has no '{TOKENIZER_FILE}'", hint=_AGAIN)
    is_inside = Path(os.path.normpath(folder)).is_relative_to(workspace)
    # A folder elsewhere is the user's own choice, so its links may lead anywhere.
    within = workspace if is_inside else Path(folder.anchor)
    return _Files(base / WEIGHTS_FILE, base / TOKENIZER_FILE, within)


def _get_other_parts(folder: Path) -> str:
    """Return the first unsupported module of a sentence-transformers model, or an empty string."""
    try:
        content = read_contained(folder / MODULES_FILE, within=folder, limit=_MEGABYTE)
        modules = cast("list[dict[str, object]]", json.loads(content))
        kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
    except (OSError, ValueError, TypeError, KeyError):
        return ""  # usually absent; the tensors show the kind of model
    return next((kind for kind in kinds if kind not in _PARTS), "")


# Only one, because a model can take hundreds of megabytes of memory.
@lru_cache(maxsize=1)
def _load(files: _Files, stamps: tuple[tuple[int, ...], ...]) -> StaticModel:
    # `stamps` is part of the cache key: changed files are loaded again.
    try:
        import safetensors
        from tokenizers import Tokenizer
    except ImportError as error:
        raise EmbeddingsFailed(
            f"An embedding model in a folder needs the package {error.name!r}, which is not installed",
            hint=hint_extra("embeddings"),
        ) from error
    words = _read(files.tokenizer, files.within, size=stamps[1][2], limit=MAX_TOKENIZER_BYTES)
    content = _read(files.weights, files.within, size=stamps[0][2], limit=MAX_WEIGHTS_BYTES)
    identity = f"{_PROCEDURE} {hashlib.sha256(content).hexdigest()} {hashlib.sha256(words).hexdigest()}"
    deserialize = cast("Callable[[bytes], Sequence[tuple[str, _Tensor]]]", safetensors.deserialize)
    tensors = dict(_try(lambda: deserialize(content), f"has a damaged '{WEIGHTS_FILE}'"))
    tokenizer = _try(lambda: Tokenizer.from_str(words.decode()), f"has a '{TOKENIZER_FILE}' that cannot be used")
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)  # pyright: ignore[reportUnknownMemberType]
    table = _build_table(tensors, files, tokens=tokenizer.get_vocab_size())
    return StaticModel(identity, tokenizer, unknown=_find_unknown(tokenizer, words), table=table)


def _read(file: Path, within: Path, *, size: int, limit: int) -> bytes:
    if size > limit:
        raise EmbeddingsFailed(
            f"'{file.name}' of the embedding model has {size // _MEGABYTE} MB; the limit is {limit // _MEGABYTE} MB",
            hint="Use a smaller model, or set routing.embeddings.base_url to a server",
        )
    try:
        return read_contained(file, within=within, limit=size)
    except OSError as error:
        raise _unreadable(error) from error


def _build_table(tensors: Mapping[str, _Tensor], files: _Files, *, tokens: int) -> _Table:
    name = next((name for name in _TABLES if name in tensors), "")
    others = sorted(tensors.keys() - {name, _WEIGHTS, _MAPPING})
    if not name or others:
        raise _unsupported(files.weights.parent, f"it has a tensor {others[0]!r}" if others else "it has no vectors")
    table = tensors[name]
    kind, shape = table["dtype"], table["shape"]
    if kind not in _NUMBERS:
        raise _unsupported(files.weights.parent, f"its numbers are of the kind {kind!r}")
    if len(shape) != 2 or 0 in shape or shape[1] > MAX_NUMBERS:
        found = " x ".join(map(str, shape)) or "no"
        raise EmbeddingsFailed(
            f"The tensor {name!r} of the embedding model has {found} numbers instead of a row of at most {MAX_NUMBERS} "
            "for each token",
            hint=_AGAIN,
        )
    mapping = cast("Sequence[int]", _unpack(tensors.get(_MAPPING), _INDEXES))
    weights = _unpack(tensors.get(_WEIGHTS), _NUMBERS)
    is_short = any(0 < len(each) < tokens for each in (mapping, weights)) or (not mapping and shape[0] < tokens)
    if is_short or (mapping and not 0 <= min(mapping) <= max(mapping) < shape[0]):
        raise _misfit()
    return _Table(table, weights=weights, mapping=mapping)


def _unpack(tensor: _Tensor | None, kinds: Mapping[str, str]) -> Sequence[float]:
    if tensor is None:
        return ()
    kind, shape = tensor["dtype"], tensor["shape"]
    if kind not in kinds or len(shape) != 1 or 0 in shape:
        raise _misfit()
    return struct.unpack(f"<{shape[0]}{kinds[kind]}", tensor["data"])


def _find_unknown(tokenizer: "Tokenizer", words: bytes) -> int | None:
    """Find the token for unknown words, which is ignored."""
    token: object = getattr(tokenizer.model, "unk_token", None)
    if isinstance(token, str):
        return tokenizer.token_to_id(token)
    if type(tokenizer.model).__name__ != "Unigram":
        return None
    # The package exposes the unknown token of other models, but that of a Unigram model is only in the file.
    found = json.loads(words)["model"].get("unk_id")
    return found if isinstance(found, int) else None


def _try[Found](work: Callable[[], Found], fault: str) -> Found:
    """Run a function and translate every error: the packages raise many types, and a Rust panic is no `Exception`."""
    try:
        return work()
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise EmbeddingsFailed(f"The embedding model {fault}", hint=_AGAIN) from error


def _unsupported(folder: Path, found: str) -> EmbeddingsFailed:
    return EmbeddingsFailed(f"The folder '{folder}' has no supported embedding model: {found}", hint=_READABLE)


def _unreadable(error: OSError) -> EmbeddingsFailed:
    return EmbeddingsFailed(
        f"'{error.filename}' of the embedding model cannot be read: {error.strerror}",
        hint="Make it readable, or correct routing.embeddings.folder",
    )


def _misfit() -> EmbeddingsFailed:
    return EmbeddingsFailed(f"'{WEIGHTS_FILE}' and '{TOKENIZER_FILE}' of the embedding model don't match", hint=_AGAIN)


def _no_numbers() -> EmbeddingsFailed:
    return EmbeddingsFailed("The embedding model has non-finite weights", hint=_AGAIN)


class FolderEmbeddings:
    def __init__(self, folder: Path, *, workspace: Path, seconds: float) -> None:
        self._folder = folder
        self._workspace = workspace
        self._seconds = seconds

    @asynccontextmanager
    async def open(self) -> "AsyncGenerator[StaticModel]":
        try:
            with anyio.fail_after(self._seconds):
                yield await run_sync(lambda: load_model(self._folder, workspace=self._workspace))
        except TimeoutError as error:
            raise EmbeddingsFailed(
                f"The embedding model in '{self._folder}' was not ready within {self._seconds:g} seconds",
                hint="Try again, or raise routing.embeddings.timeout_seconds",
            ) from error
