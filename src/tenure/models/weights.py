"""Reading named weights from GGUF or safetensors, checked for shape.

Weights are requested by their names in Hugging Face checkpoints (`model.layers.0.self_attn.q_proj.weight`), whatever
their names in the file. Files stay open while a reader is in use, so readers come from context managers.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tenure.checkpoints.gguf import GGUFFile
from tenure.errors import ResourceError
from tenure.layers.linear import Linear, LinearFactory
from tenure.source import ResolvedSource, SourceKind, weight_files


@dataclass(frozen=True, slots=True)
class WeightReader:
    """The weights of one checkpoint. `tensor` may be called from several threads."""

    path: Path
    shapes: Mapping[str, tuple[int, ...]]
    """By the names in the file."""
    read: Callable[[str], torch.Tensor]
    stored_name: Callable[[str], str]
    """Maps the name of a weight to its name in the file."""
    interleaved: bool = False
    """Rows of query and key projections are in the order of `layers.rope` already."""

    def has(self, name: str) -> bool:
        return self.stored_name(name) in self.shapes

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """A weight, in the element type that suits the file. ResourceError if missing or of another shape."""
        stored = self.stored_name(name)
        found = self.shapes.get(stored)
        if found is None:
            raise ResourceError(f"{self.path}: the weight {stored} is missing")
        if found != shape:
            raise ResourceError(
                f"{self.path}: the weight {stored} has shape {found}, the configuration says {tuple(shape)}"
            )
        tensor = self.read(stored)
        if not tensor.is_floating_point():
            raise ResourceError(f"{self.path}: {stored} holds {tensor.dtype}, not floating-point numbers")
        return tensor.reshape(shape)


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of one checkpoint, in one element type, on one device."""

    reader: WeightReader
    dtype: torch.dtype
    device: torch.device
    factory: LinearFactory

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        # What needs no change stays a view of the mapped file, so that nothing is read before it is used.
        return self.reader.tensor(name, shape).to(device=self.device, dtype=self.dtype, copy=False).contiguous()

    def linear(self, names: tuple[str, ...], inputs: int, outputs: int, *, bias: bool = True) -> Linear:
        """One product for several layers with the same inputs, `outputs` numbers from each."""
        weights = [self.tensor(f"{name}.weight", (outputs, inputs)) for name in names]
        biases = [self.tensor(f"{name}.bias", (outputs,)) for name in names] if bias else []
        return self.factory(_joined(weights), _joined(biases) if biases else None)


def _joined(tensors: list[torch.Tensor]) -> torch.Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


@contextmanager
def open_weights(source: ResolvedSource) -> Iterator[WeightReader]:
    """Open a checkpoint, without reading weights yet. Raises ResourceError naming what cannot be read."""
    if source.kind is SourceKind.FOLDER:
        with open_folder(source.path) as reader:
            yield reader
        return
    with GGUFFile.open(source.path) as file:
        architecture = str(file.metadata.get("general.architecture"))
        shapes = {name: info.shape for name, info in file.tensors.items()}
        # The converter reorders rows for the architecture `llama` (Mistral's too), for no other.
        names, interleaved = _gguf_names(file, architecture), architecture == "llama"
        yield WeightReader(source.path, shapes, partial(_dequantised, file), names, interleaved)


def _gguf_names(file: GGUFFile, architecture: str) -> Callable[[str], str]:
    """The mapping to GGUF names for an architecture that `read_config` accepts."""
    import gguf  # noqa: PLC0415 - only GGUF models need it

    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    blocks = file.metadata[f"{architecture}.block_count"]
    assert isinstance(blocks, int)
    known = gguf.get_tensor_name_map(kinds[architecture], blocks)
    return lambda name: known.get_name(name, try_suffixes=(".weight", ".bias")) or name


def _dequantised(file: GGUFFile, stored: str) -> torch.Tensor:
    """A weight as float32, flat."""
    import gguf  # noqa: PLC0415 - only GGUF models need it

    raw, kind = file.data(stored), gguf.GGMLQuantizationType(file.tensors[stored].ggml_type)
    if kind is gguf.GGMLQuantizationType.F32:
        # A copy: what lies in the map is read-only and goes away with the file.
        return torch.from_numpy(np.array(raw.view(np.float32)))
    if kind is gguf.GGMLQuantizationType.F16:
        return torch.from_numpy(raw.view(np.float16).astype(np.float32))
    try:
        return torch.from_numpy(np.asarray(gguf.dequantize(raw, kind), dtype=np.float32))
    except NotImplementedError as error:
        raise ResourceError(f"{file.path}: weights of type {kind.name} ({stored}) are not served") from error


@contextmanager
def open_folder(folder: Path) -> Iterator[WeightReader]:
    """Open the safetensors of a folder; tensors keep their stored element type."""
    import safetensors  # noqa: PLC0415 - only folders need it

    readers: dict[str, Any] = {}
    with ExitStack() as files:
        for path in weight_files(folder):
            try:
                reader = files.enter_context(safetensors.safe_open(path, framework="pt"))
            except (safetensors.SafetensorError, OSError) as error:
                raise ResourceError(f"{path}: not a readable safetensors file: {error}") from error
            readers.update(dict.fromkeys(reader.keys(), reader))
        if not readers:
            raise ResourceError(f"{folder}: no safetensors weights")
        shapes = {name: tuple(reader.get_slice(name).get_shape()) for name, reader in readers.items()}
        yield WeightReader(folder, shapes, lambda name: readers[name].get_tensor(name), partial(_folder_name, readers))


def _folder_name(known: Mapping[str, Any], name: str) -> str:
    """Checkpoints saved without a head lack the first part of each name; old ones have names of their own."""
    old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
    return next((stored for stored in (name, name.removeprefix("model."), old) if stored in known), name)
