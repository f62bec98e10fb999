"""How much of a model is there for one item."""

from dataclasses import dataclass

from tenure.wire.messages import ModelCard


@dataclass(frozen=True)
class Window:
    """The card's figures, as validation needs them."""

    max_model_len: int
    pool_tokens: int
    vocabulary_size: int

    @property
    def capacity(self) -> int:
        """Tokens, prompt and output together, that one item can ever hold."""
        return min(self.max_model_len, self.pool_tokens)


def window_of(card: ModelCard) -> Window:
    keeps_tokens = card.num_blocks > 0  # an encoder reads a text at once, and has no blocks
    return Window(
        max_model_len=card.max_model_len,
        pool_tokens=card.num_blocks * card.block_size if keeps_tokens else card.max_model_len,
        vocabulary_size=card.vocabulary_size,
    )
