"""What a body is read with: the model that it asks for, the settings, and what else is known of its request."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from tenure.api.common.json_parts import Part
from tenure.client.served_models import find_model
from tenure.config import ApiSettings, HttpLimits
from tenure.http.decoding import decode_body
from tenure.http.errors import ApiError, engine_unavailable, invalid_request
from tenure.peers.ticket_text import find_texts
from tenure.prompts.text_model import TextModel
from tenure.prompts.token_prompts import Window

T = TypeVar("T")


@dataclass(frozen=True)
class SelectedModel:
    text: TextModel
    window: Window

    @property
    def text_window(self) -> int:
        """Most tokens, special ones included, of one text or pair that the model pools."""
        recommended = self.text.profile.max_length
        return self.window.capacity if recommended is None else min(self.window.capacity, recommended)


class ModelWindows(msgspec.Struct, frozen=True):
    """A served model. `windows` are its engines', None for one that is not ready."""

    names: tuple[str, ...]
    tasks: tuple[str, ...]
    windows: tuple[Window | None, ...]


class RoutedRequest(msgspec.Struct, frozen=True):
    """What the plan depends on besides the body."""

    path: str
    """Of the route."""
    models: tuple[ModelWindows, ...]
    rank: int | None = None
    """Which engine of the model is demanded."""
    priority: str | None = None
    """The header `X-Vllm-Priority`, unchecked."""


class BodyReading:
    """One body that is read. `decoded` is called once the body itself is needed no longer."""

    def __init__(
        self,
        texts: Mapping[str, TextModel],
        settings: ApiSettings,
        limits: HttpLimits,
        routed: RoutedRequest,
        decoded: Callable[[], None],
    ) -> None:
        self.settings = settings
        self.routed = routed
        self.model = ""
        """The name of the model that was selected, as soon as one was."""
        self.ignored: list[str] = []
        """Fields that are set, and constrain nothing here."""
        self.attached: list[Part] = []
        """Byte strings that belong to the plan, which has only their numbers."""
        self.tickets: list[str] = []
        """For prompts that other engines have computed: to be let go of when the request does not enter."""
        self._texts = texts
        self._limits = limits
        self.decoded = decoded

    def decode(self, body: bytes | bytearray, decoder: "msgspec.json.Decoder[T]") -> T:
        """Raises a 400."""
        try:
            decoded = decode_body(body, decoder, self._limits)
        except ApiError:
            if self.settings.kv_transfer:
                self.tickets += find_texts(body)
            raise
        self.decoded()
        return decoded

    def choose(self, name: str | None, *tasks: str) -> SelectedModel:
        """The model called `name`, or the first, that can do one of `tasks` (any, if none are given).

        Raises ModelNotFound, ModelNotSupported, a 400 for an engine that is not there, and a 503 for one not ready.
        """
        model = find_model(self.routed.models, name or None, *tasks)
        self.model = model.names[0]
        windows, rank = model.windows, self.routed.rank
        if rank is not None:
            if not 0 <= rank < len(windows):
                message = f"The header X-data-parallel-rank must be from 0 to {len(windows) - 1}."
                raise invalid_request(message, "X-data-parallel-rank")
            windows = windows[rank : rank + 1]
        for window in windows:
            if window is not None:
                return SelectedModel(self._texts[self.model], window)
        raise engine_unavailable(f"The model {self.model} is not ready; try again shortly.")
