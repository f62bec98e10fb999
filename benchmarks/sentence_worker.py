"""sentence-transformers in a process of its own: reads rounds from stdin, one JSON object a line; prints their rates.

A line is a `Round` of `benchmarks.workload` and how many threads call. For reranking, each call encodes the documents
of one request together with its query, at the library's own batch size, and takes the cosines. For embedding, a single
caller encodes what all clients ask for at a time as one list: what the best server around the library could do, without
the cost of being one. Of several callers, each encodes one request a call.
"""

import sys
import threading
import time
from functools import partial

from sentence_transformers import SentenceTransformer, util

from benchmarks.texts import Texts
from benchmarks.workload import DOCUMENTS, Kind, Round, seed_of, serve_rounds


def call(model: SentenceTransformer, given: Round, texts: Texts, requests: int) -> int:
    """One call, for so many requests if they are for embeddings; how many pairs or inputs it was."""
    if given.kind is Kind.EMBED:
        inputs = texts.many(requests * given.batch, given.words)
        model.encode(inputs, show_progress_bar=False).tolist()
        return len(inputs)
    vectors = model.encode([texts.one(8), *texts.many(DOCUMENTS, given.words)], show_progress_bar=False)
    util.cos_sim(vectors[0], vectors[1:]).tolist()
    return DOCUMENTS


def measure(model: SentenceTransformer, given: Round, callers: int) -> float:
    """Pairs or inputs per second with so many threads that call."""
    done: list[int] = []
    requests = given.clients if callers == 1 else 1

    def run(number: int) -> None:
        texts = Texts(seed_of(given, number))
        while time.perf_counter() < began + given.seconds:
            done.append(call(model, given, texts, requests))

    began = time.perf_counter()
    threads = [threading.Thread(target=run, args=(number,)) for number in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - began)


def main() -> None:
    model = SentenceTransformer(sys.argv[1], device="cpu")
    serve_rounds(partial(measure, model))


if __name__ == "__main__":
    main()
