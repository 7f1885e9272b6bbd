"""A small static embedding model in the file formats of model2vec and sentence-transformers."""

import ctypes
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import safetensors
from embeddings_server import CONCEPTS
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

UNKNOWN = "[UNK]"
WORDS = (UNKNOWN, *(word for concept in CONCEPTS for word in concept))
_CODES = {"float64": "d", "float32": "f", "float16": "e", "int8": "b", "int64": "q", "int32": "i"}


class Tensor(NamedTuple):
    values: Sequence[float]
    shape: Sequence[int]
    kind: str = "float32"


def build_vectors(concepts: Sequence[Sequence[str]] = CONCEPTS) -> list[list[int]]:
    """Build one-hot vectors by meaning; the unknown token has a direction of its own."""
    return [[9, -9, 9]] + [[int(word in concept) for concept in concepts] for word in WORDS[1:]]


def build_table(vectors: Sequence[Sequence[float]] | None = None, *, kind: str = "float32") -> Tensor:
    rows = build_vectors() if vectors is None else vectors
    return Tensor([number for row in rows for number in row], (len(rows), len(rows[0])), kind)


def serialize(tensors: Mapping[str, Tensor]) -> bytes:
    """Return the bytes of a safetensors file."""
    specs: dict[str, safetensors.TensorSpec] = {}
    kept: list[ctypes.Array[ctypes.c_char]] = []
    for name, tensor in tensors.items():
        code = _CODES.get(tensor.kind, "h")
        numbers = [int(value) for value in tensor.values] if code in "bqih" else tensor.values
        data = struct.pack(f"<{len(numbers)}{code}", *numbers)
        kept.append((ctypes.c_char * len(data)).from_buffer_copy(data))
        specs[name] = safetensors.TensorSpec(
            dtype=tensor.kind, shape=list(tensor.shape), data_ptr=ctypes.addressof(kept[-1]), data_len=len(data)
        )
    return safetensors.serialize(specs)


def build_tokenizer() -> str:
    """Build a tokenizer with one lowercase token per word."""
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer.to_str()


def write_model(folder: Path, tensors: Mapping[str, Tensor] | None = None) -> Path:
    """Write a model in the format of model2vec."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(serialize(tensors or {"embeddings": build_table()}))
    (folder / "tokenizer.json").write_text(build_tokenizer(), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"model_type": "model2vec", "normalize": True}), encoding="utf-8")
    return folder
