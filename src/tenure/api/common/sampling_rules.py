"""From the sampling fields of a body to `SamplingParams`: every range, every default, every cross-check.

Precedence of a value: the request, the model's generation config, the table below.
"""

import re
import secrets
from collections.abc import Mapping, Sequence

from tenure.api.common.fields import RepetitionDetectionField, SamplingFields
from tenure.config import ApiSettings
from tenure.http.errors import echo, invalid_request, unsupported
from tenure.prompts.ranges import RANGES, Range, check_ids, check_number
from tenure.prompts.text_model import TextModel
from tenure.sampling import RepetitionDetection, SamplingParams
from tenure.text.tokenizer import Tokenizer

Numbers = Mapping[str, int | float]

GREEDY_BELOW = 1e-5
MAX_STOP_CHARACTERS = 4096
MAX_BAD_WORDS = 128
MAX_BAD_WORD_CHARACTERS = 1024
MAX_LOGPROB_IDS = 128
MAX_PATTERN = 256  # the engine looks for each size after each token
MAX_REPETITIONS = 4096
MAX_PENALTY = 1e6  # beyond it a float32 logit overflows, and the outcome of a draw no longer changes

_KEY = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_SALT_EXCLUDES = frozenset("@/\\\0")


def checked_numbers(request: SamplingFields, skip: str = "") -> dict[str, int | float]:
    """Return the numeric fields that the request sets, but for `skip`, in range and of the right type."""
    numbers: dict[str, int | float] = {}
    for name, allowed in RANGES.items():
        value = getattr(request, name, None)
        if value is not None and not isinstance(value, bool) and name != skip:
            numbers[name] = check_number(name, value, allowed)
    return numbers


def refuse_unserved(request: SamplingFields, numbers: Numbers) -> None:
    """Raise a 400 for the first field that asks for something that this server does not support."""
    if numbers.get("best_of", 1) > 1:
        raise invalid_request("`best_of` above 1 is not supported; use `n`.", "best_of")
    if request.use_beam_search:
        raise unsupported("use_beam_search")
    if numbers.get("thinking_token_budget", -1) != -1:
        raise unsupported("thinking_token_budget")
    if request.response_format is not None and request.response_format.type != "text":
        raise invalid_request("`response_format` of a type other than `text` is not supported yet.", "response_format")
    for name in ("structured_outputs", "ec_transfer_params", "vllm_xargs", "watermarking"):
        if getattr(request, name) not in (None, False, {}):
            raise unsupported(name)


def sampling_params(
    request: SamplingFields,
    numbers: Numbers,
    model: TextModel,
    *,
    vocabulary_size: int,
    max_tokens: int,
    logprobs: int | None,
    prompt_logprobs: int | None,
    seed: int | None,
) -> SamplingParams:
    """Build the engine's parameters; `max_tokens` is already clamped, `logprobs` already checked.

    `seed` is the default for a request without one; None or -1 draws one. `logprob_token_ids` replace the best
    alternatives of each token.
    """
    top_k = int(_first(numbers, model, "top_k", 0))
    repetition_penalty = float(_first(numbers, model, "repetition_penalty", 1.0))
    min_tokens = int(numbers.get("min_tokens", 0))
    if min_tokens > max_tokens:
        raise invalid_request(
            f"`min_tokens` must not exceed the {max_tokens} tokens that may be generated.", "min_tokens"
        )
    tokenizer = model.tokenizer
    logprob_token_ids = _logprob_token_ids(request, vocabulary_size, tokenizer, logprobs)
    params = SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=resolved_temperature(numbers, model),
        top_p=float(_first(numbers, model, "top_p", 1.0)),
        top_k=top_k if 0 < top_k < vocabulary_size else 0,
        min_p=float(_first(numbers, model, "min_p", 0.0)),
        presence_penalty=float(numbers.get("presence_penalty", 0.0)),
        frequency_penalty=float(numbers.get("frequency_penalty", 0.0)),
        repetition_penalty=min(max(repetition_penalty, 1 / MAX_PENALTY), MAX_PENALTY),
        seed=_seed(numbers.get("seed"), seed),
        eos_token_ids=model.eos_token_ids,
        ignore_eos=bool(request.ignore_eos),
        stop_token_ids=_ids(request, "stop_token_ids", vocabulary_size, tokenizer),
        logit_bias=_logit_bias(request.logit_bias, vocabulary_size, tokenizer),
        allowed_token_ids=_allowed_token_ids(request, vocabulary_size, tokenizer),
        bad_words=_bad_words(request.bad_words or (), tokenizer, vocabulary_size),
        logprobs=0 if logprob_token_ids else logprobs,
        logprob_token_ids=logprob_token_ids,
        prompt_logprobs=prompt_logprobs,
        repetition_detection=_repetition_detection(request.repetition_detection),
    )
    _check_something_left(params, vocabulary_size)
    return params


