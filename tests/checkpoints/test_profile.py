"""What files say that an encoder can do, how it is meant to be used, and what is refused by name."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tenure.checkpoints.encoder_config import read_encoder_config
from tenure.checkpoints.late_interaction import CountedTokens, Expansion, LateInteraction
from tenure.checkpoints.profile import ModelProfile, Scoring, read_profile
from tenure.checkpoints.sentence_modules import PoolingMode
from tenure.errors import CallerError, ResourceError
from tenure.source import ResolvedSource, SourceKind, resolve_source

BERT: dict[str, Any] = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_size": 32,
    "intermediate_size": 64,
    "vocab_size": 100,
    "max_position_embeddings": 512,
}
CLASSIFIER = BERT | {"architectures": ["BertForSequenceClassification"]}
POOLING = {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}
DENSE = {"type": "sentence_transformers.models.Dense", "path": "2_Dense"}
NORMALIZE = {"type": "sentence_transformers.models.Normalize", "path": "3_Normalize"}
TRANSFORMER = {"type": "sentence_transformers.models.Transformer", "path": ""}


def write(folder: Path, files: dict[str, Any]) -> ResolvedSource:
    """A model folder; what is no text is written as JSON."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return ResolvedSource(SourceKind.FOLDER, folder, "m")


def profile_of(
    folder: Path, config: dict[str, Any] = BERT, files: dict[str, Any] | None = None, task: str | None = None
) -> ModelProfile:
    return read_profile(write(folder, {"config.json": config} | (files or {})), task)


def with_modules(folder: Path, modules: Any, pooling: Any = None, dense: Any = None) -> ModelProfile:
    """A BERT with these modules, and the settings of two of them."""
    settings = {"1_Pooling/config.json": pooling or {}, "2_Dense/config.json": dense or {}}
    return profile_of(folder, BERT, {"modules.json": modules} | settings)


@pytest.mark.parametrize(
    ("pooling", "mode"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, PoolingMode.CLS),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, PoolingMode.MEAN),
        ({"pooling_mode_max_tokens": True}, PoolingMode.MAX),
        ({"pooling_mode_lasttoken": True}, PoolingMode.LAST),
        ({"pooling_mode": "lasttoken", "pooling_mode_mean_tokens": True}, PoolingMode.LAST),
        ({"pooling_mode": ["cls"]}, PoolingMode.CLS),
        ({}, PoolingMode.MEAN),
    ],
)
def test_pooling_modes_old_and_new(pooling: dict[str, Any], mode: PoolingMode, tmp_path: Path) -> None:
    profile = with_modules(tmp_path, [TRANSFORMER, POOLING], pooling)
    assert (profile.pooling, profile.normalize, profile.scoring) == (mode, False, Scoring.BI_ENCODER)
    assert profile.tasks == ("embed", "token_embed", "score")
    assert profile.whole_texts


@pytest.mark.parametrize(
    ("pooling", "message"),
    [
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt_len is not served"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "cls, mean is not served"),
        ({"pooling_mode": "weightedmean"}, "weightedmean is not served"),
        ({"pooling_mode": "mean", "include_prompt": False}, "leaves out the prompt"),
    ],
)
def test_pooling_that_is_not_served(pooling: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CallerError, match=message) as caught:
        with_modules(tmp_path, [TRANSFORMER, POOLING], pooling)
    assert str(tmp_path) in str(caught.value)


def test_linear_layers_set_the_size(tmp_path: Path) -> None:
    dense = {"in_features": 32, "out_features": 12, "activation_function": "torch.nn.modules.activation.Tanh"}
    profile = with_modules(tmp_path, [TRANSFORMER, POOLING, DENSE, NORMALIZE], dense=dense)
    assert (profile.embedding_size, profile.normalize) == (12, True)


