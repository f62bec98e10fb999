"""Small random encoders, made and saved by Transformers, and how to run one by hand."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tenure.checkpoints.profile import read_profile
from tenure.layers.text_batch import pack_texts
from tenure.models.encoder import Encoder
from tenure.models.encoder_loader import load_encoder
from tenure.pooling import PoolingParams
from tenure.source import ResolvedSource, SourceKind

FAMILIES = ("Bert", "Roberta", "XLMRoberta")
COMMON = {
    "vocab_size": 199,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 100,
    "initializer_range": 0.2,
}


def save_encoder(family: str, folder: Path, head: str = "Model", **changes: Any) -> tuple[ResolvedSource, Any]:
    """Save `family` + `head`, such as BertForSequenceClassification; returns where, and Transformers' own model."""
    import transformers as hf  # noqa: PLC0415 - seconds to import; only these tests need it

    torch.manual_seed(len(family) + len(head))
    types = {"type_vocab_size": 2 if family == "Bert" else 1}
    config = getattr(hf, f"{family}Config")(**(COMMON | types | changes))
    model = getattr(hf, f"{family}{head}")(config).eval()
    randomise(model)
    model.save_pretrained(folder)
    return ResolvedSource(SourceKind.FOLDER, folder, family), model


def randomise(model: torch.nn.Module) -> None:
    """Fresh biases and norms are all zeros or ones, and would hide mistakes."""
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.2)
        elif "LayerNorm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)


def edit_json(path: Path, **changes: Any) -> None:
    content = json.loads(path.read_text()) if path.is_file() else {}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content | changes))


def load_own(source: ResolvedSource, task: str | None = None, **options: Any) -> Encoder:
    return load_encoder(source, read_profile(source, task), **options)


def save_own(folder: Path, minilm: ResolvedSource, modules: Sequence[Any] = ()) -> tuple[ResolvedSource, Any]:
    """A small random model with MiniLM's tokenizer, in `plain`; in `saved` the same with `modules` behind it."""
    import transformers as hf  # noqa: PLC0415 - see above
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer  # noqa: PLC0415

    save_encoder("Bert", folder / "plain", vocab_size=30522, max_position_embeddings=512)
    hf.AutoTokenizer.from_pretrained(minilm.path).save_pretrained(folder / "plain")
    transformer = Transformer(str(folder / "plain"), max_seq_length=64)
    theirs = SentenceTransformer(modules=[transformer, *(modules or [Pooling(48)])], device="cpu")
    theirs.save(str(folder / "saved"))
    return ResolvedSource(SourceKind.FOLDER, folder / "saved", "own"), theirs


def random_texts(lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    """Token ids from 3 upwards: RoBERTa leaves out padding tokens (1) when it counts positions."""
    random = np.random.default_rng(seed)
    return [random.integers(3, 199, length).tolist() for length in lengths]


def run(
    model: Encoder,
    texts: Sequence[Sequence[int]],
    params: PoolingParams | Sequence[PoolingParams],
    segments: Sequence[int] | None = None,
    unattended: Sequence[int] | None = None,
) -> list[torch.Tensor]:
    each = [params] * len(texts) if isinstance(params, PoolingParams) else params
    with torch.inference_mode():
        return model.pool(pack_texts(texts, segments, model.device, unattended), each)


def hidden_states(reference: Any, text: Sequence[int]) -> torch.Tensor:
    """Transformers' last hidden states of one text alone, (L, D)."""
    with torch.inference_mode():
        states: torch.Tensor = reference(torch.tensor([text])).last_hidden_state[0]
    return states
