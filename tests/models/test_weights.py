"""Damaged, incomplete and hostile checkpoints end in an error that names the file."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from tenure.errors import ResourceError, TenureError
from tenure.models.loader import load
from tenure.source import ResolvedSource, SourceKind
from tests.models.greedy import greedy, make_batch, make_cache, make_tables, run_step
from tests.models.tiny import save_tiny


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny("llama-sharded", tmp_path_factory.mktemp("saved"))[0].path


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    shutil.copytree(saved, tmp_path / "copy")
    return tmp_path / "copy"


def first_shard(folder: Path) -> Path:
    return sorted(folder.glob("*.safetensors"))[0]


def edit_json(path: Path, edit: Callable[[dict[str, object]], object]) -> None:
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def truncate(folder: Path) -> None:
    shard = first_shard(folder)
    shard.write_bytes(shard.read_bytes()[:-100])


def lie_about_header(folder: Path) -> None:
    shard = first_shard(folder)
    shard.write_bytes((1 << 62).to_bytes(8, "little") + shard.read_bytes()[8:])


def point_outside(folder: Path) -> None:
    def edit(index: dict[str, object]) -> None:
        index["weight_map"] = {"a": "../../etc/passwd"}

    edit_json(folder / "model.safetensors.index.json", edit)


DAMAGE: list[tuple[Callable[[Path], object], str]] = [
    (truncate, "not a readable safetensors file"),
    (lie_about_header, "not a readable safetensors file"),
    (
        lambda folder: first_shard(folder).unlink(),
        r"index\.json: the file model-00001-of-\d+\.safetensors that it names is not there",
    ),
    (lambda folder: (folder / "model.safetensors.index.json").write_text("{"), "not a readable index"),
    (
        lambda folder: (folder / "model.safetensors.index.json").write_text('{"weight_map": [1]}'),
        "not a readable index",
    ),
    (point_outside, "not the name of a file in this folder"),
    (lambda folder: edit_json(folder / "config.json", lambda c: c.update(num_hidden_layers=4)), "is missing"),
    (lambda folder: edit_json(folder / "config.json", lambda c: c.update(intermediate_size=81)), "has shape"),
    (lambda folder: edit_json(folder / "config.json", lambda c: c.update(vocab_size=1 << 24)), "has shape"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGE)
def test_damaged_folders(damage: Callable[[Path], object], message: str, folder: Path) -> None:
    damage(folder)
    with pytest.raises(ResourceError, match=message) as caught:
        load(ResolvedSource(SourceKind.FOLDER, folder, "m"))
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("shards", ["gone", "of another model"])
def test_an_index_beside_the_whole_is_out_of_date(shards: str, folder: Path, tmp_path: Path) -> None:
    source, _ = save_tiny("llama", tmp_path / "whole")
    shutil.copy(folder / "model.safetensors.index.json", source.path)
    if shards != "gone":
        for shard in folder.glob("*.safetensors"):
            shutil.copy(shard, source.path)
    alone, _ = save_tiny("llama", tmp_path / "alone")
    assert greedy(load(source), [[1, 5, 9]], 12) == greedy(load(alone), [[1, 5, 9]], 12)


def write_gguf(path: Path, kind: gguf.GGMLQuantizationType, *, blocks: int = 2, rows: int = 64) -> None:
    """A llama of `blocks` layers in its metadata, one in its weights."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(blocks)
    writer.add_context_length(128)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_eos_token_id(3)
    random = np.random.default_rng(0)
    shapes = {
        "token_embd": (96, 64),
        "output_norm": (64,),
        "blk.0.attn_norm": (64,),
        "blk.0.ffn_norm": (64,),
        "blk.0.attn_q": (64, 64),
        "blk.0.attn_k": (32, 64),
        "blk.0.attn_v": (32, 64),
        "blk.0.attn_output": (64, 64),
        "blk.0.ffn_gate": (rows, 64),
        "blk.0.ffn_up": (rows, 64),
        "blk.0.ffn_down": (64, rows),
    }
    for name, shape in shapes.items():
        values = random.standard_normal(shape).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(f"{name}.weight", values)
        else:
            writer.add_tensor(f"{name}.weight", gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_logits(path: Path) -> torch.Tensor:
    model = load(ResolvedSource(SourceKind.GGUF, path, "m"))
    return run_step(model, make_cache(model, 1), make_batch([[5, 6, 7]], [0], make_tables([3], 1)))


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_element_types_of_gguf(kind: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "exact.gguf", gguf.GGMLQuantizationType.F32, blocks=1)
    write_gguf(tmp_path / "coded.gguf", gguf.GGMLQuantizationType[kind], blocks=1)
    exact, coded = gguf_logits(tmp_path / "exact.gguf"), gguf_logits(tmp_path / "coded.gguf")
    assert torch.corrcoef(torch.stack([exact.flatten(), coded.flatten()]))[0, 1] > 0.9


def test_gguf_that_contradicts_itself(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, gguf.GGMLQuantizationType.F32, blocks=2)
    with pytest.raises(ResourceError, match=r"blk\.1\..*is missing"):
        load(ResolvedSource(SourceKind.GGUF, path, "m"))
    write_gguf(path, gguf.GGMLQuantizationType.F32, blocks=1, rows=96)
    with pytest.raises(ResourceError, match="has shape"):
        load(ResolvedSource(SourceKind.GGUF, path, "m"))


def test_gguf_cut_short_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, gguf.GGMLQuantizationType.Q8_0, blocks=1)
    content = path.read_bytes()
    for length in [*range(0, 600, 7), *range(600, len(content) - 40, 997)]:
        path.write_bytes(content[:length])
        with pytest.raises(TenureError, match=r"m\.gguf"):
            load(ResolvedSource(SourceKind.GGUF, path, "m"))