@pytest.mark.parametrize(
    ("dense", "message"),
    [
        ({"in_features": 31, "out_features": 12}, "31 inputs, but what comes in has 32"),
        ({"in_features": 32, "out_features": 0}, "makes no sense"),
        ({"in_features": 32}, "'out_features' is missing"),
    ],
)
def test_linear_layers_that_make_no_sense(dense: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=message) as caught:
        with_modules(tmp_path, [TRANSFORMER, POOLING, DENSE], dense=dense)
    assert str(tmp_path) in str(caught.value)


def test_no_modules_means_the_mean_at_its_own_length(tmp_path: Path) -> None:
    profile = profile_of(tmp_path)
    assert (profile.pooling, profile.normalize, profile.max_length) == (PoolingMode.MEAN, False, 512)


@pytest.mark.parametrize(
    "modules",
    [
        [POOLING, TRANSFORMER],
        [TRANSFORMER, {"type": "sentence_transformers.models.WordWeights", "path": ""}],
        [TRANSFORMER, POOLING, POOLING],
        [TRANSFORMER, POOLING, NORMALIZE, DENSE],
        [{"type": "sentence_transformers.models.Transformer", "path": "0_Transformer"}, POOLING],
        [TRANSFORMER],
    ],
)
def test_modules_that_are_not_served(modules: list[Any], tmp_path: Path) -> None:
    with pytest.raises(CallerError, match=r"modules\.json"):
        with_modules(tmp_path, modules)


@pytest.mark.parametrize(
    "modules", ["{", "[]", "7", [1], [{"type": "Transformer"}], [TRANSFORMER, POOLING | {"path": "../../etc"}]]
)
def test_broken_lists_of_modules(modules: Any, tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"modules\.json"):
        with_modules(tmp_path, modules)


@pytest.mark.parametrize(
    ("files", "length"),
    [
        ({"sentence_bert_config.json": {"max_seq_length": 128}}, 128),
        ({"sentence_bert_config.json": {"max_seq_length": 4096}}, 512),
        (
            {"sentence_bert_config.json": {"max_seq_length": 128}, "tokenizer_config.json": {"model_max_length": 64}},
            128,
        ),
        ({"tokenizer_config.json": {"model_max_length": 64}}, 64),
        ({"tokenizer_config.json": {"model_max_length": 10**30}}, 512),
        ({}, 512),
    ],
)
def test_the_longest_text(files: dict[str, Any], length: int, tmp_path: Path) -> None:
    assert profile_of(tmp_path, BERT, files).max_length == length


def test_roberta_counts_positions_from_behind_its_padding_token(tmp_path: Path) -> None:
    roberta = BERT | {"model_type": "xlm-roberta", "architectures": ["XLMRobertaModel"], "pad_token_id": 1}
    profile = profile_of(tmp_path, roberta | {"max_position_embeddings": 514})
    assert profile.max_length == 512
    assert read_encoder_config(tmp_path).first_position == 2


def test_prompts(tmp_path: Path) -> None:
    own = {"prompts": {"query": "q: ", "document": None}, "default_prompt_name": "query"}
    profile = profile_of(tmp_path, BERT, {"config_sentence_transformers.json": own})
    assert (profile.prompts, profile.default_prompt) == ({"query": "q: ", "document": ""}, "query")


def test_a_default_prompt_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="'passage' is not among its prompts"):
        profile_of(tmp_path, BERT, {"config_sentence_transformers.json": {"default_prompt_name": "passage"}})


@pytest.mark.parametrize(
    ("config", "dimensions"),
    [
        ({"matryoshka_dimensions": [32, 16, 8]}, (8, 16)),
        ({"is_matryoshka": True}, tuple(range(1, 32))),
        ({"is_matryoshka": False}, ()),
    ],
)
def test_shorter_embeddings(config: dict[str, Any], dimensions: tuple[int, ...], tmp_path: Path) -> None:
    assert profile_of(tmp_path, BERT | config).dimensions == dimensions


