"""One of each message, with every field set to something that is not its default."""

from tenure.outcomes import FinishReason, Outcome
from tenure.pooling import Pooled, PoolingParams, PoolingTask
from tenure.sampling import RepetitionDetection, SamplingParams, TokenLogprobs
from tenure.token_lists import TokenLists
from tenure.wire import messages as wire

SAMPLING = SamplingParams(
    max_tokens=7,
    min_tokens=2,
    temperature=0.25,
    top_p=0.5,
    top_k=40,
    min_p=0.125,
    presence_penalty=-1.5,
    frequency_penalty=1.5,
    repetition_penalty=1.25,
    seed=-(2**63),
    eos_token_ids=(1, 2),
    ignore_eos=True,
    stop_token_ids=(3,),
    logit_bias=((4, -100.0), (5, 2.5)),
    allowed_token_ids=(6, 7),
    bad_words=((8, 9), (10,)),
    logprobs=-1,
    logprob_token_ids=(11,),
    prompt_logprobs=0,
    repetition_detection=RepetitionDetection(max_size=4, min_size=2, min_count=3),
)
LOGPROBS = TokenLogprobs.of(-0.5, 2, [1, 2], [-0.25, -9999.0])
CARD = wire.ModelCard(
    name="tiny",
    served_names=("tiny", "žluťoučký"),
    source="/models/tiny",
    vocabulary_size=32,
    max_model_len=64,
    block_size=4,
    num_blocks=16,
    dtype="float32",
    tasks=("generate", "embed"),
    load_seconds=1.5,
)
OUTPUT = wire.ItemOutput(
    9, 1, [5, 6], [LOGPROBS, LOGPROBS], FinishReason.LENGTH, 3, [None, LOGPROBS], 8, Pooled(2, b"12345678")
)
LEDGER = wire.EngineLedger(
    model="tiny",
    index=1,
    epoch="e",
    answering=True,
    blocks=wire.BlockCounts(16, 10, 3, 2, 1),
    slots=wire.SlotCounts(4, 3, 1),
    permits=wire.PermitCounts(wire.PermitCount(1), wire.PermitCount(2, 8), wire.PermitCount(30, 90)),
    items=wire.ItemCounts(1, 2, 3, 4, 5, 6),
    finish_reasons={"stop": 4},
    holders=[wire.HolderRow("item 7", "cmpl-1", "label", "running", 2, 0.5)],
    conserved=False,
    tokens=wire.TokenCounts(1, 2, 3, 4, 5),
    steps=6,
    preemptions=7,
    unmatched_messages=8,
    figures=wire.StatsSnapshot(1, 2, 3, queue_seconds=wire.HistogramCounts((0.5, 1.0), (1, 2, 3), 7.5)),
)

TO_ENGINE: tuple[wire.ToEngine, ...] = (
    wire.Hello(worker=3, version=2),
    wire.Submit(
        request=2**63 - 1,
        public_id="cmpl-1",
        prompts=TokenLists.of([[1, 2, 3], [4]]),
        sampling=SAMPLING,
        n=2,
        label="mine",
        priority=-5,
        cache_salt="salt",
        pooling=PoolingParams(task=PoolingTask.TOKEN_EMBED, activation=False, dimensions=7),
        segments=[2, 0],
        begin_within=1.5,
        end_within=2.5,
        unattended=[1, 0],
    ),
    wire.Cancel(request=2**63, outcome=Outcome.CLIENT_CANCELLED),
    wire.FinishItem(request=2**64 - 1, index=3),
    wire.Stall(request=2**63),
    wire.Resume(request=7),
    wire.CancelByName(sequence=8, ids=["cmpl-1"], labels=["mine"], owner="somebody"),
    wire.CancelledByName(sequence=8, requests=[wire.CancelledRequest("cmpl-1", Outcome.ABORTED, 0.25)]),
    wire.ReleaseTickets(tickets=["tnr1.a.b", ""]),
    wire.AskLedger(sequence=-(2**63)),
)
FROM_ENGINE: tuple[wire.FromEngine, ...] = (
    wire.Ready(card=CARD, epoch="e"),
    wire.Unready(reason="loading"),
    wire.Admitted(request=2**63 + 1),
    wire.Refused(request=4, outcome=Outcome.QUEUE_FULL, code="queue_full", message="full", retry_after=1.5),
    wire.StepOutput(step=12, outputs=[OUTPUT, wire.ItemOutput(9, 0, [])]),
    wire.Ended(request=9, outcome=Outcome.ENGINE_ERROR, message="broken", queue_seconds=0.25),
    wire.Heartbeat(outstanding_tokens=99),
    wire.CancelByName(sequence=8, ids=["cmpl-1"], labels=["mine"], owner="somebody"),
    wire.CancelledByName(sequence=8, requests=[wire.CancelledRequest("cmpl-1", Outcome.ABORTED, 0.25)]),
    wire.LedgerReply(sequence=5, ledger=LEDGER),
)
SMALLEST: tuple[wire.ToEngine | wire.FromEngine, ...] = (
    wire.Hello(worker=0),
    wire.Submit(request=1, public_id="", prompts=TokenLists.of([[1]]), sampling=SamplingParams(max_tokens=1)),
    wire.Refused(request=1, outcome=Outcome.INVALID, code="c", message="m"),
    wire.StepOutput(step=1, outputs=[wire.ItemOutput(1, 0, [])]),
    wire.Ended(request=1, outcome=Outcome.OK),
    wire.Heartbeat(),
    wire.CancelByName(sequence=1, ids=[]),
)
"""With every default left alone."""
