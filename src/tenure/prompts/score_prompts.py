"""From the texts of a score or rerank body to token ids: single texts or pairs, truncated as requested.

Truncation never removes special tokens. `max_tokens_per_query` and `max_tokens_per_doc` truncate each text by itself;
a document's limit also leaves room for its query. `truncate_prompt_tokens` truncates a pair, the longer text first.
What is then too long for the model is a 400. A late-interaction model may define its own lengths of queries and
documents: texts are always truncated to these, and queries may be padded. Pure; takes time in proportion to the texts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tenure.checkpoints.late_interaction import Expansion
from tenure.checkpoints.profile import DOCUMENT_PROMPTS, QUERY_PROMPTS, ModelProfile
from tenure.errors import CallerError
from tenure.http.errors import context_length_exceeded, invalid_request
from tenure.prompts.text_inputs import TextRules, encode_texts, tokenise_inputs
from tenure.prompts.text_model import ScorePrompt, TextModel
from tenure.prompts.token_prompts import Truncation
from tenure.text.pairs import cut, longest_first


@dataclass(frozen=True)
class PairRules:
    """The truncation rules and the model of one request."""

    model: TextModel
    vocabulary_size: int
    longest: int
    """Most tokens of one sequence, special ones included."""
    names: tuple[str, str]
    """The fields of the request that hold queries and documents, for messages."""
    side: str
    """The truncation side: `left` or `right`."""
    truncation: Truncation | None = None
    per_query: int = 0
    """Most tokens of a query, without special ones; 0 = no limit."""
    per_document: int = 0
    instruction: str | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further names for the template of a model that is asked by one."""

    @property
    def room(self) -> int:
        """Most tokens of a pair, special ones included, after truncation."""
        return self.longest if self.truncation is None else self.truncation.limit

    def name(self, position: int, count: int) -> str:
        """The name of a document in messages, such as `documents[3]`."""
        return self.names[1] if count == 1 else f"{self.names[1]}[{position}]"


@dataclass(frozen=True)
class Prompts:
    """Token ids for the engine; `segments` and `unattended` as in `PoolingJob`."""

    ids: list[list[int]]
    segments: list[int] = field(default_factory=list)
    unattended: list[int] = field(default_factory=list)


def single_prompts(queries: Sequence[str], documents: Sequence[str], rules: PairRules) -> Prompts:
    """The queries, then the documents, each as its own sequence behind the model's prompt for it."""
    late = rules.model.profile.late_interaction
    ids: list[list[int]] = []
    for texts, limit, name, prompts, length in (
        (queries, rules.per_query, rules.names[0], QUERY_PROMPTS, late.query_length),
        (documents, rules.per_document, rules.names[1], DOCUMENT_PROMPTS, late.document_length),
    ):
        text_rules = TextRules(
            model=rules.model,
            vocabulary_size=rules.vocabulary_size,
            longest=rules.longest,
            truncation=_to_length(length, rules),
            own=Truncation(limit, rules.side) if limit else None,
            prompt=_prompt(rules.model.profile, prompts),
        )
        ids += [entry.ids for entry in tokenise_inputs(texts, text_rules, name)]
    return Prompts(ids) if late.expansion is None else _lengthened(ids, len(queries), late.expansion, rules)


def pair_prompts(queries: Sequence[str], documents: Sequence[str], rules: PairRules) -> Prompts:
    """One sequence for each document with its query, joined by the tokenizer's pair template."""
    tokenizer = rules.model.tokenizer
    template = tokenizer.pair_template
    room = rules.room - template.special_tokens
    if room < 1:
        message = (
            f"`truncate_prompt_tokens` of {rules.room} leaves no room beside the {template.special_tokens} special "
            "tokens of a pair."
        )
        raise invalid_request(message, "truncate_prompt_tokens")
    encoded = encode_texts(tokenizer, [*queries, *documents])
    firsts, seconds = encoded[: len(queries)], encoded[len(queries) :]
    prompts = Prompts([])
    for position, second in enumerate(seconds):
        first = firsts[position if len(firsts) > 1 else 0]
        ids, first_segment = template.join(*_cut_pair(first, second, room, rules))
        _check(len(ids), rules, position, len(seconds))
        prompts.ids.append(ids)
        prompts.segments.append(first_segment)
    return prompts


def written_prompts(queries: Sequence[str], documents: Sequence[str], rules: PairRules, write: ScorePrompt) -> Prompts:
    """One sequence for each document with its query, as `write` renders them, truncated by the rules."""
    queries = _cut_texts(queries, rules.per_query, rules)
    documents = _cut_texts(documents, rules.per_document, rules)
    paired = [queries[position if len(queries) > 1 else 0] for position in range(len(documents))]
    write = partial(_written, write, **rules.template_kwargs)
    texts = [write(query, document, rules.instruction) for query, document in zip(paired, documents, strict=True)]
    prompts = Prompts(encode_texts(rules.model.tokenizer, texts))
    for position, (query, document) in enumerate(zip(paired, documents, strict=True)):
        ids = prompts.ids[position]
        if len(ids) > rules.room and (rules.truncation is not None or rules.per_document):
            ids = prompts.ids[position] = _shortened(ids, query, document, rules, write)
        _check(len(ids), rules, position, len(documents))
    return prompts