def test_one_class_is_a_score(tmp_path: Path) -> None:
    profile = profile_of(tmp_path, CLASSIFIER | {"id2label": {"0": "relevant"}})
    assert (profile.tasks, profile.scoring) == (("score", "classify"), Scoring.CROSS_ENCODER)
    assert (profile.labels, profile.embedding_size) == (("relevant",), 0)


def test_several_classes_are_not(tmp_path: Path) -> None:
    profile = profile_of(tmp_path, CLASSIFIER | {"id2label": {"1": "bad", "0": "good", "2": "ugly"}})
    assert (profile.tasks, profile.scoring) == (("classify",), None)
    assert profile.labels == ("good", "bad", "ugly")
    assert profile_of(tmp_path, CLASSIFIER).labels == ("LABEL_0", "LABEL_1")


def test_classes_of_tokens(tmp_path: Path) -> None:
    profile = profile_of(tmp_path, BERT | {"architectures": ["BertForTokenClassification"]})
    assert profile.tasks == ("token_classify",)


@pytest.mark.parametrize("architecture", ["HF_ColBERT", "ColBERT"])
def test_late_interaction_by_architecture(architecture: str, tmp_path: Path) -> None:
    profile = profile_of(tmp_path, BERT | {"architectures": [architecture], "dim": 16})
    assert (profile.tasks, profile.scoring) == (("token_embed", "score"), Scoring.LATE_INTERACTION)
    assert (profile.embedding_size, profile.normalize) == (16, True)


PYLATE: dict[str, Any] = {
    "model_type": "ColBERT",
    "query_prefix": "[Q] ",
    "document_prefix": "[D] ",
    "do_query_expansion": False,
    "skiplist_words": [],
    "prompts": {},
}


def test_late_interaction_as_pylate_writes_it(tmp_path: Path) -> None:
    straight = "torch.nn.modules.linear.Identity"
    files = {
        "modules.json": [TRANSFORMER, {"type": "pylate.models.Dense.Dense", "path": "1_Dense"}],
        "1_Dense/config.json": {"in_features": 32, "out_features": 24, "bias": False, "activation_function": straight},
        "config_sentence_transformers.json": PYLATE,
    }
    profile = profile_of(tmp_path, BERT, files)
    assert (profile.tasks, profile.scoring) == (("token_embed", "score"), Scoring.LATE_INTERACTION)
    assert (profile.embedding_size, profile.normalize) == (24, True)
    assert profile.prompts == {"query": "[Q] ", "document": "[D] "}


MASK = {"type": "sentence_transformers.multi_vector_encoder.modules.MultiVectorMask", "path": "1_Mask"}
TOKENS = ["[PAD]", "[UNK]", "[MASK]", "a", "!", "?", "</s>"]
TOKENIZER = {"model": {"vocab": {token: index for index, token in enumerate(TOKENS)}}}


def late_of(folder: Path, files: dict[str, Any], config: dict[str, Any] = BERT) -> LateInteraction:
    """Of a folder that lists a module that picks tokens."""
    late = {"modules.json": [TRANSFORMER, MASK], "tokenizer.json": TOKENIZER}
    return profile_of(folder, config, late | files).late_interaction


def test_what_pylate_leaves_out_means_what_it_means_there(tmp_path: Path) -> None:
    """Queries are lengthened to 32 tokens, and punctuation in documents is skipped."""
    marks = {"model_type": "ColBERT", "document_length": 180}
    assert late_of(tmp_path, {"config_sentence_transformers.json": marks}) == LateInteraction(
        query_length=32,
        document_length=180,
        expansion=Expansion(32, 2, attend=False),
        counted_in_document=CountedTokens(frozenset({4, 5})),
    )


def test_a_file_without_a_mark_of_pylate_asks_for_nothing(tmp_path: Path) -> None:
    assert late_of(tmp_path, {"config_sentence_transformers.json": {"prompts": {}}}) == LateInteraction()


