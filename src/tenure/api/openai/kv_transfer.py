"""`kv_transfer_params`: prefill and decode in different servers, as routers made for vLLM ask for it.

The prefill side's request has `do_remote_decode`, and its answer a ticket among fields of vLLM's; the decode side's
brings them back with `do_remote_prefill`. The ticket alone counts: it is signed, the rest are hints. Nulls ask for
nothing.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from tenure.api.common.answer import ItemAnswer
from tenure.api.common.fields import SamplingFields
from tenure.api.common.job import KVTransfer
from tenure.api.common.reply import ReplyHead
from tenure.api.common.sampling_rules import Numbers
from tenure.config import ApiSettings
from tenure.http.errors import invalid_request, unsupported
from tenure.peers.ticket_text import peek

_PARAM = "kv_transfer_params"


class KVTransferParams(msgspec.Struct, frozen=True, kw_only=True):
    """What is read of them. Keys that are not known are tolerated."""

    do_remote_decode: bool | None = None
    do_remote_prefill: bool | None = None
    ticket: str | list[str] | None = None
    remote_engine_id: str | None = None
    remote_request_id: str | None = None
    remote_block_ids: list[Any] | None = None
    remote_host: str | None = None
    remote_port: int | None = None
    tp_size: int | None = None


def narrowed(numbers: Numbers, transfer: KVTransfer) -> Numbers:
    """The numbers of a request; one that hands over is for one token, whatever else it says."""
    if not transfer.handover:
        return numbers
    kept = {name: value for name, value in numbers.items() if name not in ("min_tokens", "max_completion_tokens")}
    return {**kept, "max_tokens": 1, "n": 1}


def tickets_of(request: SamplingFields) -> list[str]:
    """Whatever stands where tickets do, in a request that is not checked yet."""
    given = request.kv_transfer_params
    found = given.get("ticket") if isinstance(given, dict) else None
    return [text for text in (found if isinstance(found, list) else [found]) if isinstance(text, str)]


def check_kv_transfer(request: SamplingFields, settings: ApiSettings) -> KVTransfer:
    """Raises a 400."""
    given = request.kv_transfer_params
    if given in (None, False, {}):
        return KVTransfer()
    if not settings.kv_transfer:
        raise unsupported(_PARAM)
    try:
        params = msgspec.convert(given, KVTransferParams)
    except msgspec.ValidationError as error:
        raise invalid_request(f"`{_PARAM}`: {error}", _PARAM) from None
    if params.do_remote_decode:
        if request.stream:
            raise invalid_request("A prompt that is handed over is not streamed.", "stream")
        if params.do_remote_prefill:
            raise invalid_request(f"`{_PARAM}` asks for both sides at once.", _PARAM)
        return KVTransfer(handover=True)
    tickets = [params.ticket] if isinstance(params.ticket, str) else params.ticket or ()
    return KVTransfer(tickets=tuple(tickets)) if params.do_remote_prefill else KVTransfer()


def check_tickets(transfer: KVTransfer, prompts: int) -> None:
    """Raises a 400 unless there is a ticket for each prompt, or none."""
    if transfer.tickets and len(transfer.tickets) != prompts:
        raise invalid_request(f"There are {len(transfer.tickets)} tickets for {prompts} prompts.", _PARAM)


def handed_over(records: Sequence[ItemAnswer], head: ReplyHead) -> dict[str, Any] | None:
    """What the prefill side answers with: vLLM's fields, for routers that look for them, and the tickets."""
    texts = [record.ticket for record in records]
    if not any(texts):
        return None
    ticket = peek(texts[0])
    host, _, port = ticket.address.rpartition(":")
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": ticket.engine,
        "remote_request_id": head.id,
        "remote_block_ids": [[]],
        "remote_host": host,
        "remote_port": int(port),
        "tp_size": 1,
        "remote_num_tokens": ticket.tokens,
        "ticket": texts[0] if len(texts) == 1 else texts,
    }
