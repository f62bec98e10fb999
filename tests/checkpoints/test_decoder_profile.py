"""What decoders are used for: by their own files, and by the task that an operator names."""

import json
from pathlib import Path
from typing import Any

import pytest

from tenure.checkpoints.profile import Scoring, read_profile
from tenure.checkpoints.sentence_modules import PoolingMode
from tenure.checkpoints.tokens import answer_ids
from tenure.errors import CallerError, ResourceError
from tenure.source import ResolvedSource, SourceKind, resolve_source

QWEN3: dict[str, Any] = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_size": 32,
    "head_dim": 16,
    "intermediate_size": 64,
    "vocab_size": 100,
    "max_position_embeddings": 256,
}
TRANSFORMER = {"type": "sentence_transformers.models.Transformer", "path": ""}
POOLING = {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}
NORMALIZE = {"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"}
LOGIT_SCORE = {"type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore", "path": "1_LogitScore"}
LAST_TOKEN = {"word_embedding_dimension": 32, "pooling_mode_lasttoken": True, "include_prompt": True}
VOCABULARY = {"model": {"type": "BPE", "vocab": {"a": 0, "no": 5, "yes": 9}, "merges": []}, "added_tokens": []}


def folder(path: Path, config: dict[str, Any] = QWEN3, **files: Any) -> ResolvedSource:
    """A model folder; `files` are JSON files by name, with __ for a folder."""
    for name, content in {"config": config, **files}.items():
        file = path / f"{name.replace('__', '/')}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(content))
    return ResolvedSource(SourceKind.FOLDER, path, "m")


def test_a_plain_decoder_generates(tmp_path: Path) -> None:
    profile = read_profile(folder(tmp_path))
    assert (profile.tasks, profile.generates, profile.answer_tokens) == (("generate",), True, None)
    assert read_profile(folder(tmp_path), "generate") == profile


def test_a_folder_with_last_token_pooling_embeds(tmp_path: Path) -> None:
    """Qwen3-Embedding's files."""
    prompts = {"prompts": {"query": "Instruct: find\nQuery:", "document": ""}, "default_prompt_name": None}
    profile = read_profile(
        folder(
            tmp_path,
            modules=[TRANSFORMER, POOLING, NORMALIZE],
            config_sentence_transformers=prompts,
            sentence_bert_config={"max_seq_length": 128},
            **{"1_Pooling__config": LAST_TOKEN},
        )
    )
    assert (profile.tasks, profile.scoring, profile.whole_texts) == (("embed", "score"), Scoring.BI_ENCODER, False)
    assert (profile.pooling, profile.normalize, profile.embedding_size) == (PoolingMode.LAST, True, 32)
    assert (profile.prompts["query"], profile.max_length) == ("Instruct: find\nQuery:", 128)


def test_what_comes_after_the_pooling_is_optional(tmp_path: Path) -> None:
    source = folder(tmp_path, modules=[TRANSFORMER, POOLING], **{"1_Pooling__config": LAST_TOKEN})
    assert not read_profile(source).normalize
    assert read_profile(source, "score").tasks == ("score", "embed")


@pytest.mark.parametrize(
    ("modules", "pooling"),
    [
        ([TRANSFORMER, POOLING], {"pooling_mode_mean_tokens": True}),
        ([TRANSFORMER, POOLING], {"pooling_mode_cls_token": True}),
        ([TRANSFORMER, POOLING, {"type": "models.Dense", "path": "2_Dense"}], LAST_TOKEN),
    ],
)
def test_other_ways_of_pooling_are_refused_with_the_reason(
    modules: list[Any], pooling: dict[str, Any], tmp_path: Path
) -> None:
    dense = {"in_features": 32, "out_features": 8, "bias": True, "activation_function": "torch.nn.Tanh"}
    source = folder(tmp_path, modules=modules, **{"1_Pooling__config": pooling, "2_Dense__config": dense})
    with pytest.raises(CallerError, match="the last token is pooled"):
        read_profile(source)


@pytest.mark.parametrize("task", ["score", "classify"])
def test_any_decoder_can_be_asked_for_yes_or_no(task: str, tmp_path: Path) -> None:
    profile = read_profile(folder(tmp_path), task)
    assert profile.tasks[0] == task
    assert set(profile.tasks) == {"score", "classify"}
    assert (profile.scoring, profile.answer_tokens) == (Scoring.CROSS_ENCODER, ("no", "yes"))
    assert not profile.generates


