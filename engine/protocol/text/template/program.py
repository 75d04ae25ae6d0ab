"""A whole template: compiled once, run for each conversation."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NoReturn

from jinja2 import Environment
from jinja2.exceptions import TemplateError as JinjaError
from jinja2.ext import Extension
from jinja2.parser import Parser

from engine.protocol.text.template.expressions import UnsupportedError
from engine.protocol.text.template.scope import Scope
from engine.protocol.text.template.statements import block
from engine.protocol.text.template.values import Namespace, Native, text_of
from engine.protocol.text.template.work import RefusalError, TemplateError, Work

_MAX_SOURCE: Final = 1 << 18  # characters; the longest known has 2**15
_MAX_DATE_FORMAT: Final = 128


class InvalidTemplateError(ValueError):
    """A template that cannot be compiled; its text is a phrase that says why."""


class _Generation(Extension):
    """`{% generation %}`: marks what is learnt from in training, and means nothing here."""

    tags = {"generation"}  # noqa: RUF012 - as the base class has it

    def parse(self, parser: Parser) -> Any:
        """The statements inside."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Program:
    """A compiled template. Running it changes nothing in it, so threads may share it."""

    def __init__(self, source: str) -> None:
        """Compile `source`; raises InvalidTemplateError."""
        if len(source) > _MAX_SOURCE:
            raise InvalidTemplateError(f"is longer than {_MAX_SOURCE} characters")
        # Only read by Jinja: none of its code runs a template.
        environment = Environment(  # noqa: S701 - no HTML is made
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        try:
            self._run = block(environment.parse(source).body)
        except JinjaError as error:
            raise InvalidTemplateError(f"cannot be compiled: {error.message}") from error
        except UnsupportedError as error:
            raise InvalidTemplateError(f"cannot be compiled: it uses {error}") from error
        except (ValueError, RecursionError) as error:  # a number of many digits; deep nesting
            raise InvalidTemplateError("cannot be compiled: it is beyond reason") from error

    def run(self, names: Mapping[str, Any], work: Work) -> list[str]:
        """The pieces of the text that it makes of `names`.

        Raises TemplateError, and what Python does: TypeError for a wrong number of arguments,
        ArithmeticError for a division by zero, RecursionError.
        """
        out: list[str] = []
        self._run(Scope(work, {**_GLOBALS, **names}), out)
        return out


def _range(work: Work, *bounds: Any) -> list[int]:
    if not all(isinstance(bound, int) for bound in bounds):
        raise TemplateError("counts with what is no number")
    numbers = range(*bounds)
    # len() would not take it if it were longer than an array can be.
    work.spend(abs(numbers.stop - numbers.start) // abs(numbers.step) + 1)
    return list(numbers)


def _namespace(work: Work, *values: Any, **named: Any) -> Namespace:
    return Namespace(_dict(work, *values, **named))


def _dict(work: Work, *values: Any, **named: Any) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    for value in values:
        if not isinstance(value, dict):
            raise TemplateError("makes a dict of what is none")
        work.spend(len(value))
        made |= value
    return made | named


def _raise_exception(work: Work, message: Any = "") -> NoReturn:
    raise RefusalError(text_of(work, message))


def _strftime_now(work: Work, form: Any) -> str:
    if not isinstance(form, str) or len(form) > _MAX_DATE_FORMAT:
        raise TemplateError("formats a date in no way that is supported")
    work.make(len(form) << 8)  # no directive makes more
    # Local time, as the reference implementation has it.
    return datetime.now().astimezone().strftime(form)


_GLOBALS: Final = {
    "dict": Native(_dict),
    "namespace": Native(_namespace),
    "raise_exception": Native(_raise_exception),
    "range": Native(_range),
    "strftime_now": Native(_strftime_now),
}
