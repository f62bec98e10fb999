"""The API process's side of the wire: connections to engines, and the handles of open requests."""

from tenure.client.engine import EngineClient
from tenure.client.fleet import Fleet, ModelNotFound, ModelNotSupported, Served
from tenure.client.generation import EndOfGeneration, GenerationFailed, GenerationHandle, Refusal

__all__ = [
    "EndOfGeneration",
    "EngineClient",
    "Fleet",
    "GenerationFailed",
    "GenerationHandle",
    "ModelNotFound",
    "ModelNotSupported",
    "Refusal",
    "Served",
]
