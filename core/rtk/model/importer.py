"""From a GGUF file to a model folder: config.json, generation_config.json, model.safetensors and the tokenizer's files.

Quantised tensors become float32; F32, F16 and BF16 tensors keep their bits. Tensors are decoded and written one at a
time, so memory stays near the size of the largest one.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rtk.model.gguf import GgufFile, open_gguf
from rtk.model.gguf_llama import ARCHITECTURE, LlamaModel, TensorPlan, read_llama, restore_rows
from rtk.model.gguf_quants import dequantise
from rtk.model.gguf_tokenizer import ImportedTokenizer, Vocabulary, read_tokenizer
from rtk.model.progress import Progress, silent

#: Goes up whenever the same file would give another folder.
IMPORTER_VERSION = 1

_KEPT = {"F32": 4, "F16": 2, "BF16": 2}


@dataclass(frozen=True)
class Conversion:
    """A file that has been checked from end to end and is ready to be written out."""

    gguf: GgufFile
    model: LlamaModel
    tokenizer: ImportedTokenizer


def plan_conversion(source: Path) -> Conversion:
    """Check that a file can be imported; reads its header and tables, not its weights.

    Raises:
        ModelError: it cannot; one line says why.
    """
    gguf = open_gguf(source, ARCHITECTURE)
    model, tokenizer = read_llama(gguf), read_tokenizer(gguf)
    tokens = len(tokenizer.vocabulary.tokens)
    if tokens > model.shape.vocab_size:
        raise gguf.error(f"has {tokens} tokens and only {model.shape.vocab_size} embedding rows")
    return Conversion(gguf, model, tokenizer)


def write_folder(conversion: Conversion, folder: Path, progress: Progress = silent) -> None:
    """Write the model's files into `folder`, an empty directory. Not atomic: on an error the caller throws it away.

    Raises:
        ModelError: a tensor holds a value that is not finite.
        OSError: a file cannot be written.
    """
    model, tokenizer = conversion.model, conversion.tokenizer
    ids = _token_ids(tokenizer.vocabulary)
    _write_json(folder / "config.json", model.config() | ids)
    _write_json(folder / "generation_config.json", ids)
    (folder / "tokenizer.json").write_text(tokenizer.backend.to_str(), encoding="utf-8")
    _write_json(folder / "tokenizer_config.json", tokenizer.config | {"model_max_length": model.shape.context_length})
    _write_weights(folder / "model.safetensors", conversion.gguf, model, progress)


def _token_ids(vocabulary: Vocabulary) -> dict[str, Any]:
    ends = vocabulary.ends
    ids = {
        "bos_token_id": vocabulary.bos,
        "eos_token_id": ends if len(ends) > 1 else ends[0],
        "pad_token_id": vocabulary.padding,
    }
    return {name: value for name, value in ids.items() if value is not None}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_weights(path: Path, gguf: GgufFile, model: LlamaModel, progress: Progress) -> None:
    """Write a safetensors file: u64 length of a JSON header, the header padded to 8 bytes, the tensors without gaps."""
    # wider numbers first, so that every tensor begins at a multiple of its own width
    plans = sorted(model.plans, key=lambda plan: -_width(plan))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for plan in plans:
        begin, end = end, end + int(np.prod(plan.source.shape)) * _width(plan)
        dtype = plan.source.kind.name if plan.source.kind.name in _KEPT else "F32"
        header[plan.target] = {"dtype": dtype, "shape": plan.source.shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for plan in plans:
            file.write(_stored(gguf, plan).data)
            progress("convert", file.tell(), 8 + len(text) + end)


def _width(plan: TensorPlan) -> int:
    """Bytes a value takes in the written file."""
    return _KEPT.get(plan.source.kind.name, 4)


def _stored(gguf: GgufFile, plan: TensorPlan) -> npt.NDArray[Any]:
    """The tensor as it is written: contiguous, its rows in Hugging Face's order, every value finite."""
    raw = gguf.raw(plan.source)
    if plan.rotary_heads:
        raw = restore_rows(raw, plan.rotary_heads)
    values = dequantise(raw, plan.source.kind)
    if not np.isfinite(values).all():
        raise gguf.error(f"tensor {plan.source.name!r} holds values that are not finite: the file is damaged")
    return raw if plan.source.kind.name in _KEPT else values
