"""Decoders that sentence-transformers wrote and runs: from folder and text to vectors and scores, against its own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tenure.checkpoints.profile import read_profile
from tenure.config import EngineConfig, ModelChoice
from tenure.core.budget import StepBudget
from tenure.core.request import Request, RequestSpec
from tenure.engine.assembly import Engine, assemble
from tenure.pooling import PoolingParams, PoolingTask
from tenure.prompts.chat_template import ChatTemplate
from tenure.prompts.reranker_prompt import reranker_prompt
from tenure.prompts.text_model import score_prompt_of
from tenure.sampling import SamplingParams
from tenure.source import ResolvedSource, SourceKind
from tenure.text.tokenizer import load_tokenizer
from tests.models.tiny import COMMON

TOLERANCE = 1e-4
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXTS = ["yes", "Nobody holds a lease that somebody else has given back.", "no " * 90, "Ünïcode\n\n {}"]
QUERY_PROMPT = "Instruct: find\nQuery:"
PUBLISHED_TEMPLATE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: Given a web '
    "search query, retrieve relevant passages that answer the query\n"
    '<Query>: {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}\n'
    '<Document>: {{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}<|im_end|>\n'
    '<|im_start|>assistant\n<think>\n\n</think>{{ "\n\n" }}'  # Jinja drops a line end that is written last
)
OTHER_TEMPLATE = (
    '{{ messages | selectattr("role", "eq", "system") | map(attribute="content") | first | default("no task") }}: does '
    '{{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }} answer '
    '{{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}, yes or no?'
    "{% if add_generation_prompt %}<|im_start|>{% endif %}"
)


def save_base(folder: Path, *, ends: bool, template: str = PUBLISHED_TEMPLATE) -> None:
    """A small random Qwen3 with a tokenizer of bytes, `yes` and `no`. `ends`: texts end in a token of their own."""
    import transformers as hf  # noqa: PLC0415 - seconds to import; only these tests need it
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors  # noqa: PLC0415

    pieces = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "ye", "yes", "no"]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("y", "e"), ("ye", "s"), ("n", "o")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    if ends:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="$A <|endoftext|>", pair="$A $B <|endoftext|>", special_tokens=[("<|endoftext|>", 0)]
        )
    wrapped = hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=SPECIAL[0], padding_side="left")
    if not ends:
        wrapped.chat_template = template
    wrapped.save_pretrained(folder)
    torch.manual_seed(3)
    shape = {**COMMON, "vocab_size": len(pieces) + 3, "max_position_embeddings": 1024, "head_dim": 16}
    hf.Qwen3ForCausalLM(hf.Qwen3Config(**shape)).save_pretrained(folder)


def make_engine(folder: Path) -> Engine:
    choice = ModelChoice(name="m", served_names=("m",), kind=SourceKind.FOLDER, path=str(folder))
    with torch.inference_mode():
        return assemble(EngineConfig(model=choice, max_num_seqs=4, kv_cache_memory=0.02))


def read(engine: Engine, prompts: Sequence[Sequence[int]], task: PoolingTask) -> np.ndarray:
    """The answers, a row for each prompt, from steps of few tokens."""
    engine.scheduler.add(
        Request(1, RequestSpec(prompts, SamplingParams(max_tokens=0), pooling=PoolingParams(task=task)))
    )
    answers: dict[int, Any] = {}
    while engine.scheduler.busy:
        plan = engine.scheduler.plan(StepBudget(tokens=150))
        assert plan is not None
        engine.runner.launch(plan)
        for output in engine.scheduler.land(engine.runner.land()).outputs:
            assert output.pooled is not None
            answers[output.index] = np.frombuffer(output.pooled.data, "<f4")
    return np.stack([answers[index] for index in range(len(prompts))])


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - see above
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer  # noqa: PLC0415

    folder = tmp_path_factory.mktemp("embedder")
    save_base(folder / "base", ends=True)
    modules = [Transformer(str(folder / "base")), Pooling(48, "lasttoken"), Normalize()]
    theirs = SentenceTransformer(modules=modules, device="cpu", prompts={"query": QUERY_PROMPT})
    theirs.save(str(folder / "saved"))
    return folder / "saved", theirs


def test_embeddings_are_those_of_sentence_transformers(embedder: tuple[Path, Any]) -> None:
    folder, theirs = embedder
    source = ResolvedSource(SourceKind.FOLDER, folder, "m")
    profile, tokenizer = read_profile(source), load_tokenizer(source)
    assert (profile.tasks, profile.embedding_size) == (("embed", "score"), 48)
    engine = make_engine(folder)
    plain = read(engine, [tokenizer.encode(text) for text in TEXTS], PoolingTask.EMBED)
    np.testing.assert_allclose(plain, theirs.encode(TEXTS), atol=TOLERANCE)
    asked = [tokenizer.encode(profile.prompts["query"] + text) for text in TEXTS]
    np.testing.assert_allclose(
        read(engine, asked, PoolingTask.EMBED), theirs.encode(TEXTS, prompt_name="query"), atol=TOLERANCE
    )


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    from sentence_transformers import CrossEncoder  # noqa: PLC0415 - see above

    folder = tmp_path_factory.mktemp("reranker")
    save_base(folder / "base", ends=False)
    theirs = CrossEncoder(str(folder / "base"), device="cpu")
    theirs.save(str(folder / "saved"))
    return folder / "saved", theirs


def test_yes_no_scores_are_those_of_sentence_transformers(reranker: tuple[Path, Any]) -> None:
    folder, theirs = reranker
    source = ResolvedSource(SourceKind.FOLDER, folder, "m")
    assert read_profile(source).answer_tokens == ("no", "yes")
    tokenizer, query = load_tokenizer(source), "Who holds it?"
    prompts = [tokenizer.encode(reranker_prompt(query, text), add_special_tokens=False) for text in TEXTS]
    ours = read(make_engine(folder), prompts, PoolingTask.CLASSIFY)
    expected = theirs.predict([(query, text) for text in TEXTS])
    assert expected.std() > 0.01
    np.testing.assert_allclose(ours[:, 0], expected, atol=TOLERANCE)


def test_a_reranker_with_a_template_and_an_instruction_of_its_own(tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder  # noqa: PLC0415 - see above

    save_base(tmp_path / "base", ends=False, template=OTHER_TEMPLATE)
    prompts = {"web": "Search the web"}
    theirs = CrossEncoder(str(tmp_path / "base"), device="cpu", prompts=prompts, default_prompt_name="web")
    theirs.save(str(tmp_path / "saved"))
    source = ResolvedSource(SourceKind.FOLDER, tmp_path / "saved", "m")
    profile, tokenizer = read_profile(source), load_tokenizer(source)
    assert (dict(profile.prompts), profile.default_prompt, profile.saved_as_reranker) == (prompts, "web", True)
    template = ChatTemplate.of(tokenizer)
    write = score_prompt_of(profile, template)
    assert write is not None
    assert score_prompt_of(read_profile(ResolvedSource(SourceKind.FOLDER, tmp_path / "base", "m")), template) is None
    asked = read_profile(ResolvedSource(SourceKind.FOLDER, tmp_path / "base", "m"), "score")
    assert score_prompt_of(asked, template) is reranker_prompt, "it was not saved as a reranker"
    engine, query = make_engine(tmp_path / "saved"), "Who holds it?"
    for instruction, theirs_of_it in (("Search the web", None), ("Find duplicates", "Find duplicates")):
        written = [write(query, document, instruction) for document in TEXTS]
        prompt_ids = [tokenizer.encode(one, add_special_tokens=False) for one in written]
        expected = theirs.predict([(query, document) for document in TEXTS], prompt=theirs_of_it)
        assert expected.std() > 0.01
        np.testing.assert_allclose(read(engine, prompt_ids, PoolingTask.CLASSIFY)[:, 0], expected, atol=TOLERANCE)
