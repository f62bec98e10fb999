"""The kernels of the C files here, loaded with ctypes. An installation may lack them (see `can_run`).

They are plain C11 with GCC's vector types, without headers of Python or torch. Nothing there allocates or keeps state.
Results do not depend on what else is in a batch, nor on the number of threads: every sum has one fixed order, and
threads share out whole tasks. Values that are not finite stay within the row or sequence that they are in, and are not
lost there; hence no -ffast-math.

The library runs on the OpenMP runtime that torch brought into the process, never on one of its own: two would keep
twice as many threads spinning. So torch's runtime is made visible first, and without it there are no native kernels.
Calls release the interpreter's lock and return when the work is done.

All tensors are float32, contiguous and on the CPU.

Legend: T rows, D hidden size, F intermediate size, N query heads, C key-value heads, M = N + 2 C, H head size,
P = H / 2 pairs. Of products: I inputs, O outputs.
"""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray

from tenure.kernels.attention_plan import ATTENTION_LAYOUT, MAX_QUERIES, AttentionPlan, Heads
from tenure.kernels.matrix import BLOCK_ROWS, LAYER_LAYOUT, LayerMatrices, Matrix
from tenure.kernels.paged_attention import AttentionShape, IntArray
from tenure.kernels.sampling import SAMPLING_LAYOUT, SamplingLines, scratch_size
from tenure.kernels.text_attention import TEXT_LAYOUT, TextPlan

LIBRARY = Path(__file__).with_name("_native.so")
_ROWS_PER_THREAD = 16
"""That are sampled in less time than another thread needs to wake on a busy machine."""
_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_int64

FUNCTIONS: Mapping[str, Sequence[type]] = MappingProxyType(
    {
        "tenure_rms_norm": (*[_POINTER] * 3, _SIZE, _SIZE, ctypes.c_float),
        "tenure_silu_mul": (_POINTER, _POINTER, _SIZE, _SIZE),
        "tenure_rotate_and_store": (*[_POINTER] * 5, _SIZE),
        "tenure_attend": [_POINTER] * 4,
        "tenure_sample": (_POINTER, _SIZE, _SIZE, *[_POINTER] * 3, _SIZE, _POINTER, _SIZE, _SIZE, _POINTER),
    }
)
"""The parameters of the library's functions; addresses stand for arrays."""
AVX512_FUNCTIONS: Mapping[str, Sequence[type]] = MappingProxyType(
    {
        "tenure_multiply": (*[_POINTER] * 4, _SIZE),
        "tenure_after_attention": (*[_POINTER] * 5, _SIZE, _SIZE),
        "tenure_attend_texts": [_POINTER] * 3,
    }
)
LAYOUTS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"tenure_has_attention_layout": ATTENTION_LAYOUT, "tenure_has_sampling_layout": SAMPLING_LAYOUT}
)
"""Limits and sizes of structures by the function of the library that must agree with them: what is written to memory in
one language is read in the other."""
AVX512_LAYOUTS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"tenure_has_text_layout": TEXT_LAYOUT, "tenure_has_layer_layout": LAYER_LAYOUT}
)


