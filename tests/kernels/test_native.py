"""The native library: built or not, loaded beside torch, on torch's threads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tenure.kernels import native

ROOT = Path(__file__).parents[2]
needs_native = pytest.mark.skipif(not native.available(), reason="the native kernels were not built")

THREADS = """
import ctypes, torch
from tenure.kernels import native
native.NativeKernels.load()
(runtime,) = native.openmp_runtimes()
threads = ctypes.CDLL(str(runtime)).omp_get_max_threads
for count in (1, 2, 3):
    torch.set_num_threads(count)
    torch.randn(300, 300) @ torch.randn(300, 300)
    print(threads())
"""


@needs_native
def test_torch_and_the_library_share_one_openmp_runtime_and_its_number_of_threads() -> None:
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "2", "3"]


def test_a_library_that_is_missing_or_broken_is_not_available(tmp_path: Path) -> None:
    broken = tmp_path / "broken.so"
    broken.write_text("no library")
    assert not native.available(tmp_path / "missing.so")
    assert not native.available(broken)


@needs_native
@pytest.mark.parametrize(
    ("function", "place"),
    [
        (function, place)
        for function, numbers in (native.LAYOUTS | native.AVX512_LAYOUTS).items()
        for place in range(len(numbers))
    ],
)
def test_a_library_with_another_limit_or_structure_is_not_available(
    function: str, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if function in native.AVX512_LAYOUTS and not native.NativeKernels.load().has_avx512:
        pytest.skip("these structures are not used with this processor")
    table = "LAYOUTS" if function in native.LAYOUTS else "AVX512_LAYOUTS"
    numbers = list(getattr(native, table)[function])
    numbers[place] += 1
    monkeypatch.setattr(native, table, getattr(native, table) | {function: tuple(numbers)})
    assert not native.available()


def test_without_a_compiler_the_build_succeeds_and_says_so(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", f"--build-lib={tmp_path}", f"--build-temp={tmp_path}"],
        cwd=ROOT,
        env={**os.environ, "CC": "/nonexistent"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "tenure: no native kernels, torch's will do" in done.stderr
    assert list(tmp_path.rglob("*.so")) == []