def _check_something_left(params: SamplingParams, vocabulary_size: int) -> None:
    """Refuse masks that leave no token to draw from the first token on."""
    barred = {word[0] for word in params.bad_words if len(word) == 1}
    if params.min_tokens:
        barred.update(params.eos_token_ids, params.stop_token_ids)
    allowed = params.allowed_token_ids or range(vocabulary_size)
    if len(barred) >= len(allowed) and barred.issuperset(allowed):
        message = "`allowed_token_ids`, `bad_words`, `min_tokens` and the stop tokens together leave no token to draw."
        raise invalid_request(message, "allowed_token_ids")


def resolved_temperature(numbers: Numbers, model: TextModel) -> float:
    """Return the temperature; 0 is greedy, and so is what is close to it."""
    temperature = float(_first(numbers, model, "temperature", 1.0))
    return 0.0 if temperature < GREEDY_BELOW else temperature


def check_choices(numbers: Numbers, model: TextModel, settings: ApiSettings) -> int:
    """Return `n`, within the server's limit and 1 for a greedy request."""
    n = int(numbers.get("n", 1))
    if n > settings.max_n:
        raise invalid_request(f"`n` must be an integer from 1 to {settings.max_n}.", "n")
    if n > 1 and resolved_temperature(numbers, model) == 0.0:
        raise invalid_request("`n` must be 1 when `temperature` is 0: all choices would be the same.", "n")
    return n


def check_logprob_count(name: str, count: int, settings: ApiSettings, vocabulary_size: int) -> int:
    """Return `count` if `--max-logprobs` allows it, else raise a 400; -1 (all) is allowed only where that is -1."""
    if settings.max_logprobs == -1:
        return -1 if count >= vocabulary_size else count
    if count == -1:
        raise invalid_request(f"`{name}` of -1 is refused by this server; at most {settings.max_logprobs}.", name)
    if count > settings.max_logprobs:
        raise invalid_request(f"`{name}` must be an integer from 0 to {settings.max_logprobs}.", name)
    return count


def check_prompt_logprobs(
    request: SamplingFields, numbers: Numbers, settings: ApiSettings, vocabulary_size: int
) -> int | None:
    if "prompt_logprobs" not in numbers:
        return None
    count = check_logprob_count("prompt_logprobs", int(numbers["prompt_logprobs"]), settings, vocabulary_size)
    if request.stream and count != 0:
        raise invalid_request("`prompt_logprobs` cannot be streamed.", "prompt_logprobs")
    return count


def check_stop(stop: str | Sequence[str] | None, most: int) -> tuple[str, ...]:
    """Return the stop strings: at most so many, none empty."""
    if stop is None:
        return ()
    strings = (stop,) if isinstance(stop, str) else tuple(stop)
    if len(strings) > most:
        raise invalid_request(f"`stop` takes at most {most} strings.", "stop")
    if not all(strings):
        raise invalid_request("`stop` must not contain an empty string.", "stop")
    if any(len(string) > MAX_STOP_CHARACTERS for string in strings):
        raise invalid_request(f"A string in `stop` has at most {MAX_STOP_CHARACTERS} characters.", "stop")
    return strings


def check_cache_salt(salt: str | None) -> str:
    if salt is None:
        return ""
    if not 1 <= len(salt) <= 128 or _SALT_EXCLUDES & set(salt):
        raise invalid_request("`cache_salt` takes 1 to 128 characters, without `@`, `/`, `\\` and NUL.", "cache_salt")
    return salt


def check_priority(numbers: Numbers, header: str | None, settings: ApiSettings) -> int:
    """Return the priority, 0 when scheduling is first come, first served; the header overrides the field."""
    priority = numbers.get("priority", 0)
    if header is not None:
        if not _KEY.fullmatch(header.strip()):
            raise invalid_request("The header X-Vllm-Priority must be an integer of 64 bits.", "priority")
        priority = check_number("priority", int(header), RANGES["priority"])
    return int(priority) if settings.scheduling_policy == "priority" else 0


def check_stream_options(request: SamplingFields) -> tuple[bool, bool]:
    """Return (include_usage, continuous_usage_stats); where the first is false, so is the second."""
    options = request.stream_options
    if options is None or options.is_empty:
        return False, False
    if not request.stream:
        raise invalid_request("`stream_options` is only allowed with `stream`.", "stream_options")
    if options.continuous_usage_stats and options.include_usage is None:
        raise invalid_request("`continuous_usage_stats` needs `include_usage`.", "stream_options")
    include = bool(options.include_usage)
    return include, include and bool(options.continuous_usage_stats)


def _seed(asked: float | None, default: int | None) -> int:
    """The seed of a request; -1 means none, as in vLLM."""
    given = [int(seed) for seed in (asked, default) if seed not in (None, -1)]
    return given[0] if given else secrets.randbits(63)


