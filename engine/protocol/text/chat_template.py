"""Renders a model's own chat template in a sandbox; a template is never taken from a client."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NoReturn

from jinja2.exceptions import SecurityError, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.protocol.errors import InvalidRequest

_MAX_OUTPUT: Final = 8 << 20  # characters: four times the largest body a gateway accepts
_MAX_REFUSAL: Final = 200


class TemplateSyntaxInvalidError(ValueError):
    """The model's chat template cannot be compiled."""


class _RefusalError(TemplateError):
    """The template called `raise_exception`: these messages are not what it is for."""


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox, in which no single operator can make a text explode."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if not all(isinstance(value, (int, float)) for value in (left, right)):
            raise SecurityError(f"a template may apply {operator} to numbers only")
        if operator == "**":
            raise SecurityError("a template may not raise to a power")
        return super().call_binop(context, operator, left, right)


class ChatTemplate:
    """A compiled template with the special tokens it may name. Safe to share between threads."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Compile `source`; raises TemplateSyntaxInvalidError."""
        environment = _Sandbox(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols"],
            optimized=False,  # the optimizer would run a hostile constant while compiling
        )
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        environment.globals.pop("lipsum")
        environment.filters["tojson"] = _tojson
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise TemplateSyntaxInvalidError(
                f"its chat template cannot be compiled: {error.message}"
            ) from error
        # Every rendering walks them, which is slow through the chain of maps that Jinja makes.
        self._template.globals = dict(self._template.globals)
        self.source = source
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt, ending where the assistant is to speak; raises InvalidRequest."""
        pieces = self._template.generate(
            messages=messages,
            tools=None,
            documents=None,
            add_generation_prompt=True,
            **self._special_tokens,
        )
        try:
            return "".join(_capped(pieces))
        except _RefusalError as error:
            reason = str(error)[:_MAX_REFUSAL]
            raise InvalidRequest(
                f"The model's chat template refuses these messages: {reason}", param="messages"
            ) from error
        except Exception as error:  # template code is not ours: whatever it raises is a refusal
            raise InvalidRequest(
                "The model's chat template cannot render these messages.", param="messages"
            ) from error


def _capped(pieces: Iterator[str]) -> Iterator[str]:
    length = 0
    for piece in pieces:
        length += len(piece)
        if length > _MAX_OUTPUT:
            raise SecurityError("the output of a template is too long")
        yield piece


def _raise_exception(message: str) -> NoReturn:
    raise _RefusalError(message)


def _strftime_now(form: str) -> str:
    # Local time, as the reference implementation has it.
    return datetime.now().astimezone().strftime(form)


def _tojson(value: Any, indent: int | None = None) -> str:
    # Jinja's own escapes HTML, which is not what models were trained on.
    return json.dumps(value, ensure_ascii=False, indent=indent)