def test_settings_of_sentence_transformers_win_over_those_of_pylate(tmp_path: Path) -> None:
    own = {"query_expansion": None, "query_length": 64, "document_length": None}
    theirs = PYLATE | {"do_query_expansion": True, "query_length": 32, "document_length": 180}
    files = {"sentence_bert_config.json": own, "config_sentence_transformers.json": theirs}
    assert late_of(tmp_path, files) == LateInteraction(query_length=64)


@pytest.mark.parametrize(
    ("files", "model_type", "token"),
    [
        ({}, "bert", 2),
        ({"tokenizer_config.json": {"mask_token": "a"}}, "bert", 3),
        ({"tokenizer_config.json": {"mask_token": {"content": "?"}}}, "bert", 5),
        ({"special_tokens_map.json": {"mask_token": "!"}}, "bert", 4),
        ({"tokenizer_config.json": {"mask_token": None, "eos_token": "</s>"}}, "bert", 6),
        ({"tokenizer_config.json": {"eos_token": "</s>"}}, "roberta", 6),
    ],
)
def test_the_token_that_lengthens_queries(files: dict[str, Any], model_type: str, token: int, tmp_path: Path) -> None:
    expansion = {"sentence_bert_config.json": {"query_expansion": {"strategy": "fixed", "length": 8}}}
    late = late_of(tmp_path, expansion | files, BERT | {"model_type": model_type, "architectures": None})
    assert late.expansion == Expansion(8, token, attend=False)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"query_expansion": {"strategy": "some", "length": 8}}, CallerError, "query_expansion .*some.* is not served"),
        ({"query_expansion": {"strategy": "fixed", "length": 8, "much": 1}}, CallerError, "much.* is not served"),
        ({"query_expansion": {"strategy": "fixed"}}, ResourceError, "query_expansion has no length"),
        ({"query_expansion": {"strategy": "fixed", "length": 0}}, ResourceError, "a length of 0 makes no sense"),
        ({"query_expansion": {"strategy": "fixed", "length": 513}}, CallerError, "to 513 tokens.*reads 512"),
        ({"query_expansion": {"strategy": "min", "length": 8}, "query_length": 7}, ResourceError, "of 7 is less than"),
        ({"query_expansion": {"strategy": "min", "length": 8, "token": "b"}}, ResourceError, "'b', which is no token"),
        ({"query_expansion": 7}, ResourceError, "late interaction makes no sense"),
    ],
)
def test_late_interaction_that_makes_no_sense(
    change: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message) as caught:
        late_of(tmp_path, {"sentence_bert_config.json": change})
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": 2}, "token 2, but the model has 2"),
        ({"model_type": "roberta", "pad_token_id": 2}, "padding lengthens"),
        ({"tokenizer": {"model": {"vocab": {}}}}, "names no mask token"),
    ],
)
def test_tokens_that_cannot_lengthen_queries(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    files = {
        "sentence_bert_config.json": {"query_expansion": {"strategy": "fixed", "length": 8}},
        "tokenizer_config.json": {"mask_token": "[MASK]"} if "tokenizer" not in change else {},
        "tokenizer.json": change.get("tokenizer", TOKENIZER),
    }
    with pytest.raises((CallerError, ResourceError), match=message):
        late_of(tmp_path, files, BERT | {"architectures": None} | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"query_expansion": {"strategy": "fixed", "length": 32}}, "query_expansion is served for late interaction"),
        ({"query_length": 32, "document_length": 180}, "query_length of 32 beside a document_length of 180"),
    ],
)
def test_queries_that_one_vector_is_made_of_are_read_like_documents(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CallerError, match=message) as caught:
        profile_of(tmp_path, BERT, {"sentence_bert_config.json": change})
    assert str(tmp_path) in str(caught.value)


