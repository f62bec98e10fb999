"""From a configuration to a loaded model with everything that a step needs, warmed up.

What a model is used for decides: one that reads each text in one piece needs no cache and a runner of its own.
"""

import hashlib
import secrets
import time
from typing import NamedTuple

import torch

from tenure.checkpoints.profile import ModelProfile, read_profile
from tenure.checkpoints.tokens import answer_ids, token_ids
from tenure.config import EngineConfig
from tenure.core.limits import Limits
from tenure.core.plan import Row, Start, StepPlan
from tenure.core.scheduler import Scheduler
from tenure.engine.estimator import StepCostEstimator
from tenure.engine.loop import ModelRunner
from tenure.errors import CallerError
from tenure.kv.cache import KVCache
from tenure.model_runner.decoder_runner import DecoderRunner, Head
from tenure.model_runner.encoder_runner import EncoderRunner
from tenure.model_runner.pooling_head import PoolingHead
from tenure.model_runner.sampler import Sampler
from tenure.model_runner.sampling_head import SamplingHead
from tenure.model_runner.step_results import StepResults
from tenure.models.encoder_loader import load_encoder
from tenure.models.llama import LlamaModel
from tenure.models.loader import AnswerHead, LabelHead, OutputHead, TokenHead, load
from tenure.pooling import PoolingParams
from tenure.sampling import SamplingParams
from tenure.source import ResolvedSource
from tenure.wire.messages import ModelCard

