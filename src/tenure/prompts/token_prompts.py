"""From the prompts of a body to lists of token ids that fit the model's window, or a 400."""

from collections.abc import Sequence
from dataclasses import dataclass

from tenure.http.errors import context_length_exceeded, invalid_request
from tenure.process.compute_threads import stop_if_cancelled
from tenure.prompts.ranges import check_ids
from tenure.text.tokenizer import Tokenizer
from tenure.wire.messages import ModelCard

TextOrIds = str | Sequence[int | float]
PromptField = str | Sequence[str | int | float | Sequence[int | float]]


@dataclass(frozen=True)
class Window:
    """The sizes of a model that bound one item."""

    max_model_len: int
    pool_tokens: int
    vocabulary_size: int

    @property
    def capacity(self) -> int:
        """Most tokens of one item, prompt and output together."""
        return min(self.max_model_len, self.pool_tokens)


def window_of(card: ModelCard) -> Window:
    """The sizes that an engine's card gives."""
    keeps_tokens = card.num_blocks > 0  # an encoder has no KV cache, so the window alone bounds it
    return Window(
        max_model_len=card.max_model_len,
        pool_tokens=card.num_blocks * card.block_size if keeps_tokens else card.max_model_len,
        vocabulary_size=card.vocabulary_size,
    )


@dataclass(frozen=True)
class Truncation:
    """Cut a prompt to `limit` tokens: side `left` keeps its end, `right` its start."""

    limit: int
    side: str
    field: str | None = None
    """The request's field that asks for it; None when none does."""


def split_prompts(prompt: PromptField | None, max_prompts: int, param: str = "prompt") -> list[TextOrIds]:
    """Return the prompts that the field `param` holds: a text, texts, token ids or lists of token ids."""
    if prompt is None:
        raise invalid_request(f"`{param}` is required.", param)
    if isinstance(prompt, str):
        return [prompt]
    if all(isinstance(entry, (int, float)) for entry in prompt):
        return [prompt]  # type: ignore[list-item]
    if len(prompt) > max_prompts:
        raise invalid_request(f"`{param}` takes at most {max_prompts} entries.", param)
    texts = sum(isinstance(entry, str) for entry in prompt)
    lists = sum(isinstance(entry, list) for entry in prompt)
    if len(prompt) in (texts, lists):
        return list(prompt)  # type: ignore[arg-type]
    raise invalid_request(f"`{param}` must be a string, strings, token ids, or lists of token ids.", param)


def tokenise(
    prompts: Sequence[TextOrIds],
    tokenizer: Tokenizer,
    vocabulary_size: int,
    *,
    add_special_tokens: bool,
    truncation: Truncation | None,
    window: Window,
    param: str,
) -> list[list[int]]:
    """Return the token ids of each prompt, truncated if requested. Raises a 400.

    A text that could not fit even if all of it were the vocabulary's longest token is refused without tokenizing it.
    """
    tokens: list[list[int]] = []
    for position, prompt in enumerate(prompts):
        if isinstance(prompt, str):
            if truncation is None:
                where = "The prompt" if len(prompts) == 1 else f"`{param}[{position}]`"
                _check_room(len(prompt.encode()) // tokenizer.longest_token, window, where, param, "at least ")
            ids = tokenizer.encode(prompt, add_special_tokens, stop_if_cancelled)
        else:
            name = "prompt" if len(prompts) == 1 else f"prompt[{position}]"
            ids = check_ids(name, prompt, vocabulary_size, tokenizer.without_token)
        tokens.append(_truncate(ids, truncation, tokenizer.bos_token_id) if truncation else ids)
    return tokens


def _truncate(ids: list[int], truncation: Truncation, bos_token_id: int | None) -> list[int]:
    limit = truncation.limit
    if len(ids) <= limit:
        return ids
    if truncation.side == "right" or limit == 0:
        return ids[:limit]
    if bos_token_id is not None and ids[0] == bos_token_id:
        return [bos_token_id, *ids[len(ids) - limit + 1 :]]  # the model expects its begin token whatever is cut
    return ids[len(ids) - limit :]


def check_truncation(
    limit: float | None, side: str, *, most: int, all_of_it: int, limit_name: str
) -> Truncation | None:
    """Read the truncation fields: null cuts nothing, -1 cuts to `all_of_it`, and `most` is the highest limit."""
    if side not in ("left", "right"):
        raise invalid_request("`truncation_side` must be `left` or `right`.", "truncation_side")
    if limit is None:
        return None
    if limit == 0:
        raise invalid_request("`truncate_prompt_tokens` of 0 leaves no tokens.", "truncate_prompt_tokens")
    if limit > most:
        raise invalid_request(f"`truncate_prompt_tokens` must not exceed {limit_name}.", "truncate_prompt_tokens")
    return Truncation(all_of_it if limit == -1 else int(limit), side, "truncate_prompt_tokens")


def fit(prompts: Sequence[Sequence[int]], requested: int | None, window: Window, param: str) -> int:
    """Return `max_tokens`: `requested` (None: no limit), clamped to what the shortest prompt leaves of the window.

    Raises a 400 for a prompt without tokens or without room for one more token, even if none is to be generated.
    """
    for position, prompt in enumerate(prompts):
        where = "The prompt" if len(prompts) == 1 else f"`{param}[{position}]`"
        if not prompt:
            name = f"{param}[{position}]" if param == "prompt" else param
            raise invalid_request(f"`{name}` has no tokens.", param)
        _check_room(len(prompt), window, where, param)
    room = window.capacity - min(len(prompt) for prompt in prompts)
    return room if requested is None else min(requested, room)


def _check_room(length: int, window: Window, where: str, param: str, estimated: str = "") -> None:
    if length < window.capacity:
        return
    if window.max_model_len <= window.pool_tokens:
        limit = f"the model's window is {window.max_model_len} tokens"
    else:
        limit = f"the server's KV pool holds {window.pool_tokens} tokens"
    message = f"{where} has {estimated}{length} tokens and one more has to fit, but {limit}."
    raise context_length_exceeded(f"{message} Please reduce the length of the input prompt.", param)
