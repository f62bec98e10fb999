"""Text to token ids and back, for models from GGUF files and from Hugging Face folders."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType

from tenure.checkpoints.gguf import GGUFFile
from tenure.errors import CallerError
from tenure.source import ResolvedSource, SourceKind
from tenure.text.folder_vocabulary import read_folder
from tenure.text.gguf_vocabulary import read_vocabulary
from tenure.text.pairs import PairTemplate, read_pair_template
from tenure.text.special_tokens import SpecialTokens, read_special_tokens
from tenure.text.splitting import PIECE_CHARACTERS, has_tokens_across_spaces, split_text
from tenure.text.vocabulary import Vocabulary, piece_bytes

_LONG_TEXT = 4096


def _go_on() -> None: ...


class Tokenizer:
    """A model's tokenizer. Safe to share between threads and tasks: only a memo of token bytes changes."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._bytes: dict[int, bytes] = {}
        self._may_cut = not has_tokens_across_spaces(vocabulary.backend.get_vocab())
        self.without_token = vocabulary.without_token
        """The ids below the vocabulary's size that have no token; empty for most tokenizers."""
        self.bos_token_id = vocabulary.bos_token_id
        self.eos_token_ids = vocabulary.eos_token_ids
        """The ids that end an answer, the tokenizer's own first."""
        self.chat_template = vocabulary.chat_template
        """Jinja source."""
        self.truncation_side = vocabulary.truncation_side
        """The side at which a prompt that is too long is truncated."""

    @property
    def template_variables(self) -> Mapping[str, str]:
        """The special tokens as variables of chat templates: `bos_token`, `pad_token` and others."""
        ids = {"bos_token": self.bos_token_id, "eos_token": next(iter(self.eos_token_ids), None)}
        known = {key: self.token_text(value) for key, value in ids.items() if value is not None}
        return MappingProxyType({**self._vocabulary.named_tokens, **known})

    def encode(self, text: str, add_special_tokens: bool = True, between: Callable[[], None] = _go_on) -> list[int]:
        """Ids of a text; special tokens written in it become their ids.

        `between` is called from time to time in a long text, and may raise. CallerError for a lone surrogate, and for a
        very long text without spaces.
        """
        if len(text) > PIECE_CHARACTERS:
            (own,) = self.encode_plain([text], between)
            return self.special_tokens.around(own) if add_special_tokens else own
        backend = self._vocabulary.backend
        try:
            if len(text) > _LONG_TEXT:  # only the call for batches lets other threads run meanwhile
                return backend.encode_batch([text], add_special_tokens=add_special_tokens)[0].ids
            return backend.encode(text, add_special_tokens=add_special_tokens).ids
        except TypeError:
            raise CallerError("the text is not valid Unicode (a lone surrogate)") from None

    def encode_plain(self, texts: Sequence[str], between: Callable[[], None] = _go_on) -> list[list[int]]:
        """Ids of texts, without special tokens around them. `between` and errors as in `encode`."""
        if all(len(text) <= PIECE_CHARACTERS for text in texts):
            return self._encode_at_once(texts)
        found: list[list[int]] = []
        for text in texts:
            found.append([])
            for piece in split_text(text, lambda part: self._encode_at_once([part])[0], may_cut=self._may_cut):
                between()
                found[-1] += self._encode_at_once([piece])[0]
        return found

    def _encode_at_once(self, texts: Sequence[str]) -> list[list[int]]:
        backend = self._vocabulary.backend
        try:
            if sum(map(len, texts)) > _LONG_TEXT:  # as in `encode`
                return [found.ids for found in backend.encode_batch_fast(list(texts), add_special_tokens=False)]
            return [backend.encode(text, add_special_tokens=False).ids for text in texts]
        except TypeError:
            raise CallerError("a text is not valid Unicode (a lone surrogate)") from None

    @cached_property
    def pair_template(self) -> PairTemplate:
        """The special tokens around the two texts of a pair."""
        return read_pair_template(self._vocabulary.backend)

    @cached_property
    def special_tokens(self) -> SpecialTokens:
        """The special tokens around a text."""
        return read_special_tokens(self._vocabulary.backend)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of a sequence as the model's authors decode it; bytes that are not UTF-8 become U+FFFD."""
        dropped = self._vocabulary.special_ids if skip_special_tokens else frozenset()
        kept = [token for token in ids if 0 <= token < self._vocabulary.size and token not in dropped]
        if len(kept) > _LONG_TEXT:  # as in `encode`
            return self._vocabulary.backend.decode_batch([kept], skip_special_tokens=False)[0]
        return self._vocabulary.backend.decode(kept, skip_special_tokens=False)

    def token_bytes(self, token: int) -> bytes:
        """The exact bytes of one token; special tokens give their name; b"" for an id without a token."""
        found = self._bytes.get(token)
        if found is None:
            found = self._bytes[token] = self._compute_bytes(token)
        return found

    def token_text(self, token: int) -> str:
        """The text of one token, lossy where it holds part of a character."""
        return self.token_bytes(token).decode("utf-8", errors="replace")

    def token_piece(self, token: int) -> str:
        """The entry in the vocabulary as it is written there (`Ġhello`); "" for an id without a token."""
        if not 0 <= token < self._vocabulary.size:
            return ""
        return self._vocabulary.backend.id_to_token(token) or ""

    @cached_property
    def longest_token(self) -> int:
        """The length in bytes of the longest token's text."""
        return max(len(piece.encode()) for piece in self._vocabulary.backend.get_vocab())

    def is_added(self, token: int) -> bool:
        """Whether it is an added token, which is matched in texts before all others."""
        return token in self._vocabulary.added_ids

    def is_special(self, token: int) -> bool:
        """Whether `skip_special_tokens` drops the token's text."""
        return token in self._vocabulary.special_ids

    def _compute_bytes(self, token: int) -> bytes:
        piece = self.token_piece(token)
        if self.is_added(token):
            return piece.encode()
        return piece_bytes(piece, self._vocabulary.coding)


def load_tokenizer(source: ResolvedSource) -> Tokenizer:
    """The tokenizer of a model. Raises ResourceError, naming the file, when it is missing, broken or unsupported."""
    if source.kind is SourceKind.GGUF:
        with GGUFFile.open(source.path) as file:
            return Tokenizer(read_vocabulary(file.metadata, str(source.path)))
    return Tokenizer(read_folder(source.path))
