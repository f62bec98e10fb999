"""The API process's side of the wire: connections to engines, and the handles of open requests."""

from tenure.client.engine import EndNamed, EngineClient, no_requests
from tenure.client.fleet import Fleet, ModelNotFound, ModelNotSupported, Opener, Served
from tenure.client.generation import EndOfGeneration, GenerationFailed, GenerationHandle, Refusal, Watcher

__all__ = [
    "EndNamed",
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
    "no_requests",
]
