"""Imports go one way, and the start-up path stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "tenure"

VOCABULARY = {
    "errors",
    "outcomes",
    "sampling",
    "pooling",
    "source",
    "config",
    "cores",
    "request_id",
    "token_lists",
    "__init__",
}
ALLOWED = {
    "core": {"core", "errors", "outcomes", "sampling", "pooling", "token_lists"},
    "wire": {"wire", "errors", "outcomes", "sampling", "pooling", "token_lists"},
    "http": {"http", "errors", "outcomes", "config", "request_id"},
    "observe": {"observe", "http.exchange", "http.request_head", "process", "wire", *VOCABULARY},
    "checkpoints": {"checkpoints", *VOCABULARY},
    "text": {"text", "checkpoints", *VOCABULARY},
    "prompts": {"prompts", "text", "checkpoints", "http.errors", "process", "wire", *VOCABULARY},
    "client": {"client", "wire", "errors", "outcomes", "sampling"},
    "api": {
        *("api", "http", "observe", "prompts", "client", "text", "wire", "process", "checkpoints"),
        "peers.ticket_text",
        *VOCABULARY,
    },
    "kernels": {"kernels", *VOCABULARY},
    "layers": {"layers", "kernels", *VOCABULARY},
    "kv": {"kv", "kernels", *VOCABULARY},
    "models": {"models", "layers", "kv", "checkpoints", *VOCABULARY},
    "model_runner": {"model_runner", "core", "kv", "models", "layers", "kernels", *VOCABULARY},
    "engine": {
        "engine",
        "core",
        "model_runner",
        "kv",
        "models",
        "wire",
        "process",
        "observe",
        "checkpoints",
        "peers",
        *VOCABULARY,
    },
    "process": {"process", "wire", *VOCABULARY},
    "peers": {"peers", "wire", "core.claim_messages", *VOCABULARY},
    "server": {"server", "process", "observe", "wire", *VOCABULARY},
    "cli": {"cli", "server", "process", "observe", "wire", *VOCABULARY},
}
"""Package -> the packages, or single modules, that it may import."""

NEVER_IN_CORE = {"torch", "numpy", "anyio", "asyncio", "socket", "threading", "time", "queue", "os"}


def modules(package: str) -> list[Path]:
    return sorted((SOURCE / package).rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Full names of the modules that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_every_package_has_a_rule() -> None:
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert packages == set(ALLOWED)


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_go_one_way(package: str) -> None:
    for path in modules(package):
        for name in imports(path):
            if not name.startswith("tenure."):
                continue
            inner = name.removeprefix("tenure.")
            allowed = any(inner == rule or inner.startswith(rule + ".") for rule in ALLOWED[package])
            assert allowed or inner.startswith("__version__"), f"{path.relative_to(SOURCE)} imports {name}"


def test_api_families_do_not_import_each_other() -> None:
    """A family imports what all share, and no other family; what is shared imports none."""
    families = {path.name for path in (SOURCE / "api").iterdir() if path.is_dir()} - {"__pycache__"}
    assert {"openai", "cohere", "rerank", "operations", "common"} <= families
    for family in families:
        for path in modules(f"api/{family}"):
            used = {name.split(".")[2] for name in imports(path) if name.startswith("tenure.api.")}
            assert used <= {family, "common"}, f"{path.relative_to(SOURCE)} imports {used}"


def test_the_core_is_pure() -> None:
    for path in modules("core"):
        used = {name.partition(".")[0] for name in imports(path)}
        assert not used & NEVER_IN_CORE, f"{path.name} imports {used & NEVER_IN_CORE}"


def test_one_module_reads_the_environment() -> None:
    for path in SOURCE.rglob("*.py"):
        if path.name != "config.py" or path.parent != SOURCE:
            text = path.read_text()
            reads = [name for name in ("os.environ", "getenv", "env_var") if name in text]
            assert not reads, f"{path.relative_to(SOURCE)} reads the environment"


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("tenure.api.main", ("torch", "transformers", "gguf", "huggingface_hub", "opentelemetry")),
        ("tenure.cli.main", ("torch", "transformers", "gguf", "huggingface_hub", "starlette", "anyio", "httpx")),
        ("tenure.server.supervisor", ("torch", "numpy", "starlette", "uvicorn", "httpx")),
        ("tenure.engine.main", ("transformers", "huggingface_hub", "starlette", "uvicorn")),
    ],
)
def test_start_up_stays_light(module: str, forbidden: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print(*[name for name in {forbidden!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