_LEAST_CAPACITY = 2
_WARM_UP_TOKENS = 64
_SET_ASIDE = 0.25
"""The part of the cache that prompts of and for other engines may occupy."""
_DTYPES = {"auto": torch.float32, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Engine(NamedTuple):
    """A loaded model with everything that a step needs."""

    scheduler: Scheduler
    runner: ModelRunner
    estimator: StepCostEstimator
    card: ModelCard
    results: StepResults
    """Of the runner's steps."""
    cache: KVCache | None
    fingerprint: str
    """Of the model: another with the same would compute the same keys and values."""


def assemble(config: EngineConfig) -> Engine:
    """Load the model. Raises CallerError for what cannot be served so, ResourceError for files that are damaged."""
    started = time.monotonic()
    profile = read_profile(config.model.source, config.model.task)
    tokens = token_ids(config.model.source)
    results = StepResults(overlap=config.async_scheduling)
    encodes = profile.whole_texts
    loaded = _encoder(config, profile, results) if encodes else _decoder(config, profile, results, tokens)
    # A model may have more rows than its tokenizer has tokens.
    loaded = loaded._replace(vocabulary_size=min(loaded.vocabulary_size, max(tokens) + 1))
    scheduler = Scheduler(
        loaded.limits, cache_seed=secrets.token_bytes(32), prefix_caching=config.enable_prefix_caching
    )
    estimator = StepCostEstimator()
    _warm_up(loaded, profile, estimator)
    card = _card(config, profile, loaded, time.monotonic() - started)
    return Engine(scheduler, loaded.runner, estimator, card, results, loaded.cache, loaded.fingerprint)


class _Loaded(NamedTuple):
    runner: ModelRunner
    limits: Limits
    vocabulary_size: int
    dtype: torch.dtype
    cache: KVCache | None = None
    fingerprint: str = ""


def _encoder(config: EngineConfig, profile: ModelProfile, results: StepResults) -> _Loaded:
    model = load_encoder(config.model.source, profile, _DTYPES[config.dtype], torch.device(config.device))
    window = min(config.max_model_len or model.window, model.window)
    limits = Limits(max_model_len=window, num_slots=config.max_num_seqs)
    return _Loaded(EncoderRunner(model, results), limits, model.vocab_size, model.dtype)


def _decoder(config: EngineConfig, profile: ModelProfile, results: StepResults, tokens: frozenset[int]) -> _Loaded:
    source = config.model.source
    model = load(source, _DTYPES[config.dtype], config.device, head=_output_head(source, profile, tokens))
    limits, cache = _make_room(config, model)
    head: Head = (
        SamplingHead(model, Sampler())
        if profile.generates
        else PoolingHead(model, profile.pooling_task, profile.normalize)
    )
    runner = DecoderRunner(model, cache, head, limits.num_slots, limits.max_model_len, results)
    return _Loaded(runner, limits, model.config.vocab_size, model.dtype, cache, _fingerprint(model))


def _fingerprint(model: LlamaModel) -> str:
    """Made of the model's shape and of some of its weights, which no fine-tuning leaves all as they are."""
    found = hashlib.sha256(repr((model.config, model.dtype)).encode())
    for weights in (model.embedding_VD[:: max(1, len(model.embedding_VD) // 64)], model.final_norm.weight_D):
        found.update(weights.contiguous().view(torch.uint8).cpu().numpy().tobytes())
    return found.hexdigest()[:32]


def _output_head(source: ResolvedSource, profile: ModelProfile, tokens: frozenset[int]) -> OutputHead:
    """What the decoder is to make of its final states: no more than its use asks for."""
    if profile.generates:
        return TokenHead(tokens)
    if profile.answer_tokens is not None:
        no, yes = answer_ids(source, profile.answer_tokens)
        return AnswerHead(no, yes)
    return LabelHead(len(profile.labels)) if profile.labels else None


def _make_room(config: EngineConfig, model: LlamaModel) -> tuple[Limits, KVCache]:
    """Allocate the cache: as many blocks as the memory allows, but no more than all slots could ever fill."""
    window = min(config.max_model_len or model.config.max_position_embeddings, model.config.max_position_embeddings)
    if config.max_model_len is not None and config.max_model_len > window:
        raise CallerError(f"--max-model-len {config.max_model_len} is beyond the model's window of {window} tokens")
    per_block = model.cache_shape.bytes_per_block(config.block_size)
    blocks = min(int(config.kv_cache_memory * 2**30 / per_block), -(-window // config.block_size) * config.max_num_seqs)
    if blocks < 1:
        raise CallerError(f"--kv-cache-memory {config.kv_cache_memory} GiB is less than one block ({per_block} bytes)")
    cache = KVCache(model.cache_shape, blocks, config.block_size, config.device)
    limits = Limits(
        max_model_len=window,
        num_blocks=blocks,
        block_size=config.block_size,
        num_slots=config.max_num_seqs,
        set_aside=0 if config.kv_transfer is None else int(_SET_ASIDE * blocks),
    )
    if limits.capacity < _LEAST_CAPACITY:
        raise CallerError(f"window and cache leave room for {limits.capacity} token: a prompt and an answer need two")
    return limits, cache


def _warm_up(loaded: _Loaded, profile: ModelProfile, estimator: StepCostEstimator) -> None:
    """Run a few steps, so that no request pays for first uses, and the estimator knows what a step costs."""
    limits, runner = loaded.limits, loaded.runner
    long = min(_WARM_UP_TOKENS, limits.capacity - 1)
    blocks = list(range(-(-long // limits.block_size))) if limits.paged else []
    pooling = None if profile.generates else PoolingParams(task=profile.pooling_task)
    sampling = SamplingParams(max_tokens=int(pooling is None), temperature=0.0)
    for number, count in enumerate((1, long, 1, long)):
        start = Start(0, -1 - number, [0] * count, count, 0, sampling, pooling)
        began = time.monotonic()
        runner.launch(StepPlan(0, [start], [Row(0, -1 - number, 0, count, blocks, pooling is None)]))
        runner.land()
        if number > 1:
            estimator.observe(count, count * (count + 1) / 2, time.monotonic() - began)


def _card(config: EngineConfig, profile: ModelProfile, loaded: _Loaded, seconds: float) -> ModelCard:
    return ModelCard(
        name=config.model.served_names[0],
        served_names=config.model.served_names,
        source=config.model.path,
        vocabulary_size=loaded.vocabulary_size,
        max_model_len=loaded.limits.max_model_len,
        block_size=loaded.limits.block_size,
        num_blocks=loaded.limits.num_blocks,
        dtype=str(loaded.dtype).removeprefix("torch."),
        tasks=profile.tasks,
        load_seconds=round(seconds, 3),
        most_items=config.max_num_seqs + config.max_num_queued_reqs,
        most_prompt_tokens=config.max_num_queued_tokens,
    )
