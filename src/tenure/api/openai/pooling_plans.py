"""From a decoded body to a `PoolingPlan`, or a 400: one function for each route.

Pure; takes time in proportion to the body.
"""

from collections.abc import Sequence
from typing import Any

from tenure.api.common.pooling_fields import check_shared
from tenure.api.common.pooling_job import Vectors
from tenure.api.common.pooling_plan import PoolingPlan, check_dimensions, default_prompt, longest_input, pooled_plan
from tenure.api.common.reply import ReplyHead, reading_usage
from tenure.api.common.selection import SelectedModel
from tenure.api.common.vector_json import ENCODER, vector_base64, vector_numbers
from tenure.api.openai.embedding_inputs import Encoding, check_encoding, read_inputs
from tenure.api.openai.embedding_types import (
    ClassData,
    Classification,
    ClassifyRequest,
    EmbeddingData,
    EmbeddingRequest,
    Embeddings,
    EncodedFields,
    PooledData,
    PooledReply,
    PoolingRequest,
)
from tenure.checkpoints.profile import ModelProfile
from tenure.config import ApiSettings
from tenure.http.errors import echo, invalid_request
from tenure.pooling import PoolingParams, PoolingTask
from tenure.prompts.text_model import TextModel


def embeddings_plan(
    request: EmbeddingRequest, selected: SelectedModel, settings: ApiSettings, priority: str | None
) -> PoolingPlan:
    """`POST /v1/embeddings`."""
    if request.messages is not None:
        raise invalid_request("Conversations are not embedded yet; `input` takes texts and token ids.", "messages")
    shared = check_shared(request, selected, settings, priority)
    encoding = check_encoding(request)
    profile = selected.text.profile
    params = PoolingParams(
        task=PoolingTask.EMBED,
        activation=shared.activation,
        dimensions=check_dimensions(request.dimensions, profile),
    )
    longest = longest_input(selected, settings)
    prompt = _prompt(request, profile)
    inputs = read_inputs(request, selected, settings, shared, longest=longest, prompt=prompt)

    def write(head: ReplyHead, vectors: Sequence[Vectors], tokens: int) -> bytes:
        data: list[Any] = [
            EmbeddingData(index=index, embedding=_encoded(vector, encoding)) for index, vector in enumerate(vectors)
        ]
        usage = reading_usage(tokens)
        return ENCODER.encode(Embeddings(id=head.id, created=head.created, model=head.model, data=data, usage=usage))

    return pooled_plan(inputs, params, selected, shared, write)


def pooling_plan(
    request: PoolingRequest, selected: SelectedModel, settings: ApiSettings, priority: str | None
) -> PoolingPlan:
    """`POST /pooling`."""
    if request.dimensions is not None:
        raise invalid_request("`dimensions` is a field of /v1/embeddings, not of /pooling.", "dimensions")
    shared = check_shared(request, selected, settings, priority)
    encoding = check_encoding(request)
    profile = selected.text.profile
    task = PoolingTask(request.task) if request.task else profile.pooling_task
    embeds = task in (PoolingTask.EMBED, PoolingTask.TOKEN_EMBED)
    if request.prompt_name is not None and (not embeds or request.messages is not None):
        raise invalid_request("`prompt_name` is for texts that are embedded.", "prompt_name")
    inputs = read_inputs(
        request,
        selected,
        settings,
        shared,
        longest=longest_input(selected, settings) if task is PoolingTask.EMBED else selected.text_window,
        prompt=_prompt(request, profile) if embeds else "",
    )

    def write(head: ReplyHead, vectors: Sequence[Vectors], tokens: int) -> bytes:
        data: list[Any] = [
            PooledData(index=index, data=_encoded(vector, encoding)) for index, vector in enumerate(vectors)
        ]
        usage = reading_usage(tokens)
        return ENCODER.encode(PooledReply(id=head.id, created=head.created, model=head.model, data=data, usage=usage))

    params = PoolingParams(task=task, activation=shared.activation)
    return pooled_plan(inputs, params, selected, shared, write)


def classify_plan(
    request: ClassifyRequest, selected: SelectedModel, settings: ApiSettings, priority: str | None
) -> PoolingPlan:
    """`POST /classify`."""
    shared = check_shared(request, selected, settings, priority)
    inputs = read_inputs(request, selected, settings, shared, longest=selected.text_window)

    def write(head: ReplyHead, vectors: Sequence[Vectors], tokens: int) -> bytes:
        data = [_classes(index, vector, selected.text) for index, vector in enumerate(vectors)]
        usage = reading_usage(tokens)
        return ENCODER.encode(
            Classification(id=head.id, created=head.created, model=head.model, data=data, usage=usage)
        )

    params = PoolingParams(task=PoolingTask.CLASSIFY, activation=shared.activation)
    return pooled_plan(inputs, params, selected, shared, write)


def requested_tasks(request: PoolingRequest) -> tuple[str, ...]:
    """The tasks of which the model must support one: the request's `task`, or all pooling tasks. Raises a 400."""
    if request.data is not None or request.task == "plugin":
        raise invalid_request("Plugins are not supported.", "task" if request.data is None else "data")
    tasks = tuple(task.value for task in PoolingTask)
    if request.task is None:
        return tasks
    if request.task not in tasks:
        message = f"`task` is {echo(request.task)}, but may be one of: {', '.join(tasks)}."
        raise invalid_request(message, "task")
    return (request.task,)


def _prompt(request: EncodedFields, profile: ModelProfile) -> str:
    """The prompt before a text: the one that the request names, or the model's default. Raises a 400."""
    if request.prompt_name is None:
        return default_prompt(profile)
    texts = request.input if isinstance(request.input, list) else [request.input]
    if not all(isinstance(text, str) for text in texts):
        raise invalid_request("`prompt_name` is for texts; token ids are read as they are.", "prompt_name")
    if request.prompt_name not in profile.prompts:
        known = f"may be one of: {', '.join(profile.prompts)}" if profile.prompts else "the model has no prompts"
        raise invalid_request(f"`prompt_name` is {echo(request.prompt_name)}, but {known}.", "prompt_name")
    return profile.prompts[request.prompt_name]


def _encoded(vectors: Vectors, encoding: Encoding) -> Any:
    """The value for the reply: base64, or numbers encoded already, since encoding a whole reply blocks the loop."""
    return vector_base64(vectors) if encoding is Encoding.BASE64 else vector_numbers(vectors)


def _classes(index: int, vector: Vectors, model: TextModel) -> ClassData:
    best, labels = int(vector.argmax()), model.profile.labels
    probs: Any = vector_numbers(vector)
    label = labels[best] if best < len(labels) else f"LABEL_{best}"
    return ClassData(index=index, label=label, probs=probs, num_classes=len(vector))
