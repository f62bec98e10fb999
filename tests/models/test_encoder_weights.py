"""Damaged and incomplete encoders end in an error that names the file."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tenure.errors import ResourceError
from tenure.pooling import PoolingParams, PoolingTask
from tenure.source import ResolvedSource, SourceKind
from tests.models.tiny_encoders import edit_json, load_own, run, save_encoder


def without(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        del weights[name]
        save_file(weights, folder / "model.safetensors")

    return damage


def integers(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    name = "bert.embeddings.LayerNorm.bias"
    save_file(weights | {name: weights[name].to(torch.int32)}, folder / "model.safetensors")


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


LAYER = "bert.encoder.layer.1"

DAMAGE: list[tuple[Callable[[Path], object], str]] = [
    (truncate, "not a readable safetensors file"),
    (integers, "LayerNorm.bias holds torch.int32"),
    (lambda folder: (folder / "model.safetensors").unlink(), "no safetensors weights"),
    (without(f"{LAYER}.attention.self.key.bias"), rf"{LAYER}\.attention\.self\.key\.bias is missing"),
    (without("bert.pooler.dense.weight"), r"bert\.pooler\.dense\.weight is missing"),
    (without("classifier.weight"), r"classifier\.weight is missing"),
    (without("bert.embeddings.word_embeddings.weight"), r"embeddings\.word_embeddings\.weight is missing"),
    (lambda folder: edit_json(folder / "config.json", num_hidden_layers=3), "is missing"),
    (lambda folder: edit_json(folder / "config.json", intermediate_size=81), "has shape"),
    (lambda folder: edit_json(folder / "config.json", vocab_size=1 << 24), "has shape"),
    (lambda folder: edit_json(folder / "config.json", max_position_embeddings=1 << 24), "has shape"),
    (lambda folder: edit_json(folder / "config.json", type_vocab_size=3), "has shape"),
    (lambda folder: edit_json(folder / "config.json", id2label={str(n): "x" for n in range(7)}), "has shape"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGE)
def test_damaged_folders(damage: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    source, _ = save_encoder("Bert", tmp_path, "ForSequenceClassification", num_labels=2)
    damage(tmp_path)
    with pytest.raises(ResourceError, match=message) as caught:
        load_own(source)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(("head", "prefix"), [("Model", ""), ("ForSequenceClassification", "bert.")])
def test_the_old_names_of_norms_are_known(head: str, prefix: str, tmp_path: Path) -> None:
    source, _ = save_encoder("Bert", tmp_path, head)
    task = PoolingTask.EMBED if head == "Model" else PoolingTask.CLASSIFY
    texts = [[5, 6, 7]]
    expected = run(load_own(source), texts, PoolingParams(task=task))
    weights = load_file(tmp_path / "model.safetensors")
    for new, old in (("weight", "gamma"), ("bias", "beta")):
        weights = {name.replace(f"LayerNorm.{new}", f"LayerNorm.{old}"): w for name, w in weights.items()}
    assert f"{prefix}embeddings.LayerNorm.gamma" in weights
    save_file(weights, tmp_path / "model.safetensors")
    torch.testing.assert_close(run(load_own(source), texts, PoolingParams(task=task)), expected, rtol=0, atol=0)


@pytest.mark.parametrize("damage", ["no weights", "another shape"])
def test_damaged_linear_layers(damage: str, tmp_path: Path) -> None:
    save_encoder("Bert", tmp_path)
    (tmp_path / "modules.json").write_text(
        '[{"type": "m.Transformer", "path": ""}, {"type": "m.Pooling", "path": "1_Pooling"},'
        ' {"type": "m.Dense", "path": "2_Dense"}]'
    )
    edit_json(tmp_path / "1_Pooling" / "config.json", pooling_mode="mean")
    edit_json(tmp_path / "2_Dense" / "config.json", in_features=48, out_features=16, bias=False)
    if damage == "another shape":
        save_file({"linear.weight": torch.zeros(16, 47)}, tmp_path / "2_Dense" / "model.safetensors")
    with pytest.raises(ResourceError, match="2_Dense"):
        load_own(ResolvedSource(SourceKind.FOLDER, tmp_path, "m"))
