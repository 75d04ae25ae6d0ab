"""What names mean at a place in a template, and the work that its rendering may still do."""

from typing import Any, Final

from engine.protocol.text.template.values import UNDEFINED
from engine.protocol.text.template.work import TooMuchWorkError, Work

_MAX_DEPTH: Final = 64  # a name is looked for in each; macros and loops of real templates use ten


class Scope:
    """Names set here, and those of the scope around it."""

    __slots__ = ("depth", "names", "outer", "work")

    def __init__(self, work: Work, names: dict[str, Any], outer: "Scope | None" = None) -> None:
        self.work = work
        self.names = names
        self.outer = outer
        self.depth: int = 0 if outer is None else outer.depth + 1
        if self.depth > _MAX_DEPTH:
            raise TooMuchWorkError("nests too deeply")

    def inner(self, names: dict[str, Any]) -> "Scope":
        """A scope inside this one; raises TooMuchWorkError when there are too many around it."""
        return Scope(self.work, names, self)

    def find(self, name: str) -> Any:
        """The value of a name, UNDEFINED when nothing has set it."""
        scope: Scope | None = self
        while scope is not None:
            names = scope.names
            if name in names:
                return names[name]
            scope = scope.outer
        return UNDEFINED