@dataclass(frozen=True, slots=True)
class NativeKernels:
    """The functions of the library."""

    library: ctypes.CDLL
    has_avx512: bool
    """Whether this processor can run `multiply`, `after_attention` and `attend_texts`."""

    @classmethod
    def load(cls, path: Path = LIBRARY) -> "NativeKernels":
        """Raises OSError when the library was not built, is of another version, or cannot run beside this torch."""
        ctypes.CDLL(_torch_openmp(), mode=ctypes.RTLD_GLOBAL)
        library = ctypes.CDLL(str(path))
        try:
            has_avx512 = bool(library.tenure_has_avx512())
            for name, parameters in {**FUNCTIONS, **(AVX512_FUNCTIONS if has_avx512 else {})}.items():
                function = getattr(library, name)
                function.argtypes, function.restype = parameters, None
            for name, numbers in {**LAYOUTS, **(AVX512_LAYOUTS if has_avx512 else {})}.items():
                if not getattr(library, name)(*map(_SIZE, numbers)):
                    raise OSError(f"{path} is of another version: no {name}")
        except AttributeError as error:
            raise OSError(f"{path} is of another version: {error}") from error
        return cls(library, has_avx512)

    def rms_norm(self, x_TD: torch.Tensor, weight_D: torch.Tensor, eps: float) -> torch.Tensor:
        """x / sqrt(mean(x^2) + eps) * weight, row by row."""
        assert x_TD.is_contiguous()
        rows, width = x_TD.shape
        out_TD = torch.empty_like(x_TD)
        self.library.tenure_rms_norm(x_TD.data_ptr(), weight_D.data_ptr(), out_TD.data_ptr(), rows, width, eps)
        return out_TD

    def silu_mul(self, gate_up_T2F: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up, shape (T, F); gate is the first half of each row."""
        assert gate_up_T2F.is_contiguous()
        rows, width = len(gate_up_T2F), gate_up_T2F.shape[1] // 2
        out_TF = torch.empty((rows, width))
        self.library.tenure_silu_mul(gate_up_T2F.data_ptr(), out_TF.data_ptr(), rows, width)
        return out_TF

    def rotate_and_store(
        self,
        heads: Heads,
        x_TMH: torch.Tensor,
        rotations_T1P: torch.Tensor,
        slot_mapping_T: torch.Tensor,
        cache: torch.Tensor,
    ) -> None:
        """Rotate query and key heads in place (pairs are neighbours), then write keys and values to a layer's cache."""
        assert x_TMH.is_contiguous()
        self.library.tenure_rotate_and_store(
            ctypes.byref(heads),
            x_TMH.data_ptr(),
            rotations_T1P.data_ptr(),
            slot_mapping_T.data_ptr(),
            cache.data_ptr(),
            len(x_TMH),
        )

    def attend(self, plan: AttentionPlan, x_TMH: torch.Tensor, cache: torch.Tensor, out_TNH: torch.Tensor) -> None:
        """Attend to the cache for the rows of a plan; writes their `out_TNH`."""
        self.library.tenure_attend(ctypes.byref(plan), x_TMH.data_ptr(), cache.data_ptr(), out_TNH.data_ptr())

    def multiply(self, matrix: Matrix, x_TI: torch.Tensor, addend_TO: torch.Tensor | None) -> torch.Tensor:
        """x W^T + bias + addend, shape (T, O); a row is the same in any batch."""
        assert x_TI.is_contiguous()
        assert x_TI.shape[1] == matrix.inputs
        assert addend_TO is None or (addend_TO.is_contiguous() and addend_TO.shape == (len(x_TI), matrix.outputs))
        out_TO = torch.empty((len(x_TI), matrix.outputs))
        addend = None if addend_TO is None else addend_TO.data_ptr()
        self.library.tenure_multiply(ctypes.byref(matrix), x_TI.data_ptr(), addend, out_TO.data_ptr(), len(x_TI))
        return out_TO

    def after_attention(self, layer: LayerMatrices, attended_TD: torch.Tensor, x_TD: torch.Tensor) -> torch.Tensor:
        """The part of an encoder layer after attention, shape (T, D); a row's result does not depend on the batch."""
        assert attended_TD.is_contiguous()
        assert x_TD.is_contiguous()
        assert attended_TD.shape == x_TD.shape == (len(x_TD), layer.output.outputs)
        threads = torch.get_num_threads()
        scratch = torch.empty((min(len(x_TD), threads * BLOCK_ROWS), layer.up.outputs))
        out_TD = torch.empty_like(x_TD)
        self.library.tenure_after_attention(
            ctypes.byref(layer),
            attended_TD.data_ptr(),
            x_TD.data_ptr(),
            scratch.data_ptr(),
            out_TD.data_ptr(),
            len(x_TD),
            threads,
        )
        return out_TD

    def attend_texts(self, plan: TextPlan, heads_T3NH: torch.Tensor) -> torch.Tensor:
        """Every row attends to all rows of its text; shape (T, N * H)."""
        assert heads_T3NH.is_contiguous()
        rows, _, heads, size = heads_T3NH.shape
        out_TD = torch.empty((rows, heads * size))
        self.library.tenure_attend_texts(ctypes.byref(plan), heads_T3NH.data_ptr(), out_TD.data_ptr())
        return out_TD

    def sample(
        self, logits_RV: torch.Tensor, lines: SamplingLines, slots_R: IntArray, uniforms_R: NDArray[np.float64]
    ) -> IntArray:
        """The token of each row, for the occupant of its slot, or one of the negative numbers of `kernels.sampling`."""
        assert logits_RV.stride(1) == 1
        rows, width = logits_RV.shape
        threads = max(1, min(torch.get_num_threads(), rows // _ROWS_PER_THREAD))
        scratch = torch.empty(threads * scratch_size(width))
        tokens_R = np.empty(rows, dtype=np.int64)
        self.library.tenure_sample(
            logits_RV.data_ptr(),
            logits_RV.stride(0),
            width,
            lines.ctypes.data,
            slots_R.ctypes.data,
            uniforms_R.ctypes.data,
            rows,
            scratch.data_ptr(),
            scratch_size(width),
            threads,
            tokens_R.ctypes.data,
        )
        return tokens_R


def can_run(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether there are native kernels for this element type and device."""
    return dtype == torch.float32 and device.type == "cpu" and available()


def can_run_avx512(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether there are native products, and layers of encoders, for this element type and device."""
    return can_run(dtype, device) and NativeKernels.load().has_avx512


def can_attend(shape: AttentionShape) -> bool:
    """Whether there is native attention for heads of this shape."""
    return can_run(shape.dtype, shape.device) and shape.num_heads // shape.num_kv_heads <= MAX_QUERIES


def available(library: Path = LIBRARY) -> bool:
    """Whether the library was built and can be loaded beside this torch."""
    try:
        NativeKernels.load(library)
    except OSError:
        return False
    return True


def openmp_runtimes() -> set[Path]:
    """The OpenMP runtimes in this process; empty where the system does not tell."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return set()
    files = {Path(line[line.index("/") :]) for line in lines if "/" in line}
    return {file for file in files if file.name.startswith(("libgomp", "libomp", "libiomp"))}


def _torch_openmp() -> str:
    """The runtime that torch uses. Raises OSError when it cannot be told."""
    runtimes = openmp_runtimes()
    folder = Path(torch.__file__).parent
    of_torch = {file for file in runtimes if file.is_relative_to(folder)} or runtimes
    if len(of_torch) != 1:
        raise OSError(f"which of these OpenMP runtimes is torch's? {sorted(of_torch)}")
    return str(of_torch.pop())
