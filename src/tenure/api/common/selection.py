"""Which model and which of its engines serve a call."""

from dataclasses import dataclass

from tenure.api.common.call import Call
from tenure.client import EngineClient, Opener, Served
from tenure.http.errors import engine_unavailable, invalid_request
from tenure.prompts.text_model import TextModel
from tenure.prompts.token_prompts import Window, window_of


@dataclass(frozen=True)
class SelectedModel:
    text: TextModel
    window: Window
    engine: Opener
    """All engines of the model, unless the request demands one of them."""

    @property
    def text_window(self) -> int:
        """Most tokens, special ones included, of one text or pair that the model pools."""
        recommended = self.text.profile.max_length
        return self.window.capacity if recommended is None else min(self.window.capacity, recommended)


def select_model(call: Call, name: str | None, *tasks: str) -> SelectedModel:
    """Return the model called `name`, or the first, that can do one of `tasks` (any, if none are given), and an engine.

    Raises ModelNotFound, ModelNotSupported, and a 503 while the engine is not ready.
    """
    context = call.context
    served = context.fleet.resolve(name or None, *tasks)
    call.model = served.name
    rank = call.options.rank
    engine = served if rank is None else _engine_of(served, rank)
    card = engine.card
    if card is None:
        raise engine_unavailable(f"The model {served.name} is not ready; try again shortly.")
    return SelectedModel(text=context.texts[served.name], window=window_of(card), engine=engine)


def _engine_of(served: Served, rank: int) -> EngineClient:
    if not 0 <= rank < len(served.engines):
        message = f"The header X-data-parallel-rank must be from 0 to {len(served.engines) - 1}."
        raise invalid_request(message, "X-data-parallel-rank")
    return served.engines[rank]
