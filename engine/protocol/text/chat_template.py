"""Renders a model's own chat template, in bounded time; a template never comes from a client.

A template is code that came with a model's files, and runs for every request of that model. So we
evaluate it ourselves, and nothing in it reaches Python; and every conversation has a budget of work
that grows with its size, whatever its template tries to do with it.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from engine.protocol.errors import InvalidRequest
from engine.protocol.text.template.program import InvalidTemplateError, Program
from engine.protocol.text.template.work import (
    RefusalError,
    TemplateError,
    TooMuchWorkError,
    Work,
)

_MAX_OUTPUT: Final = 8 << 20  # characters: four times the largest body a gateway accepts
_MAX_REFUSAL: Final = 200
# Real templates take 20 to 100 units a message and one for 10 characters. A unit is at most about
# a microsecond, so a hostile one keeps a short request for a tenth of a second.
_UNITS: Final = 100_000
_UNITS_PER_MESSAGE: Final = 500
_CHARACTERS_PER_UNIT: Final = 2
_MAX_UNITS: Final = 1_500_000  # at 32 characters a unit, what a rendering may hold at once

# What a template can make Python raise: wrong arguments, a division by zero, deep nesting.
_FAULTS: Final = (TemplateError, ArithmeticError, TypeError, ValueError, RecursionError)

# The shortest conversation; its text is a private-use character, which no template writes.
PROBE: Final = ({"role": "user", "content": "\uf8ff"},)


class _TooCostly(InvalidRequest):
    def __init__(self) -> None:
        super().__init__(
            "The model's chat template takes too much work to render these messages.",
            param="messages",
        )


class ChatTemplate:
    """A compiled template with the special tokens it may name. Safe to share between threads."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Compile `source`, and try it on the shortest conversation.

        Raises InvalidTemplateError: it cannot be compiled, or does not come to an end.
        """
        self._program = Program(source)
        self.source = source
        self._special_tokens = dict(special_tokens)
        try:
            self.render(PROBE)
        except _TooCostly as error:
            raise InvalidTemplateError("takes too much work for a short conversation") from error
        except InvalidRequest:  # it wants another conversation than the shortest
            return

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt, ending where the assistant is to speak; raises InvalidRequest."""
        names = {
            "messages": [dict(message) for message in messages],
            "tools": None,
            "documents": None,
            "add_generation_prompt": True,
            **self._special_tokens,
        }
        try:
            pieces = self._program.run(names, Work(_allowance(messages)))
        except RefusalError as error:
            reason = str(error)[:_MAX_REFUSAL]
            raise InvalidRequest(
                f"The model's chat template refuses these messages: {reason}", param="messages"
            ) from error
        except TooMuchWorkError as error:
            raise _TooCostly from error
        except _FAULTS as error:
            raise _cannot_render() from error
        if sum(map(len, pieces)) > _MAX_OUTPUT:
            raise _cannot_render()
        return "".join(pieces)


def _allowance(messages: Sequence[Mapping[str, str]]) -> int:
    """The units of work that a conversation of this size may take."""
    characters = sum(len(text) for message in messages for text in message.values())
    units = _UNITS + _UNITS_PER_MESSAGE * len(messages) + characters // _CHARACTERS_PER_UNIT
    return min(units, _MAX_UNITS)


def _cannot_render() -> InvalidRequest:
    return InvalidRequest(
        "The model's chat template cannot render these messages.", param="messages"
    )