def test_an_operator_may_say_what_a_model_is_for(tmp_path: Path) -> None:
    assert profile_of(tmp_path, task="score").tasks[0] == "score"
    late = profile_of(tmp_path, task="token_embed")
    assert (late.tasks, late.scoring, late.normalize) == (("token_embed", "score"), Scoring.LATE_INTERACTION, True)
    assert profile_of(tmp_path, CLASSIFIER | {"id2label": {"0": "x"}}, task="classify").tasks == ("classify", "score")


@pytest.mark.parametrize(
    ("config", "task", "can"),
    [
        (BERT, "generate", "embed, token_embed, score"),
        (BERT, "classify", "embed, token_embed, score"),
        (CLASSIFIER, "score", "classify"),
        (CLASSIFIER, "embed", "classify"),
        (BERT | {"architectures": ["HF_ColBERT"]}, "embed", "token_embed, score"),
    ],
)
def test_a_task_that_a_model_cannot_do(config: dict[str, Any], task: str, can: str, tmp_path: Path) -> None:
    with pytest.raises(CallerError, match=f"cannot do '{task}'; what it can do: {can}"):
        profile_of(tmp_path, config, task=task)


def test_a_task_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="no task 'sing'"):
        profile_of(tmp_path, task="sing")


def test_a_gguf_file_generates() -> None:
    assert read_profile(resolve_source("smollm2")).tasks == ("generate",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "t5", "architectures": ["T5Model"]}, "'t5' are not served; decoders that are: llama"),
        ({"architectures": ["BertForQuestionAnswering"]}, "BertForQuestionAnswering.*BertForSequenceClassification"),
        ({"position_embedding_type": "relative_key"}, "relative_key"),
        ({"hidden_act": "silu"}, "'silu' is not served"),
        ({"is_decoder": True}, "only encoders"),
        ({"quantization_config": {}}, "quantised"),
    ],
)
def test_models_that_are_not_served(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CallerError, match=message) as caught:
        profile_of(tmp_path, BERT | change)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"num_hidden_layers": None},
        {"num_hidden_layers": 10**12},
        {"num_attention_heads": 0},
        {"num_attention_heads": 5},
        {"hidden_size": [32]},
        {"hidden_size": 1e400},
        {"vocab_size": 1 << 60},
        {"max_position_embeddings": 0},
        {"model_type": "roberta", "max_position_embeddings": 2},
        {"model_type": "roberta", "pad_token_id": -5},
        {"type_vocab_size": -1},
        {"layer_norm_eps": float("nan")},
        {"architectures": ["BertForSequenceClassification"], "id2label": {"1": "a"}},
        {"architectures": ["BertForSequenceClassification"], "id2label": {}},
        {"architectures": ["BertForSequenceClassification"], "id2label": ["a"]},
        {"architectures": ["BertForSequenceClassification"], "num_labels": 1 << 40},
        {"architectures": ["HF_ColBERT"], "dim": 0},
    ],
)
def test_nonsense_is_named_not_obeyed(change: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"config\.json"):
        profile_of(tmp_path, BERT | change)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000])
@pytest.mark.parametrize("name", ["config", "config_sentence_transformers", "sentence_bert_config", "tokenizer_config"])
def test_files_that_are_no_json_object(name: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=rf"{name}\.json"):
        read_profile(write(tmp_path, {"config.json": BERT} | {f"{name}.json": text}))


@pytest.mark.parametrize("key", ["max_seq_length", "query_length", "document_length"])
@pytest.mark.parametrize("length", [0, -1, "many", 1.5, True])
def test_lengths_that_make_no_sense(key: str, length: Any, tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=rf"sentence_bert_config\.json: a {key}"):
        profile_of(tmp_path, BERT, {"sentence_bert_config.json": {key: length}})


def test_a_profile_is_read_without_torch() -> None:
    code = (
        "import sys; from tenure.source import resolve_source; from tenure.checkpoints.profile import read_profile; "
        "read_profile(resolve_source('minilm')); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() == "False"
