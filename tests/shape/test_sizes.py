"""Tripwires on size: passing one asks for a reason, and for a look at whether a thing is two things."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "tenure"
FILES = sorted(SOURCE.rglob("*.py"))
KERNELS = sorted(path for path in (SOURCE / "kernels").iterdir() if path.suffix in (".c", ".h"))
Function = ast.FunctionDef | ast.AsyncFunctionDef


def core_modules(name: str) -> set[str]:
    """The module of `core` and all those of `core` that it imports, directly or not."""
    found, queue = set(), [name]
    while queue:
        module = queue.pop()
        if module not in found:
            found.add(module)
            tree = ast.parse((SOURCE / "core" / f"{module}.py").read_text())
            names = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
            queue += [name.removeprefix("tenure.core.") for name in names if name.startswith("tenure.core.")]
    return found


READING_ROUTE = (
    "ARCHITECTURE.md",
    *(f"src/tenure/core/{name}.py" for name in sorted(core_modules("scheduler"))),
    "src/tenure/engine/loop.py",
    "src/tenure/http/guard.py",
    "tests/serving/test_cancel.py",
)


def functions() -> Iterator[tuple[Path, Function]]:
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, Function):
                yield path, node


def length(node: Function) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


@pytest.mark.parametrize("path", [*FILES, *KERNELS], ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_are_under_450_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 450


def test_the_reading_route_is_under_2500_lines() -> None:
    lengths = [len((SOURCE.parents[1] / name).read_text().splitlines()) for name in READING_ROUTE]
    assert lengths[0] <= 150
    assert sum(lengths) < 2500


def test_no_function_is_over_80_lines() -> None:
    assert [f"{path.name}:{node.name}" for path, node in functions() if length(node) > 80] == []


def test_nine_in_ten_functions_are_under_30_lines() -> None:
    lengths = sorted(length(node) for _, node in functions())
    assert lengths[len(lengths) * 9 // 10] < 30


def attributes(node: ast.ClassDef) -> set[str]:
    """What is assigned to `self`, and the fields of a dataclass."""
    fields = set()
    if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        declared = [entry.target for entry in node.body if isinstance(entry, ast.AnnAssign)]
        fields = {target.id for target in declared if isinstance(target, ast.Name) and target.id != "_"}
    return fields | {
        target.attr
        for inner in ast.walk(node)
        if isinstance(inner, ast.Assign | ast.AnnAssign)
        for target in (inner.targets if isinstance(inner, ast.Assign) else [inner.target])
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
    }


def test_classes_have_under_15_attributes() -> None:
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found = attributes(node)
                assert len(found) < 15, f"{path.name}:{node.name} has {len(found)}: {sorted(found)}"
