"""From a decoded body to a `PoolingPlan`, or a 400: one function for each route.

Pure; takes time in proportion to the body.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from tenure.api.common.body_reading import BodyReading, SelectedModel
from tenure.api.common.json_parts import Part
from tenure.api.common.pooling_fields import check_shared
from tenure.api.common.pooling_job import Vectors
from tenure.api.common.pooling_plan import PoolingPlan, check_dimensions, default_prompt, longest_input, pooled_plan
from tenure.api.common.reply import ReplyHead, reading_usage
from tenure.api.common.vector_json import vector_base64, vector_numbers
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
from tenure.http.errors import echo, invalid_request
from tenure.pooling import PoolingParams, PoolingTask


class EmbeddingsForm(msgspec.Struct, frozen=True):
    """How `/v1/embeddings` answers."""

    encoding: Encoding

    def reply(self, head: ReplyHead, vectors: Sequence[Vectors], tokens: int, _: Sequence[Part]) -> object:
        encoded = enumerate(_encoded(vectors, self.encoding))
        data = [EmbeddingData(index=index, embedding=one) for index, one in encoded]
        return Embeddings(data=data, **_head(head, tokens))


class PooledForm(msgspec.Struct, frozen=True):
    """How `/pooling` answers."""

    encoding: Encoding

    def reply(self, head: ReplyHead, vectors: Sequence[Vectors], tokens: int, _: Sequence[Part]) -> object:
        encoded = enumerate(_encoded(vectors, self.encoding))
        return PooledReply(data=[PooledData(index=index, data=one) for index, one in encoded], **_head(head, tokens))


class ClassesForm(msgspec.Struct, frozen=True):
    """How `/classify` answers."""

    labels: Sequence[str]

    def reply(self, head: ReplyHead, vectors: Sequence[Vectors], tokens: int, _: Sequence[Part]) -> object:
        data = [self._classes(index, vector) for index, vector in enumerate(vectors)]
        return Classification(data=data, **_head(head, tokens))

    def _classes(self, index: int, vector: Vectors) -> ClassData:
        best = int(vector.argmax())
        probs: Any = vector_numbers(vector)
        label = self.labels[best] if best < len(self.labels) else f"LABEL_{best}"
        return ClassData(index=index, label=label, probs=probs, num_classes=len(vector))


def embeddings_plan(
    request: EmbeddingRequest, selected: SelectedModel, reading: BodyReading
) -> PoolingPlan[EmbeddingsForm]:
    """`POST /v1/embeddings`."""
    if request.messages is not None:
        raise invalid_request("Conversations are not embedded yet; `input` takes texts and token ids.", "messages")
    shared = check_shared(request, selected, reading)
    encoding = check_encoding(request)
    profile = selected.text.profile
    params = PoolingParams(
        task=PoolingTask.EMBED, activation=shared.activation, dimensions=check_dimensions(request.dimensions, profile)
    )
    longest = longest_input(selected, reading.settings)
    prompt = _prompt(request, profile)
    inputs = read_inputs(request, selected, reading.settings, shared, longest=longest, prompt=prompt)
    return pooled_plan(inputs, params, selected, shared, EmbeddingsForm(encoding))


def pooling_plan(request: PoolingRequest, selected: SelectedModel, reading: BodyReading) -> PoolingPlan[PooledForm]:
    """`POST /pooling`."""
    if request.dimensions is not None:
        raise invalid_request("`dimensions` is a field of /v1/embeddings, not of /pooling.", "dimensions")
    shared = check_shared(request, selected, reading)
    encoding = check_encoding(request)
    profile = selected.text.profile
    task = PoolingTask(request.task) if request.task else profile.pooling_task
    embeds = task in (PoolingTask.EMBED, PoolingTask.TOKEN_EMBED)
    if request.prompt_name is not None and (not embeds or request.messages is not None):
        raise invalid_request("`prompt_name` is for texts that are embedded.", "prompt_name")
    inputs = read_inputs(
        request,
        selected,
        reading.settings,
        shared,
        longest=longest_input(selected, reading.settings) if task is PoolingTask.EMBED else selected.text_window,
        prompt=_prompt(request, profile) if embeds else "",
    )
    params = PoolingParams(task=task, activation=shared.activation)
    return pooled_plan(inputs, params, selected, shared, PooledForm(encoding))


def classify_plan(request: ClassifyRequest, selected: SelectedModel, reading: BodyReading) -> PoolingPlan[ClassesForm]:
    """`POST /classify`."""
    shared = check_shared(request, selected, reading)
    inputs = read_inputs(request, selected, reading.settings, shared, longest=selected.text_window)
    params = PoolingParams(task=PoolingTask.CLASSIFY, activation=shared.activation)
    return pooled_plan(inputs, params, selected, shared, ClassesForm(selected.text.profile.labels))


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


def _encoded(vectors: Sequence[Vectors], encoding: Encoding) -> Iterator[Any]:
    """Each in the type of the reply's field, or encoded already."""
    return map(vector_base64 if encoding is Encoding.BASE64 else vector_numbers, vectors)


def _head(head: ReplyHead, tokens: int) -> dict[str, Any]:
    """The fields of a `ListReply`."""
    return {**head.fields(), "usage": reading_usage(tokens)}
