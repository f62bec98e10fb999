"""What the storm asks for: good requests on all routes, with a test of each answer.

The models are the built-in `smollm2` (chats) and `minilm` (embeds), `judge` (smollm2 as a yes-no reranker, which also
classifies) and `script`, a model that recites a known text and costs next to nothing (`tests.serving.script`).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tenure.outcomes import Outcome

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RERANKS = ("/rerank", "/v1/rerank", "/v2/rerank")
SCORES = ("/score", "/v1/score")
GENERATORS, EMBEDDERS, JUDGES = ("script", "smollm2"), ("minilm",), ("judge",)
ENDLESS = 5_000
"""Tokens of an answer that nobody waits for."""
GOOD = frozenset((Outcome.OK, Outcome.QUEUE_FULL, Outcome.DEADLINE))
"""What may become of a good request while the server is healthy, if nobody ends it."""
_WORDS = (
    *("river", "stone", "cloud", "winter", "garden", "letter", "window", "candle", "bridge", "forest", "silver"),
    *("P\u0159\u00edli\u0161", "\u017elu\u0165ou\u010dk\u00fd", "\U0001f434", "\u4f60\u597d", "nul\0nul", "\u202eabc"),
)

Answer = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """One request. `right` says whether a whole answer (of a stream: what its events add up to) is as it must be."""

    path: str
    body: dict[str, Any]
    right: Callable[[Answer], bool]
    endings: frozenset[Outcome] = GOOD
    """What its client may be told."""

    @property
    def work(self) -> bool:
        """Whether it counts as load."""
        return self.path != "/tokenize"

    @property
    def generates(self) -> bool:
        return self.path in (CHAT, COMPLETIONS)

    def streamed(self) -> "Question":
        """The same as a stream, where the route has streams."""
        return replace(self, body=self.body | {"stream": True}) if self.generates else self

    def that_may_end(self, outcome: Outcome) -> "Question":
        return replace(self, endings=self.endings | {outcome})


@dataclass(frozen=True)
class Catalogue:
    """Makes questions for the models that are served. `recited` tells what `script` answers to a prompt."""

    models: Sequence[str]
    recited: Callable[[str, int], str] | None = None
    most_tokens: int = 48
    """Of an answer that is waited for."""

    def question(self, random: Random) -> Question:
        """Any."""
        return random.choice(self._all())(random)

    def generation(self, random: Random) -> Question:
        """One of a model that generates, or any when none is served."""
        if not self._of(GENERATORS):
            return self.question(random)
        return random.choice((self._chat, self._completion))(random, random.randint(1, self.most_tokens))

    def endless(self, random: Random) -> Question:
        """One that runs until somebody ends it, or has at least a lot to compute."""
        if self._of(GENERATORS):
            return random.choice((self._chat, self._completion))(random, ENDLESS)
        return self.question(random)

    def large(self, random: Random) -> Question:
        """One whose answer is larger than all buffers between server and client, and comes fast."""
        if self._of(EMBEDDERS):
            texts = [" ".join(random.choices(_WORDS[:11], k=150)) for _ in range(10)]
            body = {"model": self._of(EMBEDDERS)[0], "task": "token_embed", "input": texts}
            return Question("/pooling", body, lambda answer: len(answer["data"]) == len(texts))
        return self.endless(random).streamed()

    def _of(self, kind: Sequence[str]) -> list[str]:
        return [model for model in self.models if model in kind]

    def _all(self) -> list[Callable[[Random], Question]]:
        found: list[Callable[[Random], Question]] = [self._tokenise, self._classify]
        if self._of(GENERATORS):
            found += [self.generation] * 8
        if self._of(EMBEDDERS):
            found += [self._embeddings, self._cohere, self._pooling]
        if self._of(EMBEDDERS) or self._of(JUDGES):
            found += [self._rerank, self._score] * 2
        return found

    # generation

    def _chat(self, random: Random, count: int) -> Question:
        model, text = random.choice(self._of(GENERATORS)), _text(random)
        sampling = _sampling(random)
        messages = [{"role": "user", "content": text}]
        body = {"model": model, "messages": messages, "max_tokens": count, **sampling}
        return Question(CHAT, body, self._check(model, [f"user: {text}\n"], count, sampling))

    def _completion(self, random: Random, count: int) -> Question:
        model = random.choice(self._of(GENERATORS))
        prompts = [_text(random) for _ in range(random.choice((1, 1, 1, 2, 4)))]
        sampling = _sampling(random)
        prompt = prompts if len(prompts) > 1 else prompts[0]
        body = {"model": model, "prompt": prompt, "max_tokens": count, **sampling}
        return Question(COMPLETIONS, body, self._check(model, prompts, count, sampling))

    def _check(
        self, model: str, prompts: Sequence[str], count: int, sampling: dict[str, Any]
    ) -> Callable[[Answer], bool]:
        n = sampling.get("n", 1)
        recited = self.recited if model == "script" and "stop" not in sampling else None
        texts = [recited(prompt, count) for prompt in prompts for _ in range(n)] if recited else None

        def right(answer: Answer) -> bool:
            choices = sorted(answer["choices"], key=lambda choice: choice["index"])
            whole = [choice["index"] for choice in choices] == list(range(n * len(prompts)))
            ended = all(choice["finish_reason"] in ("stop", "length") for choice in choices)
            return whole and ended and (texts is None or [text_of(choice) for choice in choices] == texts)

        return right

    # vectors

    def _embeddings(self, random: Random) -> Question:
        texts = _texts(random)
        body = {"model": self._of(EMBEDDERS)[0], "input": texts, "encoding_format": random.choice(("float", "base64"))}
        return Question("/v1/embeddings", body, lambda answer: _places(answer["data"]) == list(range(len(texts))))

    def _cohere(self, random: Random) -> Question:
        texts, path = _texts(random), random.choice(("/v1/embed", "/v2/embed"))
        body = {"model": self._of(EMBEDDERS)[0], "texts": texts, "embedding_types": ["float"]}
        return Question(path, body, lambda answer: _numbers(answer["embeddings"]["float"]) == [len(texts), 384])

    def _pooling(self, random: Random) -> Question:
        texts, task = _texts(random), random.choice(("embed", "token_embed"))
        body = {"model": self._of(EMBEDDERS)[0], "input": texts, "task": task}
        return Question("/pooling", body, lambda answer: _places(answer["data"]) == list(range(len(texts))))

    # scores, classes, tokens

    def _rerank(self, random: Random) -> Question:
        documents: list[Any] = [
            {"text": _text(random), "id": 7} if random.random() < 0.2 else t for t in _texts(random)
        ]
        top_n = random.choice((len(documents), len(documents) + 5, 1))
        model = random.choice(self._of((*EMBEDDERS, *JUDGES)))
        body = {"model": model, "query": _text(random), "documents": documents, "top_n": top_n}
        count = min(top_n, len(documents))
        return Question(random.choice(RERANKS), body, lambda answer: _ranked(answer["results"], count, len(documents)))

    def _score(self, random: Random) -> Question:
        texts, model = _texts(random), random.choice(self._of((*EMBEDDERS, *JUDGES)))
        body = {"model": model, "text_1": _text(random), "text_2": texts}
        return Question(
            random.choice(SCORES),
            body,
            lambda answer: (
                all(math.isfinite(entry["score"]) for entry in answer["data"])
                and _places(answer["data"]) == list(range(len(texts)))
            ),
        )

    def _classify(self, random: Random) -> Question:
        model, texts = random.choice(self.models), _texts(random)
        body = {"model": model, "input": texts}
        endings = GOOD if model in JUDGES else frozenset((Outcome.INVALID,))
        return Question("/classify", body, lambda answer: len(answer["data"]) == len(texts), endings)

    def _tokenise(self, random: Random) -> Question:
        body = {"model": random.choice(self.models), "prompt": _text(random)}
        return Question("/tokenize", body, lambda answer: answer["count"] == len(answer["tokens"]) > 0)


def text_of(choice: dict[str, Any]) -> str:
    """The text of a choice of either route."""
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


def _sampling(random: Random) -> dict[str, Any]:
    """Fields that go together with any prompt."""
    fields: dict[str, Any] = {"ignore_eos": True, "temperature": 0}
    if random.random() < 0.3:
        fields |= {"temperature": 1, "seed": random.randrange(1000), "n": random.choice((1, 2, 3))}
    if random.random() < 0.15:
        fields |= {"stop": ["never said", "\n\n\n"]}
    if random.random() < 0.2:
        fields |= {"user": "somebody", "min_p": 0.01}
    return fields


def _text(random: Random) -> str:
    return " ".join(random.choices(_WORDS, k=random.choice((1, 3, 8, 40)))) + random.choice("abcdefgh")


def _texts(random: Random) -> list[str]:
    """Some texts, none of them empty: what scores pairs takes those, what embeds does not."""
    return [_text(random) for _ in range(random.choice((1, 2, 5, 12)))]


def _places(data: Sequence[dict[str, Any]]) -> list[int]:
    return [entry["index"] for entry in data]


def _numbers(vectors: Sequence[Sequence[float]]) -> list[int]:
    """Rows and columns; no rows if a number is none."""
    finite = all(math.isfinite(number) for vector in vectors for number in vector)
    return [len(vectors) if finite else 0, *{len(vector) for vector in vectors}]


def _ranked(results: Sequence[dict[str, Any]], count: int, documents: int) -> bool:
    """The best first, each document at most once, and as many as were asked for."""
    scores, places = [entry["relevance_score"] for entry in results], {entry["index"] for entry in results}
    ordered = scores == sorted(scores, reverse=True) and all(map(math.isfinite, scores))
    return ordered and len(places) == len(results) == count and places <= set(range(documents))
