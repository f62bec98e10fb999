"""What `/metrics` exports, in one table. `docs/metrics.md` is made from it: `python -m tenure.observe.metric_table`."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from tenure.outcomes import Outcome


class Kind(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    INFO = "info"


@dataclass(frozen=True)
class Figure:
    """One family of series. `name` is as exported, without what a histogram's series add."""

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    meaning: str
    moves: str
    """When it changes."""


_TEXT = """\
tenure_build_info info - version
    Always 1; the version that runs.
    ~ never
tenure_requests_arrived_total counter requests route
    Work requests since the server started.
    ~ when the head of a request has been read
tenure_requests_total counter requests model,route,outcome
    Work requests that are over, each under its one outcome. Without a model: ended before it was known. Arrived
    = sum of these + open, at every moment.
    ~ when nothing runs or is held for a request any more
tenure_open_requests gauge requests model,stage
    Work requests that are open, each in one stage, so the sum is all of them. received: being read, checked, or
    put to an engine (without a model); queued: admitted, and in no step yet; prefill: in a step, with no output
    yet; answering: with output; ending: the engine has let go, the rest of the answer is being written. Those
    of an engine that does not answer count as queued until they have output.
    ~ live
tenure_request_seconds histogram seconds model
    All work requests, however they ended: from the end of the head to the end.
    ~ when a request is over
tenure_time_to_first_token_seconds histogram seconds model
    From the end of a request's head to its first token, once a request. Embeddings and scores have no tokens.
    ~ when the first token comes; never for a request that ends before
tenure_inter_token_seconds histogram seconds model
    Between two outputs of one sequence, as they come from the engine.
    ~ with each output but a sequence's first
tenure_cancel_seconds histogram seconds model
    Work requests whose client left: from its leaving until nothing ran or was held for them.
    ~ when such a request is over
tenure_engine_cancel_seconds histogram seconds model
    From the order to end a request early, for whatever reason, until its engine held nothing of it.
    ~ when the engine acknowledges it
tenure_request_prompt_tokens histogram tokens model
    Prompt tokens of a request; each prompt once, however many choices it has.
    ~ when a request ends as ok
tenure_request_output_tokens histogram tokens model
    Output tokens of a request, all its sequences together. Embeddings and scores have none.
    ~ when a request ends as ok
tenure_engine_up gauge - model,engine
    1 for an engine that answers, 0 for one that does not, which shows nothing of what follows.
    ~ live
tenure_ledger_conserved gauge - model,engine
    1 while the engine's ledger adds up. 0 is a bug.
    ~ when an audit fails; then it stays 0 until the engine starts anew
tenure_queue_seconds histogram seconds model,engine
    From a request's admission to the first step with a row of it.
    ~ when that step begins
tenure_prefill_seconds histogram seconds model,engine
    From a request's first step to its first token.
    ~ when the first token is sampled
tenure_decode_seconds histogram seconds model,engine
    From a request's first token to its last one.
    ~ when a request with tokens ends as ok
tenure_inference_seconds histogram seconds model,engine
    From a request's first step to its end in the engine.
    ~ when a request ends as ok
tenure_step_seconds histogram seconds model,engine
    How long a step took.
    ~ when a step lands
tenure_step_rows histogram sequences model,engine
    Sequences in a step.
    ~ when a step lands
tenure_step_tokens histogram tokens model,engine
    Tokens computed in a step.
    ~ when a step lands
tenure_engine_steps_total counter steps model,engine
    Steps since the engine started.
    ~ when one is planned
tenure_kv_blocks gauge blocks model,engine,state
    KV blocks: free, cached (free to be used for something else), leased, quarantined. Their sum is the total.
    ~ live
tenure_slots gauge slots model,engine,state
    Batch slots: free, leased.
    ~ live
tenure_items gauge sequences model,engine,state
    Sequences that are not finished: waiting, fetching_kv, running, preempted, stalled.
    ~ live
tenure_permits_held gauge - model,engine,kind
    What is admitted and not over, in requests, items (sequences) and tokens (of prompts).
    ~ live
tenure_permits_limit gauge - model,engine,kind
    How many items and tokens may be admitted at a time.
    ~ never
tenure_tokens_total counter tokens model,engine,kind
    computed by the model; of these recomputed after a preemption, and wasted on requests that did not end as
    ok; cached: found in the prefix cache instead; sampled: new ones.
    ~ when a step lands; cached when a sequence starts; wasted when its request is over
tenure_prompt_tokens_total counter tokens model,engine
    Tokens of prompts; each prompt once, however many choices it has.
    ~ with the first output of a request
tenure_prefix_cache_queried_tokens_total counter tokens model,engine
    Tokens that were looked up in the prefix cache; the share of kind cached in them is the hit rate.
    ~ when a sequence starts, or starts again after a preemption
tenure_items_finished_total counter sequences model,engine,finish_reason
    Sequences that have finished, by finish reason; cancelled ones are none of them.
    ~ when a sequence finishes
tenure_preemptions_total counter preemptions model,engine
    How often a sequence lost its blocks and had to be computed again.
    ~ when it happens
tenure_unmatched_messages_total counter messages model,engine
    Orders about something that was over when they came. Cancels that meet an end on the way are such.
    ~ when one comes
"""
"""For each family a line with name, kind, unit and labels; then what it means; then, after a tilde, when it changes."""


