"""The API process's side of the wire: connections to engines, and the handles of open requests."""

from tenure.client.engine import EngineClient
from tenure.client.fleet import Fleet, ModelNotFound, ModelNotSupported, Opener, Served
from tenure.client.generation import EndOfGeneration, GenerationFailed, GenerationHandle, Refusal, Watcher

__all__ = [
    "EndOfGeneration",
    "EngineClient",
    "Fleet",
    "GenerationFailed",
    "GenerationHandle",
    "ModelNotFound",
    "ModelNotSupported",
    "Opener",
    "Refusal",
    "Served",
    "Watcher",
]
