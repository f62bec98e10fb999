"""The handlers of `/score`, `/rerank` and their aliases.

One HTTP request is one request of the engine: its pairs, or its queries and documents, are admitted, scheduled and
cancelled together. Vectors of queries are kept by the handler until it has scored, and nowhere else.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET

from tenure.api.common.body_reading import BodyReading, SelectedModel
from tenure.api.common.call import Call
from tenure.api.common.pooling_fields import check_shared
from tenure.api.common.pooling_job import PoolingJob, Vectors, feed_pooled
from tenure.api.common.pooling_plan import default_prompt
from tenure.api.common.reply import reading_usage
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


class ScorePlan(msgspec.Struct, frozen=True, kw_only=True):
    """A request for scores: one for each document. The documents are attached, as JSON, where they are to be shown."""

    job: PoolingJob
    queries: int
    documents: int
    activation: bool
    """Whether scores of classes are shown between 0 and 1."""
    top_n: int = 0


@dataclass(frozen=True)
class Scored:
    """One finite score for each document, in order. `ranks` sort them: logits where scores saturate."""

    scores: Sequence[float]
    ranks: Sequence[float]


@dataclass(frozen=True)
class ScoreHandler:
    """The handler of `/score`: score pairs of texts, in the order in which they are given."""

    async def __call__(self, call: Call) -> None:
        plan = await call.read(ScorePlan)
        scored = await _score(call, plan)
        data = [ScoreEntry(index=index, score=value) for index, value in enumerate(scored.scores)]
        usage = reading_usage(plan.job.submit.prompts.total)
        await call.respond_json(ScoreReply(data=data, usage=usage, **call.reply_head().fields()))

    def read(self, body: bytes | bytearray, reading: BodyReading) -> ScorePlan:
        request = reading.decode(body, _SCORE_DECODER)
        selected = reading.choose(request.model, TASK)
        return _plan(request, Pairs(*read_sides(request, reading.settings.max_inputs)), selected, reading)


@dataclass(frozen=True)
class RerankHandler:
    """The handler of `/rerank`: score documents by their query, and give the best of them, best first."""

    async def __call__(self, call: Call) -> None:
        plan = await call.read(ScorePlan)
        scored = await _score(call, plan)
        best = sorted(range(plan.documents), key=lambda index: (-scored.ranks[index], index))[: plan.top_n]
        tokens, shown = plan.job.submit.prompts.total, call.attached

        def reply() -> RerankReply:
            documents: list[Any] = [iter([shown[index]]) if shown else UNSET for index in best]
            return RerankReply(
                id=call.request_id,
                model=plan.job.model,
                results=[
                    RerankResult(index=index, document=document, relevance_score=scored.scores[index])
                    for index, document in zip(best, documents, strict=True)
                ],
                usage=RerankUsage(prompt_tokens=tokens, total_tokens=tokens),
                meta=_meta(plan.documents, tokens) if call.route == _META_PATH else UNSET,
            )

        await call.respond_long(reply, sum(map(len, shown)))

    def read(self, body: bytes | bytearray, reading: BodyReading) -> ScorePlan:
        request = reading.decode(body, _RERANK_DECODER)
        selected = reading.choose(request.model, TASK)
        if request.query is None:
            raise invalid_request("`query` is required.", "query")
        entries = listed(request.documents, "documents", reading.settings.max_inputs)
        if request.texts is not None:
            raise unsupported("texts")
        top_n = _number(request, "top_n") or len(entries)
        documents = [entry_text(entry, name, request.rank_fields or ()) for name, entry in entries]
        pairs = Pairs(("query", "documents"), [entry_text(request.query, "query")], documents)
        plan = _plan(request, pairs, selected, reading, min(top_n, len(documents)))
        if request.return_documents is not False:
            shown = (shown_document(entry, text) for (_, entry), text in zip(entries, documents, strict=True))
            reading.attached += map(msgspec.json.encode, shown)
        return plan


score, rerank = ScoreHandler(), RerankHandler()


async def _score(call: Call, plan: ScorePlan) -> Scored:
    profile = call.context.texts[plan.job.model].profile
    scores = _scores(profile, plan)
    await feed_pooled(call, plan.job, _taker(scores, profile, plan))
    if not all(map(math.isfinite, scores.values)):
        raise internal_error("A score is not finite (NaN or infinity).")
    values = scores.values
    if plan.activation and _scoring(profile) is Scoring.CROSS_ENCODER:
        values = [sigmoid(logit) for logit in values]
    return Scored(values, scores.values)


def _plan(
    request: PairFields, pairs: Pairs, selected: SelectedModel, reading: BodyReading, top_n: int = 0
) -> ScorePlan:
    """Raises a 400."""
    model, profile = selected.text, selected.text.profile
    shared = check_shared(request, selected, reading)
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
    scoring = _scoring(profile)
    # Logits of classes, not probabilities: in float32 the sigmoid of everything above 17 is 1.
    activation = shared.activation and scoring is not Scoring.CROSS_ENCODER
    params = PoolingParams(task=_POOLED[scoring], activation=activation)
    segments, unattended = prompts.segments, prompts.unattended
    return ScorePlan(
        job=PoolingJob.of(model.name, prompts.ids, params, shared, segments=segments, unattended=unattended),
        queries=len(pairs.queries),
        documents=len(pairs.documents),
        activation=shared.activation,
        top_n=top_n,
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


def _scores(profile: ModelProfile, plan: ScorePlan) -> Scores:
    match _scoring(profile):
        case Scoring.CROSS_ENCODER:
            return ClassScores(plan.documents)
        case Scoring.BI_ENCODER:
            return PairedScores(cosine, plan.queries, plan.documents)
        case Scoring.LATE_INTERACTION:
            return PairedScores(max_similarity, plan.queries, plan.documents)


def _taker(scores: Scores, profile: ModelProfile, plan: ScorePlan) -> Callable[[int, Vectors], None]:
    """What takes the answers: `scores`, but for the rows of tokens that do not count."""
    if _scoring(profile) is not Scoring.LATE_INTERACTION:
        return scores.take
    late = profile.late_interaction

    def take(index: int, vectors: Vectors) -> None:
        counted = late.counted_in_query if index < plan.queries else late.counted_in_document
        scores.take(index, counted_rows(vectors, plan.job.submit.prompts[index], counted))

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
