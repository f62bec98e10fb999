"""The API process's side of the wire: connections to engines, and the handles of open requests."""

from tenure.client.engine import EndNamed, EngineClient, no_requests
from tenure.client.generation import EndOfGeneration, GenerationFailed, GenerationHandle, Watcher
from tenure.client.served_models import EngineTarget, ModelNotFound, ModelNotSupported, ServedModel, ServedModels

__all__ = [
    "EndNamed",
    "EndOfGeneration",
    "EngineClient",
    "EngineTarget",
    "GenerationFailed",
    "GenerationHandle",
    "ModelNotFound",
    "ModelNotSupported",
    "ServedModel",
    "ServedModels",
    "Watcher",
    "no_requests",
]