def _figures(text: str) -> Iterator[Figure]:
    for entry in re.split(r"\n(?=\S)", text.rstrip()):
        head, body = entry.split("\n", 1)
        name, kind, unit, labels = (word.strip("-") for word in head.split())
        meaning, moves = (" ".join(part.split()) for part in body.split("~"))
        yield Figure(name, Kind(kind), unit, tuple(filter(None, labels.split(","))), meaning, moves)


TABLE = tuple(_figures(_TEXT))
FIGURES = {figure.name: figure for figure in TABLE}


def document() -> str:
    """The text of `docs/metrics.md`."""
    rows = [
        f"| `{figure.name}` | {figure.kind} | {figure.meaning} | {figure.unit} | "
        f"{', '.join(f'`{label}`' for label in figure.labels)} | {figure.moves} |"
        for figure in TABLE
    ]
    outcomes = ", ".join(f"`{outcome}`" for outcome in Outcome)
    return "\n".join((_HEAD.format(outcomes=outcomes), *rows, ""))


_HEAD = """\
# Metrics

`GET /metrics` answers for the whole server, whichever of its processes is asked, in the text format of Prometheus.
Figures are read when they are asked for; none is kept from the last time that something happened. An engine that does
not answer within a second shows `tenure_engine_up` 0 and none of its other figures.

- Only work requests count: those that ask a model for something. Health checks, `/metrics` and the like do not.
- Counters and histograms of the API processes go on when one of them is replaced; those of an engine begin at zero when
  it starts anew, as `rate()` expects.
- `model` is the first served name. `engine` is the number of the engine among those of its model, from 0.
- `outcome` is one of {outcomes}.
- With `--vllm-metrics` the same figures are exported under vLLM's names too, with the labels `model_name` and `engine`.
  What only the API processes know stands under engine 0 there. In `vllm:request_success_total` the reasons abort and
  error count requests, the others sequences. vLLM's boards `grafana`, `performance_statistics`, `query_statistics` find
  all that they ask for, and so does the endpoint picker of Kubernetes' inference gateways. In its newer boards panels
  stay empty for what is not counted here: figures of processes, of HTTP by status, other caches, drafts. Histograms of
  requests have one sample for a request, however many sequences it has. In `vllm:prompt_tokens_total` and its like each
  sequence counts its prompt, as with vLLM; in `vllm:admission_rejections_total` there is one reason, `queue_full`.

| Name | Kind | Meaning | Unit | Labels | Moves |
|---|---|---|---|---|---|"""


if __name__ == "__main__":
    print(document(), end="")
