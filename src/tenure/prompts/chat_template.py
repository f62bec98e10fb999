"""Render a conversation into a prompt with a model's chat template.

Templates are Jinja programs that come with a model, so they run in a sandbox: no access to Python's internals, no
changes to what they are given, no results of unbounded size from one multiplication. What Hugging Face templates expect
is provided: `raise_exception`, `strftime_now`, `tojson` without HTML escaping, `break` and `continue`, and the
`generation` tag.

A template is compiled once, when a `ChatTemplate` is made; rendering changes nothing in it. Every error in a template
becomes a CallerError with a short message.
"""

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tenure.errors import CallerError
from tenure.prompts.chat_messages import Message, leave_open, prepare, tests_for_string, wanted_format
from tenure.text.tokenizer import Tokenizer

MAX_REPEATED_LENGTH = 1_000_000
MAX_MESSAGE_CHARACTERS = 300
TRIMMED_CHARACTER = "\u2005"
"""A space that no template writes itself."""


class RaisedByTemplate(TemplateError):
    """The template itself refused, through `raise_exception`."""


class _GenerationTag(Extension):
    """{% generation %}...{% endgeneration %} marks what the assistant wrote, for training; here it is only a scope."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, which also bounds the results of `*` and `**`."""

    intercepted_binops = frozenset(["*", "**"])

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            raise SecurityError("powers are not allowed")
        for value, times in ((left, right), (right, left)):
            sized = isinstance(value, (str, bytes, list, tuple))
            if sized and isinstance(times, int) and len(value) * times > MAX_REPEATED_LENGTH:
                raise SecurityError("a repetition is too long")
        return super().call_binop(context, operator, left, right)


class ChatTemplate:
    """One compiled template and its fixed variables (special tokens)."""

    def __init__(self, source: str, variables: Mapping[str, str], now: Callable[[], datetime] = datetime.now) -> None:
        """Raises CallerError for bad syntax."""
        environment = _environment(now)
        try:
            syntax = environment.parse(source)
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise CallerError(f"the chat template is not valid: line {error.lineno}: {_short(error)}") from None
        except (TemplateError, RecursionError, SyntaxError, OverflowError, MemoryError) as error:
            raise CallerError(f"the chat template is not valid ({type(error).__name__})") from None
        self._content_format = wanted_format(syntax)
        self._wrap_strings = not tests_for_string(syntax)
        self._variables = dict(variables)

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "ChatTemplate | None":
        """The template of a model; None if it has none."""
        source = tokenizer.chat_template
        return None if source is None else cls(source, tokenizer.template_variables)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        documents: Sequence[Mapping[str, Any]] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt. Raises CallerError.

        With `continue_final_message` the prompt ends where the last message's text ends (trimmed if the template
        trims it), so that the model goes on with it. `extra` are further names for the template; they win over the
        special tokens and lose to the arguments.
        """
        if add_generation_prompt and continue_final_message:
            raise CallerError("add_generation_prompt and continue_final_message cannot both be true")
        prepared = prepare(messages, self._content_format, self._wrap_strings)
        marker = f"CONTINUE{secrets.token_hex(16)}"
        if continue_final_message:
            leave_open(prepared, marker + TRIMMED_CHARACTER)
        rendered = self._run(
            {
                **self._variables,
                **(extra or {}),
                "messages": prepared,
                "tools": None,
                "documents": list(documents) if documents is not None else None,
                "add_generation_prompt": add_generation_prompt,
            }
        )
        return _cut_at(rendered, marker) if continue_final_message else rendered

    def _run(self, names: dict[str, Any]) -> str:
        try:
            return self._template.render(names)
        except RaisedByTemplate as error:
            raise CallerError(_short(error)) from None
        except SecurityError as error:
            raise CallerError(f"the chat template does something that is not allowed: {_short(error)}") from None
        except TemplateError as error:
            raise CallerError(f"the chat template cannot render these messages: {_short(error)}") from None
        except RecursionError:
            raise CallerError("the chat template cannot render these messages: they are nested too deeply") from None
        except Exception as error:  # a template can raise whatever an expression in it raises
            name = type(error).__name__
            raise CallerError(f"the chat template cannot render these messages ({name})") from None


def _cut_at(rendered: str, marker: str) -> str:
    at = rendered.rfind(marker)
    if at < 0:
        raise CallerError("the final message cannot be continued: the chat template does not show its text as it is")
    # The space after the marker is gone exactly if the template trims texts; then it would have trimmed this one.
    trimmed = not rendered.startswith(TRIMMED_CHARACTER, at + len(marker))
    return rendered[:at].rstrip() if trimmed else rendered[:at]


def _environment(now: Callable[[], datetime]) -> _Sandbox:
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag])

    def strftime_now(pattern: str) -> str:
        return now().strftime(pattern)

    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object) -> None:
    raise RaisedByTemplate(str(message))


def _short(error: TemplateError) -> str:
    message = " ".join((error.message or type(error).__name__).split())
    return message if len(message) <= MAX_MESSAGE_CHARACTERS else f"{message[:MAX_MESSAGE_CHARACTERS]}..."
