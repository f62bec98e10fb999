"""Builds the native kernels, a plain shared library without Python's headers, where there is a C compiler.

Everything else about the package is in pyproject.toml. Without a compiler, or with one that lacks OpenMP, the
installation succeeds, and Tenure uses torch's own operations.
"""

import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

SOURCES = ("rows", "paged_attention", "product", "after_attention", "texts", "sampling")
HEADERS = ("vectors", "avx512", "product")


class BuildLibrary(build_ext):
    """Builds `_native.so`, under that name for every Python, or says why not."""

    def get_ext_filename(self, fullname):
        return fullname.replace(".", "/") + ".so"

    def build_extension(self, ext):
        try:
            super().build_extension(ext)
        except (CCompilerError, BaseError, OSError) as error:
            print(f"tenure: no native kernels, torch's will do: {error}", file=sys.stderr)


setup(
    cmdclass={"build_ext": BuildLibrary},
    ext_modules=[
        Extension(
            "tenure.kernels._native",
            sources=[f"src/tenure/kernels/{name}.c" for name in SOURCES],
            depends=[f"src/tenure/kernels/{name}.h" for name in HEADERS],
            # -fopenmp is for the compiler alone: linked, it would bring a second OpenMP runtime beside torch's.
            extra_compile_args=["-std=gnu11", "-O3", "-fopenmp", "-ffp-contract=fast", "-fno-math-errno", "-Wno-psabi"],
            libraries=["m"],
            optional=True,
        )
    ],
)
