"""The files of sentence-transformers: the modules after a model, and its recommended settings.

`modules.json` lists the modules of a model, each with a folder for its settings. Read without torch; the weights of a
Dense module are read by the model's loader.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

from tenure.checkpoints.json_files import Raw, read_json, read_length, read_object, sensible, shortest
from tenure.errors import CallerError, ResourceError


class PoolingMode(StrEnum):
    """How the hidden states of a text become one vector."""

    CLS = "cls"
    MEAN = "mean"
    MAX = "max"
    LAST = "lasttoken"


@dataclass(frozen=True, slots=True)
class DenseModule:
    """A linear layer with an activation; its weights are in `folder`."""

    folder: Path
    inputs: int
    outputs: int
    bias: bool
    activation: str
    """`none`, or one of `layers.linear.Activation`."""
    every_token: bool
    """It applies to each token's embedding, not to the pooled one."""


@dataclass(frozen=True, slots=True)
class SentenceModules:
    """The modules of a model, in their order: pooling, if any, then linear layers, then normalisation, if any."""

    pooling: PoolingMode | None = None
    """None: it embeds tokens, not texts."""
    dense: tuple[DenseModule, ...] = ()
    normalize: bool = False


@dataclass(frozen=True, slots=True)
class UsageAdvice:
    """The recommended settings of a model."""

    max_length: int | None = None
    """Tokens of a text, special ones included."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None


def read_modules(folder: Path) -> SentenceModules | None:
    """The modules that `modules.json` lists; None when there is no such file.

    Raises CallerError for modules, or an order of them, that are not served, ResourceError for files that cannot be
    read or make no sense.
    """
    with sensible(folder / "modules.json", "modules"):
        modules = _listed(folder)
        return _assemble(folder, modules) if modules else None


def read_answers(folder: Path) -> tuple[int, int] | None:
    """The tokens for no and yes whose logits a reranker's LogitScore module compares; None when it has none.

    Raises as `read_modules`.
    """
    with sensible(folder / "modules.json", "modules"):
        modules = _listed(folder)
        scores = [folder / name for kind, name in modules if kind == "LogitScore"]
        if not scores:
            return None
        if [kind for kind, _ in modules] != ["Transformer", "LogitScore"]:
            kinds = ", ".join(kind for kind, _ in modules)
            raise CallerError(
                f"{folder}/modules.json: the modules {kinds} are not served (Transformer, LogitScore are)"
            )
        raw = read_object(scores[0] / "config.json")
        if raw.get("false_token_id") is None:
            raise CallerError(
                f"{scores[0]}: a score from the logit of one token is not served (of two, yes and no, is)"
            )
        return int(raw["false_token_id"]), int(raw["true_token_id"])


def read_token_masks(folder: Path) -> list[Path] | None:
    """The folders of the token-mask modules; None when there is no `modules.json`.

    Raises as `read_modules`.
    """
    with sensible(folder / "modules.json", "modules"):
        modules = _listed(folder)
        return [folder / name for kind, name in modules if kind == _TOKEN_MASK] if modules else None


def _listed(folder: Path) -> list[tuple[str, str]]:
    """Kind and folder of each module; empty when there is no `modules.json`."""
    path = folder / "modules.json"
    if not path.is_file():
        return []
    modules = [(str(entry["type"]).rpartition(".")[2], str(entry["path"])) for entry in read_json(path)]
    if not modules:
        raise ValueError("there are none")
    for _, name in modules:
        # A name with `..` in it could point anywhere on this machine.
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ResourceError(f"{path}: {name!r} is not the name of a folder in this folder")
    return modules


_PLACES: Mapping[str, int] = MappingProxyType({"Transformer": 0, "Pooling": 1, "Dense": 2, "Normalize": 3})
"""Where a module may stand. Only Dense may come more than once."""
_TOKEN_MASK = "MultiVectorMask"
"""It picks the tokens that count, and stands anywhere."""


def _assemble(folder: Path, modules: list[tuple[str, str]]) -> SentenceModules:
    kinds = [kind for kind, _ in modules]
    places = [_PLACES.get(kind, -1) for kind in kinds if kind != _TOKEN_MASK]
    single = [kind for kind in kinds if kind != "Dense"]
    if not places or -1 in places or places[0] != 0 or sorted(places) != places or len(set(single)) < len(single):
        raise CallerError(
            f"{folder}/modules.json: the modules {', '.join(kinds)} are not served "
            "(Transformer, Pooling, Dense, Normalize are, in this order)"
        )
    if modules[0][1] not in ("", "."):
        raise CallerError(f"{folder}/modules.json: a Transformer in a folder of its own is not served")
    found = {kind: folder / name for kind, name in modules}
    pooling = _pooling(found["Pooling"]) if "Pooling" in found else None
    dense = tuple(_dense(folder / name, pooling is not None) for kind, name in modules if kind == "Dense")
    if pooling is None and not dense and _TOKEN_MASK not in found:
        raise CallerError(f"{folder}/modules.json: no Pooling module, and nothing that makes embeddings of tokens")
    return SentenceModules(pooling, dense, "Normalize" in found)


def _pooling(folder: Path) -> PoolingMode:
    raw = read_object(folder / "config.json")
    if "pooling_mode" in raw:
        stated = raw["pooling_mode"]
        modes = [str(mode) for mode in stated] if isinstance(stated, list) else [str(stated)]
    else:
        flags = [key for key in raw if key.startswith("pooling_mode_") and raw[key]]
        modes = [key.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token") for key in flags]
        modes = modes or ["mean"]
    if len(modes) != 1 or modes[0] not in list(PoolingMode):
        served = ", ".join(sorted(PoolingMode))
        raise CallerError(f"{folder}: pooling by {', '.join(modes)} is not served (one of {served} is)")
    if raw.get("include_prompt") is False:
        raise CallerError(f"{folder}: pooling that leaves out the prompt is not served")
    return PoolingMode(modes[0])


_DENSE_ACTIVATIONS: Mapping[str, str] = MappingProxyType(
    {"Identity": "none", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu"}
)
"""Torch's modules; GELU's default is the exact one."""


def _dense(folder: Path, pooled: bool) -> DenseModule:
    raw = read_object(folder / "config.json")
    name = str(raw.get("activation_function") or "torch.nn.Tanh").rpartition(".")[2]
    if name not in _DENSE_ACTIVATIONS:
        raise CallerError(f"{folder}: the activation {name} is not served ({', '.join(_DENSE_ACTIVATIONS)} are)")
    if raw.get("use_residual"):
        raise CallerError(f"{folder}: a Dense module with a residual connection is not served")
    every_token = not pooled
    if pooled and raw.get("module_input_name", "sentence_embedding") != "sentence_embedding":
        raise CallerError(f"{folder}: a Dense module that reads {raw['module_input_name']!r} is not served")
    inputs, outputs = int(raw["in_features"]), int(raw["out_features"])
    if not (1 <= inputs <= 1 << 20 and 1 <= outputs <= 1 << 20):
        raise ResourceError(f"{folder}/config.json: a linear layer of {inputs} by {outputs} makes no sense")
    return DenseModule(folder, inputs, outputs, bool(raw.get("bias", True)), _DENSE_ACTIVATIONS[name], every_token)


def read_advice(folder: Path, *, sides: bool = False) -> UsageAdvice:
    """The recommended settings, from those of the files that exist. Raises as `read_modules`.

    `sides`: accept separate settings for queries and documents (`read_late_interaction` reads them), else refuse them.
    """
    path = folder / "config_sentence_transformers.json"
    raw = read_object(path, required=False)
    with sensible(path, "how to use the model"):
        prompts = {str(name): str(prompt or "") for name, prompt in (raw.get("prompts") or {}).items()}
        # PyLate stores the prefixes of queries and documents apart; they come before any prompt.
        for key, name in (("query_prefix", "query"), ("document_prefix", "document")):
            if prefix := raw.get(key):
                prompts[name] = str(prefix) + prompts.get(name, "").removeprefix(str(prefix))
        default = raw.get("default_prompt_name")
        if default is not None and default not in prompts:
            raise ResourceError(f"{path}: the default prompt {default!r} is not among its prompts {sorted(prompts)}")
        length = _max_length(folder, alike=not sides)
        return UsageAdvice(length, MappingProxyType(prompts), default)


def _max_length(folder: Path, *, alike: bool) -> int | None:
    """Most tokens of a text; None without a limit. `alike`: raise when queries and documents have different ones."""
    path = folder / "sentence_bert_config.json"
    own = read_object(path, required=False)
    longest = read_length(path, own, "max_seq_length") or _length_of_tokenizer(folder)
    if not alike:
        return longest
    if own.get("query_expansion") is not None:
        raise CallerError(f"{folder}: query_expansion is served for late interaction alone (null is for others)")
    query, document = (shortest(read_length(path, own, key), longest) for key in ("query_length", "document_length"))
    if query != document:
        raise CallerError(
            f"{folder}: a query_length of {query} beside a document_length of {document} is served for late "
            "interaction alone (two alike are for others)"
        )
    return query


def _length_of_tokenizer(folder: Path) -> int | None:
    """The `model_max_length` of the tokenizer; None when it has no limit."""
    saved = read_object(folder / "tokenizer_config.json", required=False).get("model_max_length")
    # Transformers writes 10^30 where it knows of no limit.
    return saved if isinstance(saved, int) and 1 <= saved < 1 << 30 else None


def matryoshka_sizes(raw: Raw, size: int) -> tuple[int, ...]:
    """The Matryoshka sizes below `size` that a `config.json` lists."""
    stated = raw.get("matryoshka_dimensions")
    if isinstance(stated, list):
        return tuple(sorted({int(entry) for entry in stated if isinstance(entry, int) and 1 <= entry < size}))
    return tuple(range(1, size)) if raw.get("is_matryoshka") else ()