def test_any_decoder_can_be_read_for_its_last_state(tmp_path: Path) -> None:
    profile = read_profile(folder(tmp_path), "embed")
    assert (profile.tasks, profile.pooling, profile.normalize) == (("embed", "score"), PoolingMode.LAST, True)
    assert profile.embedding_size == 32
    with pytest.raises(CallerError, match="cannot do 'token_embed'"):
        read_profile(folder(tmp_path), "token_embed")


def test_a_gguf_file_can_rerank_and_embed() -> None:
    source = resolve_source("smollm2")
    assert read_profile(source).tasks == ("generate",)
    assert read_profile(source, "score").answer_tokens == ("no", "yes")
    assert read_profile(source, "embed").embedding_size == 576


def test_answer_tokens_in_the_configuration_make_a_reranker(tmp_path: Path) -> None:
    config = {**QWEN3, "architectures": ["Qwen3ForSequenceClassification"], "classifier_from_token": ["nein", "ja"]}
    profile = read_profile(folder(tmp_path, config))
    assert (profile.tasks, profile.answer_tokens) == (("score", "classify"), ("nein", "ja"))


@pytest.mark.parametrize("words", [["yes"], "yes", [1, 2], ["a", "b", "c"]])
def test_answer_tokens_that_make_no_sense(words: object, tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="score from the tokens"):
        read_profile(folder(tmp_path, {**QWEN3, "classifier_from_token": words}))


def test_a_module_that_compares_two_logits_makes_a_reranker(tmp_path: Path) -> None:
    source = folder(
        tmp_path,
        modules=[TRANSFORMER, LOGIT_SCORE],
        tokenizer=VOCABULARY,
        **{"1_LogitScore__config": {"true_token_id": 9, "false_token_id": 5}},
    )
    assert read_profile(source).answer_tokens == ("no", "yes")
    folder(tmp_path, **{"1_LogitScore__config": {"true_token_id": 9, "false_token_id": None}})
    with pytest.raises(CallerError, match="logit of one token"):
        read_profile(source)
    folder(tmp_path, **{"1_LogitScore__config": {"true_token_id": 9, "false_token_id": 6}})
    with pytest.raises(ResourceError, match="no token has the id 6"):
        read_profile(source)


@pytest.mark.parametrize(("labels", "tasks"), [(["relevant"], ("score", "classify")), (["good", "bad"], ("classify",))])
def test_sequence_classifiers(labels: list[str], tasks: tuple[str, ...], tmp_path: Path) -> None:
    named = {"id2label": {str(number): label for number, label in enumerate(labels)}}
    profile = read_profile(folder(tmp_path, {**QWEN3, "architectures": ["Qwen3ForSequenceClassification"], **named}))
    assert (profile.tasks, profile.labels, profile.answer_tokens) == (tasks, tuple(labels), None)


@pytest.mark.parametrize("labels", [{"0": "a", "2": "b"}, {"x": "a"}, ["a"], {}])
def test_classes_that_make_no_sense(labels: object, tmp_path: Path) -> None:
    config = {**QWEN3, "architectures": ["Qwen3ForSequenceClassification"], "id2label": labels}
    with pytest.raises(ResourceError, match=r"config\.json"):
        read_profile(folder(tmp_path, config))


def test_classes_that_do_not_exclude_each_other_are_refused(tmp_path: Path) -> None:
    config = {**QWEN3, "architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "a", "1": "b"}}
    with pytest.raises(CallerError, match="exclude each other"):
        read_profile(folder(tmp_path, config | {"problem_type": "multi_label_classification"}))


def test_the_ids_of_answers(tmp_path: Path) -> None:
    source = folder(tmp_path, tokenizer=VOCABULARY)
    assert answer_ids(source, ("no", "yes")) == [5, 9]
    with pytest.raises(CallerError, match="'perhaps' is no token"):
        answer_ids(source, ("no", "perhaps"))
    unigram = {"model": {"vocab": [["a", -1.5], ["no", -2.0]]}, "added_tokens": [{"id": 7, "content": "yes"}]}
    assert answer_ids(folder(tmp_path, tokenizer=unigram), ("no", "yes")) == [1, 7]
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ResourceError, match=r"tokenizer\.json"):
        answer_ids(source, ("no", "yes"))
