"""Reading named weights from GGUF or safetensors, checked for shape, as float32 or as stored.

Both readers answer to the names of Hugging Face checkpoints (`model.layers.0.self_attn.q_proj.weight`). They hold open
files, so each is a context manager. `tensor` may be called from several threads.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Protocol, Self

import numpy as np
import torch

from tenure.checkpoints.gguf import GGUFFile
from tenure.errors import ResourceError
from tenure.source import ResolvedSource, SourceKind, weight_files


class WeightReader(Protocol):
    """The weights of one checkpoint."""

    @property
    def interleaved(self) -> bool:
        """Rows of query and key projections are in the order of `layers.rope` already."""
        ...

    def has(self, name: str) -> bool: ...

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """A weight, in the element type that suits the reader. ResourceError if missing or of another shape."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def open_weights(source: ResolvedSource) -> WeightReader:
    """Open a checkpoint, without reading weights yet. Raises ResourceError naming what cannot be read."""
    if source.kind is SourceKind.GGUF:
        return GGUFWeights(GGUFFile.open(source.path))
    return SafetensorsWeights(source.path)


_GGUF_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "rope_freqs": "rope_freqs",
        "input_layernorm": "attn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
)


def _gguf_name(name: str) -> str:
    module, _, kind = name.rpartition(".")
    if not module.startswith("model.layers."):
        return f"{_GGUF_NAMES[module]}.{kind}"
    layer, _, part = module.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{_GGUF_NAMES[part]}.{kind}"


class GGUFWeights:
    """Weights of a GGUF file, dequantised to float32."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file

    @property
    def interleaved(self) -> bool:
        # The converter reorders these rows for the architecture `llama` (Mistral's too), for no other.
        return self._file.metadata.get("general.architecture") == "llama"

    def has(self, name: str) -> bool:
        return _gguf_name(name) in self._file.tensors

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        stored = _gguf_name(name)
        info = self._file.tensors.get(stored)
        _check(self._file.path, stored, None if info is None else info.shape, shape)
        assert info is not None
        return torch.from_numpy(self._dequantised(stored, info.ggml_type)).reshape(shape)

    def _dequantised(self, stored: str, ggml_type: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        import gguf  # noqa: PLC0415 - only GGUF models need it

        raw = self._file.data(stored)
        kind = gguf.GGMLQuantizationType(ggml_type)
        if kind is gguf.GGMLQuantizationType.F32:
            # A copy: what lies in the map is read-only and goes away with the file.
            return np.array(raw.view(np.float32))
        if kind is gguf.GGMLQuantizationType.F16:
            return raw.view(np.float16).astype(np.float32)
        try:
            return np.asarray(gguf.dequantize(raw, kind), dtype=np.float32)
        except NotImplementedError as error:
            raise ResourceError(f"{self._file.path}: weights of type {kind.name} ({stored}) are not served") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


class SafetensorsWeights:
    """Weights of a folder, see `weight_files`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = ExitStack()
        self._readers: dict[str, Any] = {}
        """Tensor name -> the open shard that holds it; filled on entering, read only after."""

    @property
    def interleaved(self) -> bool:
        return False

    def has(self, name: str) -> bool:
        return self._stored(name) in self._readers

    def _stored(self, name: str) -> str:
        """Checkpoints saved without a head lack the first part of each name; old ones have names of their own."""
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        return next((stored for stored in (name, name.removeprefix("model."), old) if stored in self._readers), name)

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        name = self._stored(name)
        reader = self._readers.get(name)
        found = None if reader is None else tuple(reader.get_slice(name).get_shape())
        _check(self._folder, name, found, shape)
        assert reader is not None
        tensor: torch.Tensor = reader.get_tensor(name)
        if not tensor.is_floating_point():
            raise ResourceError(f"{self._folder}: {name} holds {tensor.dtype}, not floating-point numbers")
        return tensor

    def __enter__(self) -> Self:
        import safetensors  # noqa: PLC0415 - only folders need it

        with self._files:
            files = weight_files(self._folder)
            if not files:
                raise ResourceError(f"{self._folder}: no safetensors weights")
            for path in files:
                try:
                    reader = self._files.enter_context(safetensors.safe_open(path, framework="pt"))
                except (safetensors.SafetensorError, OSError) as error:
                    raise ResourceError(f"{path}: not a readable safetensors file: {error}") from error
                for name in reader.keys():  # noqa: SIM118 - not a mapping
                    self._readers[name] = reader
            self._files = self._files.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._readers.clear()
        self._files.close()


def _check(path: Path, name: str, found: tuple[int, ...] | None, expected: tuple[int, ...]) -> None:
    if found is None:
        raise ResourceError(f"{path}: the weight {name} is missing")
    if tuple(found) != expected:
        raise ResourceError(f"{path}: the weight {name} has shape {tuple(found)}, the configuration says {expected}")
