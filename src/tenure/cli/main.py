"""The `tenure` command. Each subcommand imports what it needs when it runs, so that none pays for the others."""

import sys
from typing import Annotated, Literal

from cyclopts import App, Group, Parameter

from tenure import __version__
from tenure.cli.flags import AtLeastOne, real
from tenure.cli.serve import ServeOptions
from tenure.config import environment_api_keys
from tenure.errors import TenureError

app = App(name="tenure", version=__version__, help="An inference server in which every unit of work has a holder.")

_URL = "http://127.0.0.1:8000"
_CLIENT = Group("Connection")
Url = Annotated[str, Parameter(name="--url", group=_CLIENT, help="Address of a running server.")]
ApiKey = Annotated[
    str,
    Parameter(
        name="--api-key", group=_CLIENT, help="Key, if the server wants one; by default the first of TENURE_API_KEY."
    ),
]


@app.command
def serve(*models: str, options: Annotated[ServeOptions, Parameter(name="*")] = ServeOptions()) -> int:  # noqa: B008
    """Serve models on one port.

    Parameters
    ----------
    models
        Each as [NAME=]SOURCE, where SOURCE is a built-in alias (smollm2, minilm), a path to a GGUF file or a Hugging
        Face folder, or a hub id (org/name). None means the demo models that are installed.
    """
    from tenure.cli.serve import run_server  # noqa: PLC0415

    return run_server(models, options)


@app.command
def chat(
    *,
    url: Url = _URL,
    model: str = "",
    system: str = "",
    max_tokens: AtLeastOne = 1024,
    temperature: Annotated[float | None, real(0, 2)] = None,
    api_key: ApiKey = "",
) -> int:
    """Chat with a running server. Ctrl-C cancels the answer, Ctrl-D ends the program.

    Parameters
    ----------
    model
        Name of the model; by default the server's first.
    system
        System message.
    max_tokens
        Most tokens of an answer.
    temperature
        Sampling temperature, 0 to 2; by default the model's.
    """
    from tenure.cli.chat import run_chat  # noqa: PLC0415

    return run_chat(url, _key(api_key), model=model, system=system, max_tokens=max_tokens, temperature=temperature)


@app.command
def models(*, url: Url = _URL, api_key: ApiKey = "") -> int:
    """List the built-in models, and those that a running server serves."""
    from tenure.cli.inspect import print_models  # noqa: PLC0415

    return print_models(url, _key(api_key))


@app.command
def ledger(
    *, url: Url = _URL, api_key: ApiKey = "", output: Literal["table", "json"] = "table", check: bool = False
) -> int:
    """Print who holds what on a running server; exit code 1 if its ledger does not add up.

    Parameters
    ----------
    output
        As readable tables, or as the JSON that the server sent.
    check
        Print no ledger but whether it is as it must be: everything adds up, and without an open request nothing is
        held. Exit code 1 if not.
    """
    from tenure.cli.check import check_ledger  # noqa: PLC0415
    from tenure.cli.inspect import print_ledger  # noqa: PLC0415

    if check:
        return check_ledger(url, _key(api_key))
    return print_ledger(url, _key(api_key), as_json=output == "json")


def _key(given: str) -> str:
    """The key to send: the one that was given, else the first of the environment's."""
    return given or next(iter(environment_api_keys()), "")


def main() -> None:
    """Entry point of the `tenure` command."""
    try:
        sys.exit(app(sys.argv[1:]))
    except TenureError as error:
        print(f"tenure: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
