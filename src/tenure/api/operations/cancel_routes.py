"""`POST /v1/requests/{id}/cancel` and `POST /v1/requests/cancel`: end requests by response id or label.

The answer is sent when the named requests hold nothing any more; a repeat gets the same answer as long as the ended
request is remembered. The client of an ended request gets `aborted`: 409, or an error event in a stream.
"""

import msgspec

from tenure.api.common.body_reading import BodyReading
from tenure.api.common.call import Call
from tenure.api.operations.cancel_by_name import cancel
from tenure.http.errors import invalid_request, request_not_found
from tenure.http.intake import MAX_LABEL_CHARACTERS
from tenure.outcomes import Outcome

MOST_NAMES = 1000
LONGEST_NAME = MAX_LABEL_CHARACTERS
"""In characters. No id is longer, and a message to an engine stays far below its largest size."""


class CancelRequests(msgspec.Struct, frozen=True, kw_only=True):
    """`ids` are those of responses; `labels` are `X-Request-Id`s that were given under the same API key."""

    ids: list[str] | None = None
    labels: list[str] | None = None


class CancelledReply(msgspec.Struct, frozen=True, kw_only=True):
    """How a request has ended. `seconds`: from the cancel until nothing was held; 0 if it had ended before."""

    id: str
    outcome: Outcome
    seconds: float


class CancelledReplies(msgspec.Struct, frozen=True, kw_only=True):
    requests: list[CancelledReply]
    unknown_ids: list[str]


_DECODER = msgspec.json.Decoder(CancelRequests)


async def cancel_one(call: Call) -> None:
    """End the request with the id in the path."""
    public_id = call.path_params["id"]
    if len(public_id) > LONGEST_NAME:
        raise request_not_found([public_id])
    found = await cancel(call.context, [public_id], (), call.options.owner)
    if not found:
        raise request_not_found([public_id])
    await call.respond_json(CancelledReply(id=found[0].id, outcome=found[0].outcome, seconds=found[0].seconds))


def read_names(body: bytes | bytearray, reading: BodyReading) -> CancelRequests:
    """Which requests a body names, each once. Raises a 400."""
    names = reading.decode(body, _DECODER)
    ids, labels = list(dict.fromkeys(names.ids or ())), list(dict.fromkeys(names.labels or ()))
    if not ids and not labels:
        raise invalid_request("Name at least one of `ids` and `labels`.")
    if len(ids) + len(labels) > MOST_NAMES:
        raise invalid_request(f"At most {MOST_NAMES} requests can be named in one call.")
    for param, names_of_kind in (("ids", ids), ("labels", labels)):
        if any(len(name) > LONGEST_NAME for name in names_of_kind):
            raise invalid_request(f"A name in `{param}` has at most {LONGEST_NAME} characters.", param)
    return CancelRequests(ids=ids, labels=labels)


async def cancel_many(call: Call) -> None:
    """End all requests with these ids, and all that live with one of these labels."""
    names = await call.read(CancelRequests)
    ids, labels = names.ids or [], names.labels or []
    found = await cancel(call.context, ids, [label for label in labels if label], call.options.owner)
    if not found:
        raise request_not_found(ids or labels)
    known = {request.id for request in found}
    reply = CancelledReplies(
        requests=[CancelledReply(id=one.id, outcome=one.outcome, seconds=one.seconds) for one in found],
        unknown_ids=[public_id for public_id in ids if public_id not in known],
    )
    await call.respond_json(reply)