def _first(numbers: Numbers, model: TextModel, name: str, otherwise: float) -> int | float:
    if name in numbers:
        return numbers[name]
    default: int | float | None = getattr(model.defaults, name)
    return otherwise if default is None else default


def _ids(
    request: SamplingFields, name: str, vocabulary_size: int, tokenizer: Tokenizer, most: int | None = None
) -> tuple[int, ...]:
    """Return the different ids of a list of at most `most` entries, by default as many as the vocabulary has."""
    values = getattr(request, name) or ()
    limit = vocabulary_size if most is None else most
    if len(values) > limit:
        raise invalid_request(f"`{name}` takes at most {limit} ids.", name)
    return tuple(dict.fromkeys(check_ids(name, values, vocabulary_size, tokenizer.without_token)))


def _allowed_token_ids(request: SamplingFields, vocabulary_size: int, tokenizer: Tokenizer) -> tuple[int, ...]:
    if request.allowed_token_ids is not None and not request.allowed_token_ids:
        raise invalid_request("`allowed_token_ids` must not be empty.", "allowed_token_ids")
    return _ids(request, "allowed_token_ids", vocabulary_size, tokenizer)


def _logprob_token_ids(
    request: SamplingFields, vocabulary_size: int, tokenizer: Tokenizer, logprobs: int | None
) -> tuple[int, ...]:
    ids = _ids(request, "logprob_token_ids", vocabulary_size, tokenizer, MAX_LOGPROB_IDS)
    if ids and logprobs is None:
        raise invalid_request("`logprob_token_ids` needs `logprobs`.", "logprob_token_ids")
    return ids


def _logit_bias(
    biases: Mapping[str, float] | None, vocabulary_size: int, tokenizer: Tokenizer
) -> tuple[tuple[int, float], ...]:
    pairs: dict[int, float] = {}
    if biases and len(biases) > vocabulary_size:
        raise invalid_request(f"`logit_bias` takes at most {vocabulary_size} biases.", "logit_bias")
    for key, bias in (biases or {}).items():
        if not _KEY.fullmatch(key) or not 0 <= int(key) < vocabulary_size or int(key) in tokenizer.without_token:
            message = f"`logit_bias` has the key {echo(key[:40])}, which is not a token of this model"
            raise invalid_request(f"{message}: ids go from 0 to {vocabulary_size - 1}.", "logit_bias")
        pairs[int(key)] = min(max(bias, -100.0), 100.0)
    return tuple(pairs.items())


def _bad_words(words: Sequence[str], tokenizer: Tokenizer, vocabulary_size: int) -> tuple[tuple[int, ...], ...]:
    """Tokenise each word as the start of a text and after a space, where that makes a different first token."""
    if len(words) > MAX_BAD_WORDS:
        raise invalid_request(f"`bad_words` makes at most {MAX_BAD_WORDS} token sequences.", "bad_words")
    if any(len(word) > MAX_BAD_WORD_CHARACTERS for word in words):
        raise invalid_request(f"A word in `bad_words` has at most {MAX_BAD_WORD_CHARACTERS} characters.", "bad_words")
    sequences: list[tuple[int, ...]] = []
    for word in words:
        bare = word.lstrip()
        if not bare:
            raise invalid_request("`bad_words` must not contain an empty word.", "bad_words")
        plain = tuple(tokenizer.encode(bare, add_special_tokens=False))
        spaced = tuple(tokenizer.encode(f" {bare}", add_special_tokens=False))
        sequences.append(plain)
        if len(spaced) == len(plain) and spaced[0] != plain[0]:
            sequences.append(spaced)
    if len(sequences) > MAX_BAD_WORDS:
        raise invalid_request(f"`bad_words` makes at most {MAX_BAD_WORDS} token sequences.", "bad_words")
    if any(not sequence or max(sequence) >= vocabulary_size for sequence in sequences):
        raise invalid_request("`bad_words` has a word outside the model's vocabulary.", "bad_words")
    return tuple(sequences)


def _repetition_detection(field: RepetitionDetectionField | None) -> RepetitionDetection | None:
    if field is None or not field.max_pattern_size:
        return None
    sizes, counts = Range(1, MAX_PATTERN, whole=True), Range(2, MAX_REPETITIONS, whole=True)
    repetitions = 2 if field.min_count is None else field.min_count
    max_size = int(check_number("repetition_detection.max_pattern_size", field.max_pattern_size, sizes))
    min_size = int(check_number("repetition_detection.min_pattern_size", field.min_pattern_size or 1, sizes))
    min_count = int(check_number("repetition_detection.min_count", repetitions, counts))
    if min_size > max_size:
        raise invalid_request(
            "`repetition_detection`: min_pattern_size exceeds max_pattern_size.", "repetition_detection"
        )
    return RepetitionDetection(max_size=max_size, min_size=min_size, min_count=min_count)
