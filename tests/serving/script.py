"""A model that recites a fixed text: a Llama of one layer whose next token depends on the current one alone.

The text is cut into pieces that split characters, and each piece is a token of its own, followed by the next piece and
after the last one by the first. A prompt is bytes, one token each; the byte that ends it decides where the recital
begins, and `$` ends the answer at once. So every stream is known to the byte, whatever the batch around it.
"""

import json
from itertools import islice
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

PIECES = (
    *(b"Ahoj", b" sv\xc4", b"\x9bte", b": ", b"P\xc5", b"\x99\xc3", b"\xadli\xc5\xa1 \xc5", b"\xbelu"),
    *(b"\xc5\xa5ou\xc4", b"\x8dk\xc3\xbd k\xc5\xaf", b"\xc5\x88", b" \xf0\x9f", b"\x90\xb4 ", b"p\xc4\x9bl "),
    *(b"\xf0\x9f\x91\xa9", b"\xe2\x80\x8d\xf0", b"\x9f\x9a\x80", b" \xe4\xbd", b"\xa0\xe5\xa5", b"\xbd.\n"),
)
"""All different, and none a single byte, which has a token already; joined they are valid UTF-8."""
END = 256
_FIRST = 257
WINDOW = 32768
_WIDTH = 320
_LOGIT = 40.0
_TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


def following(token: int) -> int:
    """The token after `token`."""
    if token == ord("$"):
        return END
    if token < _FIRST:
        return _FIRST + token % len(PIECES)
    return _FIRST + (token - _FIRST + 1) % len(PIECES)


def recital(prompt: str | list[int], count: int) -> list[int]:
    """The first `count` tokens that the model says after a prompt."""

    def tokens(token: int):  # type: ignore[no-untyped-def]
        while True:
            yield (token := following(token))

    return list(islice(tokens(prompt.encode()[-1] if isinstance(prompt, str) else prompt[-1]), count))


def recited(prompt: str | list[int], count: int) -> str:
    """The same as text; half a character at either end becomes U+FFFD."""
    return b"".join(PIECES[token - _FIRST] for token in recital(prompt, count)).decode(errors="replace")


def chat_prompt(content: str) -> str:
    """The prompt that a chat with one user message makes."""
    return f"user: {content}\n"


def write_script(folder: Path) -> Path:
    """Write the model as a Hugging Face folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>", "chat_template": _TEMPLATE}))
    _tokenizer().save(str(folder / "tokenizer.json"))
    save_file(_weights(), folder / "model.safetensors")
    return folder


_CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": _WIDTH,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": _WIDTH,
    "max_position_embeddings": WINDOW,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "eos_token_id": END,
    "torch_dtype": "float32",
}


def _tokenizer() -> Tokenizer:
    """Bytes become one token each; the pieces exist for decoding alone, since no merge makes them."""
    letters = _byte_letters()
    vocabulary = {letters[byte]: byte for byte in range(256)} | {"<end>": END}
    for number, piece in enumerate(PIECES):
        vocabulary["".join(letters[byte] for byte in piece)] = _FIRST + number
    assert len(vocabulary) == _FIRST + len(PIECES)
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


def _byte_letters() -> dict[int, str]:
    """The printable letter that stands for each byte in byte-level vocabularies."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in plain)
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + index) for index, byte in enumerate(others)}


def _weights() -> dict[str, torch.Tensor]:
    layer = "model.layers.0."
    head = torch.zeros(_WIDTH, _WIDTH)
    for token in range(_FIRST + len(PIECES)):
        head[following(token), token] = _LOGIT / _WIDTH**0.5  # the norm makes the one in a row this much larger
    narrow = {f"{layer}self_attn.{name}_proj.weight": torch.zeros(16, _WIDTH) for name in "qkv"}
    gates = {f"{layer}mlp.{name}_proj.weight": torch.zeros(16, _WIDTH) for name in ("gate", "up")}
    norms = (f"{layer}input_layernorm.weight", f"{layer}post_attention_layernorm.weight", "model.norm.weight")
    return {
        "model.embed_tokens.weight": torch.eye(_WIDTH),
        f"{layer}self_attn.o_proj.weight": torch.zeros(_WIDTH, 16),
        f"{layer}mlp.down_proj.weight": torch.zeros(_WIDTH, 16),
        "lm_head.weight": head,
        **narrow,
        **gates,
        **{name: torch.ones(_WIDTH) for name in norms},
    }
