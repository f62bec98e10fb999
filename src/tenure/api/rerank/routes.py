"""The handlers of `/score`, `/rerank` and their aliases.

One HTTP request is one request of the engine: its pairs, or its queries and documents, are admitted, scheduled and
cancelled together. Vectors of queries are kept by the handler until it has scored, and nowhere else.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
from msgspec import UNSET

from tenure.api.common.call import Call
from tenure.api.common.pooling_fields import check_shared
from tenure.api.common.pooling_job import PoolingJob, Vectors, feed_pooled
from tenure.api.common.pooling_plan import default_prompt
from tenure.api.common.reply import reading_usage
from tenure.api.common.selection import SelectedModel, select_model
from tenure.api.rerank.scoring import ClassScores, PairedScores, Scores, cosine, counted_rows, max_similarity, sigmoid
from tenure.api.rerank.texts import entry_text, listed, read_sides, shown_document
from tenure.api.rerank.types import (
    BilledUnits,
    InputTokens,
    PairFields,
    RerankMeta,
    RerankReply,
    RerankRequest,
    RerankResult,
    RerankUsage,
    ScoreEntry,
    ScoreReply,
    ScoreRequest,
)
from tenure.checkpoints.profile import ModelProfile, Scoring
from tenure.config import ApiSettings
from tenure.http.decoding import decode_body
from tenure.http.errors import Dialect, internal_error, invalid_request, unsupported
from tenure.http.routes import Description, Route, work_route
from tenure.pooling import PoolingParams, PoolingTask
from tenure.prompts.ranges import RANGES, check_number
from tenure.prompts.score_prompts import PairRules, Prompts, pair_prompts, single_prompts, written_prompts

TASK = "score"
_META_PATH = "/v2/rerank"
"""Whose clients expect `meta`."""
_UNIT = 100
_SCORE_DECODER = msgspec.json.Decoder(ScoreRequest)
_RERANK_DECODER = msgspec.json.Decoder(RerankRequest)

_POOLED = {
    Scoring.CROSS_ENCODER: PoolingTask.CLASSIFY,
    Scoring.BI_ENCODER: PoolingTask.EMBED,
    Scoring.LATE_INTERACTION: PoolingTask.TOKEN_EMBED,
}


@dataclass(frozen=True)
class Pairs:
    """The texts to score: one query for all documents, or one for each."""

    names: tuple[str, str]
    """The fields of the request that hold them, for messages."""
    queries: Sequence[str]
    documents: Sequence[str]


@dataclass(frozen=True)
class Scored:
    """One finite score for each document, in order. `ranks` sort them: logits where scores saturate."""

    id: str
    scores: Sequence[float]
    ranks: Sequence[float]
    prompt_tokens: int


async def score(call: Call) -> None:
    """Score pairs of texts, in the order in which they are given."""
    request = decode_body(call.body, _SCORE_DECODER)
    selected = select_model(call, request.model, TASK)
    scored = await _score(call, selected, request, Pairs(*read_sides(request, call.context.settings.max_inputs)))
    reply = ScoreReply(
        id=scored.id,
        created=int(time.time()),
        model=selected.text.name,
        data=[ScoreEntry(index=index, score=value) for index, value in enumerate(scored.scores)],
        usage=reading_usage(scored.prompt_tokens),
    )
    await call.respond_json(reply)


async def rerank(call: Call) -> None:
    """Score documents by a query, and answer with the best `top_n`, best first."""
    request = decode_body(call.body, _RERANK_DECODER)
    selected = select_model(call, request.model, TASK)
    if request.query is None:
        raise invalid_request("`query` is required.", "query")
    entries = listed(request.documents, "documents", call.context.settings.max_inputs)
    if request.texts is not None:
        raise unsupported("texts")
    top_n = _number(request, "top_n") or len(entries)
    documents = [entry_text(entry, name, request.rank_fields or ()) for name, entry in entries]
    pairs = Pairs(("query", "documents"), [entry_text(request.query, "query")], documents)
    scored = await _score(call, selected, request, pairs)
    best = sorted(range(len(documents)), key=lambda index: (-scored.ranks[index], index))[:top_n]
    shown = request.return_documents is not False
    results = [
        RerankResult(
            index=index,
            document=shown_document(entries[index][1], documents[index]) if shown else UNSET,
            relevance_score=scored.scores[index],
        )
        for index in best
    ]
    tokens = scored.prompt_tokens
    reply = RerankReply(
        id=scored.id,
        model=selected.text.name,
        results=results,
        usage=RerankUsage(prompt_tokens=tokens, total_tokens=tokens),
        meta=_meta(len(documents), tokens) if call.route == _META_PATH else UNSET,
    )
    await call.respond_json(reply)


async def _score(call: Call, selected: SelectedModel, request: PairFields, pairs: Pairs) -> Scored:
    settings = call.context.settings
    job = await call.compute(lambda: _job(request, pairs, selected, settings, call.priority))
    public_id = call.request_id
    scores = _scores(selected.text.profile, pairs)
    await feed_pooled(call, selected.engine, job, public_id, _taker(scores, selected.text.profile, pairs, job))
    if not all(map(math.isfinite, scores.values)):
        raise internal_error("A score is not finite (NaN or infinity).")
    values = scores.values
    if request.use_activation is not False and _scoring(selected.text.profile) is Scoring.CROSS_ENCODER:
        values = [sigmoid(logit) for logit in values]
    return Scored(public_id, values, scores.values, job.prompt_tokens)


def _job(
    request: PairFields, pairs: Pairs, selected: SelectedModel, settings: ApiSettings, priority: str | None
) -> PoolingJob:
    """The job for the engine. Raises a 400."""
    model, profile = selected.text, selected.text.profile
    shared = check_shared(request, selected, settings, priority)
    rules = PairRules(
        model=model,
        vocabulary_size=selected.window.vocabulary_size,
        longest=selected.text_window,
        names=pairs.names,
        side=request.truncation_side or model.tokenizer.truncation_side,
        truncation=shared.truncation,
        per_query=_number(request, "max_tokens_per_query"),
        per_document=_number(request, "max_tokens_per_doc"),
        instruction=_instruction(request, profile),
        template_kwargs=request.chat_template_kwargs or {},
    )
    prompts = _prompts(profile, pairs, rules)
    return PoolingJob(
        model=model,
        prompts=prompts.ids,
        segments=prompts.segments,
        unattended=prompts.unattended,
        # Logits of classes, not probabilities: in float32 the sigmoid of everything above 17 is 1.
        params=PoolingParams(
            task=_POOLED[_scoring(profile)],
            activation=shared.activation and _scoring(profile) is not Scoring.CROSS_ENCODER,
        ),
        priority=shared.priority,
        cache_salt=shared.cache_salt,
    )


def _prompts(profile: ModelProfile, pairs: Pairs, rules: PairRules) -> Prompts:
    if _scoring(profile) is not Scoring.CROSS_ENCODER:
        return single_prompts(pairs.queries, pairs.documents, rules)
    write = rules.model.score_prompt
    if write is not None:
        return written_prompts(pairs.queries, pairs.documents, rules, write)
    return pair_prompts(pairs.queries, pairs.documents, rules)


def _instruction(request: PairFields, profile: ModelProfile) -> str | None:
    """The instruction that defines relevance: the request's, or the model's default; may be None."""
    other = (request.chat_template_kwargs or {}).get("instruction")
    if not (other is None or isinstance(other, str)):
        raise invalid_request("`chat_template_kwargs.instruction` must be a string.", "chat_template_kwargs")
    given = other if request.instruction is None else request.instruction
    return default_prompt(profile) or None if given is None else given


def _scores(profile: ModelProfile, pairs: Pairs) -> Scores:
    queries, documents = len(pairs.queries), len(pairs.documents)
    match _scoring(profile):
        case Scoring.CROSS_ENCODER:
            return ClassScores(documents)
        case Scoring.BI_ENCODER:
            return PairedScores(cosine, queries, documents)
        case Scoring.LATE_INTERACTION:
            return PairedScores(max_similarity, queries, documents)


def _taker(scores: Scores, profile: ModelProfile, pairs: Pairs, job: PoolingJob) -> Callable[[int, Vectors], None]:
    """Return the callback for the answers: `scores.take`, without the vectors of tokens that do not count."""
    if _scoring(profile) is not Scoring.LATE_INTERACTION:
        return scores.take
    late = profile.late_interaction

    def take(index: int, vectors: Vectors) -> None:
        counted = late.counted_in_query if index < len(pairs.queries) else late.counted_in_document
        scores.take(index, counted_rows(vectors, job.prompts[index], counted))

    return take


def _scoring(profile: ModelProfile) -> Scoring:
    assert profile.scoring is not None, "a model that can `score` says how"
    return profile.scoring


def _number(request: PairFields, name: str) -> int:
    """The field as an int in its range; 0 when it is absent. Raises a 400."""
    value = getattr(request, name)
    return 0 if value is None else int(check_number(name, value, RANGES[name]))


def _meta(documents: int, tokens: int) -> RerankMeta:
    return RerankMeta(
        billed_units=BilledUnits(search_units=-(-documents // _UNIT), input_tokens=tokens),
        tokens=InputTokens(input_tokens=tokens),
    )


def _rerank_route(path: str, summary: str) -> Route:
    return work_route(path, rerank, "score-", Description(summary, RerankRequest, RerankReply), Dialect.RERANK)


ROUTES = (
    work_route("/score", score, "score-", Description("Score pairs of texts.", ScoreRequest, ScoreReply)),
    work_route("/v1/score", score, "score-", Description("The same as /score.", ScoreRequest, ScoreReply)),
    _rerank_route("/rerank", "Order documents by how well they fit a query."),
    _rerank_route("/v1/rerank", "The same as /rerank."),
    _rerank_route(_META_PATH, "The same as /rerank, with `meta` in the answer."),
)