def _written(write: ScorePrompt, query: str, document: str, instruction: str | None, /, **names: Any) -> str:
    try:
        return write(query, document, instruction, **names)
    except CallerError as error:
        raise invalid_request(f"The model's score template refuses these texts: {error}.") from None


def _prompt(profile: ModelProfile, names: Sequence[str]) -> str:
    """The model's prompt of the first of `names` that it has, or its default prompt; may be empty."""
    known = [*names, *([] if profile.default_prompt is None else [profile.default_prompt])]
    return next((profile.prompts[name] for name in known if name in profile.prompts), "")


def _to_length(length: int | None, rules: PairRules) -> Truncation | None:
    """The truncation to the model's own `length` of a text; None without one, or when it exceeds `rules.longest`."""
    if length is None or length > rules.longest:
        return rules.truncation
    limit = length if rules.truncation is None else min(length, rules.truncation.limit)
    return Truncation(limit, rules.side)


def _lengthened(ids: list[list[int]], queries: int, expansion: Expansion, rules: PairRules) -> Prompts:
    """Pad the first `queries` of `ids` with the model's expansion token to its query length."""
    if expansion.length > rules.longest:
        message = f"The model lengthens queries to {expansion.length} tokens, but at most {rules.longest} are read."
        raise context_length_exceeded(message, rules.names[0])
    missing = [max(0, expansion.length - len(query)) for query in ids[:queries]]
    longer = [[*query, *[expansion.token] * more] for query, more in zip(ids, missing, strict=False)]
    unattended = [] if expansion.attend or not any(missing) else [*missing, *[0] * (len(ids) - queries)]
    return Prompts([*longer, *ids[queries:]], unattended=unattended)


def _cut_pair(first: list[int], second: list[int], room: int, rules: PairRules) -> tuple[list[int], list[int]]:
    if rules.per_query:
        first = cut(first, min(rules.per_query, max(1, room - 1)), rules.side)
    if rules.per_document:
        second = cut(second, min(rules.per_document, max(1, room - len(first))), rules.side)
    if rules.truncation is not None:
        for_first, for_second = longest_first(len(first), len(second), room)
        first, second = cut(first, for_first, rules.side), cut(second, for_second, rules.side)
    return first, second


def _cut_texts(texts: Sequence[str], limit: int, rules: PairRules) -> Sequence[str]:
    if not limit:
        return texts
    tokenizer = rules.model.tokenizer
    encoded = encode_texts(tokenizer, texts)
    return [
        text if len(ids) <= limit else tokenizer.decode(cut(ids, limit, rules.side), skip_special_tokens=False)
        for text, ids in zip(texts, encoded, strict=True)
    ]


def _shortened(ids: list[int], query: str, document: str, rules: PairRules, write: ScorePrompt) -> list[int]:
    """The prompt with the document truncated to fit, and also the query if `truncation` is set.

    Repeats, because a truncated text that is tokenized again may have more tokens. Raises a 400 for a limit that
    leaves no room for texts.
    """
    tokenizer = rules.model.tokenizer
    own = tokenizer.encode_plain([query, document])
    first, second = map(len, own)
    while len(ids) > rules.room and (second or (first and rules.truncation is not None)):
        left = max(0, first + second - (len(ids) - rules.room))
        if rules.truncation is not None:
            first, second = longest_first(first, second, left)
        else:
            second = max(0, left - first)
        shorter = [cut(tokens, size, rules.side) for tokens, size in zip(own, (first, second), strict=True)]
        query, document = (tokenizer.decode(tokens, skip_special_tokens=False) for tokens in shorter)
        (ids,) = tokenizer.encode_plain([write(query, document, rules.instruction)])
    if rules.room < len(ids) <= rules.longest:
        message = f"The limit of {rules.room} tokens leaves no room for texts beside the {len(ids)} of the prompt."
        raise invalid_request(message, None if rules.truncation is None else rules.truncation.field)
    return ids


def _check(length: int, rules: PairRules, position: int, count: int) -> None:
    name = rules.name(position, count)
    if length == 0:
        raise invalid_request(f"`{name}` and its query have no tokens.", rules.names[1])
    if length > rules.longest:
        message = (
            f"`{name}` and its query have {length} tokens together, but at most {rules.longest} are read at a time."
        )
        raise context_length_exceeded(f"{message} Please reduce the length of the input prompt.", rules.names[1])
