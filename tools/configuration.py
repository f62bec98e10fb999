"""Writes `docs/configuration.md` from the flags: `python -m tools.configuration > docs/configuration.md`."""

import re

from tenure.cli.main import app

_HEAD = """\
# Configuration

A server is configured by the flags of `tenure serve` and by nothing else, but for the secrets and switches that the
environment holds. The flags carry vLLM's names where they mean the same. This page is made from them:
`python -m tools.configuration > docs/configuration.md`.

## Environment

* `TENURE_API_KEY`: keys that clients may use, separated by commas; counts when no flag gives a key.
* `TENURE_LOG_LEVEL`: DEBUG, INFO (the default), WARNING, ERROR or CRITICAL.
* `HF_HOME`, `HF_TOKEN`, `HF_HUB_OFFLINE` and the other variables of the Hugging Face hub's library, for models that are
  named by a hub id.
* `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES` and the other variables of OpenTelemetry, where spans are sent.

## Flags
"""


def configuration_page() -> str:
    """The page, in Markdown."""
    flags = app["serve"].generate_docs(output_format="markdown")
    flags = re.sub(r"\n +(?=\S)", " ", flags[flags.index("**Arguments**") :])
    flags = re.sub(r"^[*][*](.+)[*][*]:$", r"### \1", flags, flags=re.MULTILINE)
    return f"{_HEAD}\n{flags.strip()}\n"


if __name__ == "__main__":
    print(configuration_page(), end="")
