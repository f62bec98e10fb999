"""A validated generation request: everything that the engine, the `Answer` and the writers of replies need."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tenure.text.detokenizer import TextOptions
from tenure.token_lists import TokenLists
from tenure.wire.messages import Submit
from tenure.wire.token_masks import PackedSampling


@dataclass(frozen=True)
class ReportOptions:
    """What the response reports besides the text."""

    logprobs: bool = False
    top_logprobs: int = 0
    """Alternatives per token; -1 all."""
    token_ids: bool = False
    tokens_as_ids: bool = False
    """Tokens print as `token_id:N`."""
    prompt_logprobs: int | None = None
    """Alternatives per prompt token; -1 all."""
    include_usage: bool = False
    continuous_usage: bool = False
    stream_interval: int = 1
    """Tokens per streamed chunk at least."""


@dataclass(frozen=True)
class KVTransfer:
    """What a request asks of two engines: that its prompts be handed over, or that tickets for them be used."""

    handover: bool = False
    tickets: Sequence[str] = ()
    """One for each prompt, or none."""


@dataclass(frozen=True)
class Job:
    """Items are numbered prompt * n + choice."""

    model: str
    """Its first served name."""
    n: int
    text: TextOptions
    report: ReportOptions
    stream: bool
    sampling: PackedSampling
    prompts: TokenLists = field(default_factory=TokenLists)
    prompt_texts: Sequence[str] = ()
    """One per prompt; empty unless the response shows them."""
    echo_prompt: bool = False
    """Completions only: each choice repeats its prompt first."""
    echo: str | None = None
    """Chat only: the text of the last message, which the answer repeats first."""
    role: str = "assistant"
    priority: int = 0
    cache_salt: str = ""
    transfer: KVTransfer = KVTransfer()

    @property
    def items(self) -> int:
        return len(self.prompts) * self.n

    @property
    def prompt_tokens(self) -> int:
        """Each prompt counts once."""
        return self.prompts.total

    def submit(self) -> Submit:
        """The message for the engine, but for the ids of the request."""
        return Submit(
            prompts=self.prompts,
            sampling=self.sampling.params,
            masks=self.sampling.masks,
            n=self.n,
            priority=self.priority,
            cache_salt=self.cache_salt,
            handover=self.transfer.handover,
            tickets=list(self.transfer.tickets),
        )
