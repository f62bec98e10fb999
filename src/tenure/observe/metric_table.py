"""What `/metrics` exports, in one table. `docs/metrics.md` is made from it: `python -m tenure.observe.metric_table`."""

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


_G, _C, _H = Kind.GAUGE, Kind.COUNTER, Kind.HISTOGRAM
_MODEL = ("model",)
_ENGINE = ("model", "engine")

TABLE = (
    Figure("tenure_build_info", Kind.INFO, "", ("version",), "Always 1; the version that runs.", "never"),
    # what the API processes count
    Figure(
        "tenure_requests_arrived_total",
        _C,
        "requests",
        ("route",),
        "Work requests since the server started.",
        "when the head of a request has been read",
    ),
    Figure(
        "tenure_requests_total",
        _C,
        "requests",
        ("model", "route", "outcome"),
        "Work requests that are over, each under its one outcome. Without a model: ended before it was known. "
        "Arrived = sum of these + open, at every moment.",
        "when nothing runs or is held for a request any more",
    ),
    Figure(
        "tenure_open_requests",
        _G,
        "requests",
        ("model", "stage"),
        "Work requests that are open, each in one stage, so the sum is all of them. received: being read, checked, or "
        "put to an engine (without a model); queued: admitted, and in no step yet; prefill: in a step, with no output "
        "yet; answering: with output; ending: the engine has let go, the rest of the answer is being written. Those "
        "of an engine that does not answer count as queued until they have output.",
        "live",
    ),
    Figure(
        "tenure_request_seconds",
        _H,
        "seconds",
        _MODEL,
        "All work requests, however they ended: from the end of the head to the end.",
        "when a request is over",
    ),
    Figure(
        "tenure_time_to_first_token_seconds",
        _H,
        "seconds",
        _MODEL,
        "From the end of a request's head to its first token, once a request. Embeddings and scores have no tokens.",
        "when the first token comes; never for a request that ends before",
    ),
    Figure(
        "tenure_inter_token_seconds",
        _H,
        "seconds",
        _MODEL,
        "Between two outputs of one sequence, as they come from the engine.",
        "with each output but a sequence's first",
    ),
    Figure(
        "tenure_cancel_seconds",
        _H,
        "seconds",
        _MODEL,
        "Work requests whose client left: from its leaving until nothing ran or was held for them.",
        "when such a request is over",
    ),
    Figure(
        "tenure_engine_cancel_seconds",
        _H,
        "seconds",
        _MODEL,
        "From the order to end a request early, for whatever reason, until its engine held nothing of it.",
        "when the engine acknowledges it",
    ),
    Figure(
        "tenure_request_prompt_tokens",
        _H,
        "tokens",
        _MODEL,
        "Prompt tokens of a request; each prompt once, however many choices it has.",
        "when a request ends as ok",
    ),
    Figure(
        "tenure_request_output_tokens",
        _H,
        "tokens",
        _MODEL,
        "Output tokens of a request, all its sequences together. Embeddings and scores have none.",
        "when a request ends as ok",
    ),
    # what the engines count
    Figure(
        "tenure_engine_up",
        _G,
        "",
        _ENGINE,
        "1 for an engine that answers, 0 for one that does not, which shows nothing of what follows.",
        "live",
    ),
    Figure(
        "tenure_ledger_conserved",
        _G,
        "",
        _ENGINE,
        "1 while the engine's ledger adds up. 0 is a bug.",
        "when an audit fails; then it stays 0 until the engine starts anew",
    ),
    Figure(
        "tenure_queue_seconds",
        _H,
        "seconds",
        _ENGINE,
        "From a request's admission to the first step with a row of it.",
        "when that step begins",
    ),
    Figure(
        "tenure_prefill_seconds",
        _H,
        "seconds",
        _ENGINE,
        "From a request's first step to its first token.",
        "when the first token is sampled",
    ),
    Figure(
        "tenure_decode_seconds",
        _H,
        "seconds",
        _ENGINE,
        "From a request's first token to its last one.",
        "when a request with tokens ends as ok",
    ),
    Figure(
        "tenure_inference_seconds",
        _H,
        "seconds",
        _ENGINE,
        "From a request's first step to its end in the engine.",
        "when a request ends as ok",
    ),
    Figure("tenure_step_seconds", _H, "seconds", _ENGINE, "How long a step took.", "when a step lands"),
    Figure("tenure_step_rows", _H, "sequences", _ENGINE, "Sequences in a step.", "when a step lands"),
    Figure("tenure_step_tokens", _H, "tokens", _ENGINE, "Tokens computed in a step.", "when a step lands"),
    Figure("tenure_engine_steps_total", _C, "steps", _ENGINE, "Steps since the engine started.", "when one is planned"),
    Figure(
        "tenure_kv_blocks",
        _G,
        "blocks",
        (*_ENGINE, "state"),
        "KV blocks: free, cached (free to be used for something else), leased, quarantined. Their sum is the total.",
        "live",
    ),
    Figure("tenure_slots", _G, "slots", (*_ENGINE, "state"), "Batch slots: free, leased.", "live"),
    Figure(
        "tenure_items",
        _G,
        "sequences",
        (*_ENGINE, "state"),
        "Sequences that are not finished: waiting, fetching_kv, running, preempted, stalled.",
        "live",
    ),
    Figure(
        "tenure_permits_held",
        _G,
        "",
        (*_ENGINE, "kind"),
        "What is admitted and not over, in requests, items (sequences) and tokens (of prompts).",
        "live",
    ),
    Figure(
        "tenure_permits_limit",
        _G,
        "",
        (*_ENGINE, "kind"),
        "How many items and tokens may be admitted at a time.",
        "never",
    ),
    Figure(
        "tenure_tokens_total",
        _C,
        "tokens",
        (*_ENGINE, "kind"),
        "computed by the model; of these recomputed after a preemption, and wasted on requests that did not end as ok; "
        "cached: found in the prefix cache instead; sampled: new ones.",
        "when a step lands; cached when a sequence starts; wasted when its request is over",
    ),
    Figure(
        "tenure_prompt_tokens_total",
        _C,
        "tokens",
        _ENGINE,
        "Tokens of prompts; each prompt once, however many choices it has.",
        "with the first output of a request",
    ),
    Figure(
        "tenure_prefix_cache_queried_tokens_total",
        _C,
        "tokens",
        _ENGINE,
        "Tokens that were looked up in the prefix cache; the share of kind cached in them is the hit rate.",
        "when a sequence starts, or starts again after a preemption",
    ),
    Figure(
        "tenure_items_finished_total",
        _C,
        "sequences",
        (*_ENGINE, "finish_reason"),
        "Sequences that have finished, by finish reason; cancelled ones are none of them.",
        "when a sequence finishes",
    ),
    Figure(
        "tenure_preemptions_total",
        _C,
        "preemptions",
        _ENGINE,
        "How often a sequence lost its blocks and had to be computed again.",
        "when it happens",
    ),
    Figure(
        "tenure_unmatched_messages_total",
        _C,
        "messages",
        _ENGINE,
        "Orders about something that was over when they came. Cancels that meet an end on the way are such.",
        "when one comes",
    ),
)
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
