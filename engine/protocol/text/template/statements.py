"""Turns Jinja's syntax trees of statements into Python closures that write texts to a list.

Each block of statements (of a loop, a branch, a macro) pays, whenever it runs, for all the nodes in
it, so that no repetition is free.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final

from jinja2 import nodes

from engine.protocol.text.template.expressions import (
    Evaluate,
    UnsupportedError,
    applied,
    expression,
    printed,
)
from engine.protocol.text.template.scope import Scope
from engine.protocol.text.template.values import (
    UNDEFINED,
    Loop,
    Namespace,
    items_of,
    joined,
)
from engine.protocol.text.template.work import TemplateError, Work


class Exit(Enum):
    """Why a block ended before its end."""

    BREAK = 1
    CONTINUE = 2


_BLOCKS: Final = ("body", "else_")
_CALLER: Final = " caller"  # no template can spell it
Execute = Callable[[Scope, list[str]], Exit | None]
Bind = Callable[[Scope, Any], None]


def block(statements: list[Any]) -> Execute:
    """The statements one after another; raises UnsupportedError."""
    steps = [_statement(node) for node in statements]
    cost = 1 + sum(map(_cost, statements))
    if len(steps) == 1:
        (only,) = steps

        def run_one(scope: Scope, out: list[str]) -> Exit | None:
            scope.work.spend(cost)
            return only(scope, out)

        return run_one

    def run(scope: Scope, out: list[str]) -> Exit | None:
        scope.work.spend(cost)
        for step in steps:
            left = step(scope, out)
            if left is not None:
                return left
        return None

    return run


def _cost(node: Any) -> int:
    """Its nodes, without the blocks inside it, which pay for themselves."""
    own = 1
    for child in node.iter_child_nodes(exclude=_BLOCKS):
        own += _cost(child)
    return own


def _statement(node: Any) -> Execute:
    compiler = _COMPILERS.get(type(node))
    if compiler is None:
        raise UnsupportedError(type(node).__name__)
    return compiler(node)


def _output(node: Any) -> Execute:
    parts = [printed(one) for one in node.nodes]

    def run(scope: Scope, out: list[str]) -> None:
        for part in parts:
            text = part(scope)
            scope.work.make(len(text))
            out.append(text)

    return run


def _if(node: Any) -> Execute:
    branches = [(expression(one.test), block(one.body)) for one in (node, *(node.elif_ or ()))]
    other = block(node.else_) if node.else_ else None

    def run(scope: Scope, out: list[str]) -> Exit | None:
        for test, body in branches:
            if test(scope):
                return body(scope, out)
        return None if other is None else other(scope, out)

    return run


def _for(node: Any) -> Execute:
    if node.recursive:
        raise UnsupportedError("a recursive loop")
    source, bind, body = expression(node.iter), _target(node.target), block(node.body)
    wanted = None if node.test is None else expression(node.test)
    cost = 0 if node.test is None else _cost(node.test)
    other = block(node.else_) if node.else_ else None

    def chosen(scope: Scope) -> list[Any]:
        items = items_of(scope.work, source(scope))
        if wanted is None:
            return items
        kept = []
        for one in items:
            inner = scope.inner({})
            bind(inner, one)
            scope.work.spend(cost)
            if wanted(inner):
                kept.append(one)
        return kept

    def run(scope: Scope, out: list[str]) -> Exit | None:
        loop = Loop(chosen(scope))
        for place, one in enumerate(loop.items):
            loop.place = place
            inner = scope.inner({"loop": loop})
            bind(inner, one)
            if body(inner, out) is Exit.BREAK:
                break
        if not loop.items and other is not None:
            return other(scope.inner({}), out)
        return None

    return run


def _target(node: Any) -> Bind:
    """How a value is given to a name, an attribute of a namespace, or several of them."""
    if isinstance(node, nodes.Name):
        name = node.name

        def set_name(scope: Scope, value: Any) -> None:
            scope.names[name] = value

        return set_name
    if isinstance(node, nodes.NSRef):
        return _attribute_target(node.name, node.attr)
    if not isinstance(node, nodes.Tuple):
        raise UnsupportedError(type(node).__name__)
    inner = [_target(one) for one in node.items]

    def set_all(scope: Scope, value: Any) -> None:
        values = items_of(scope.work, value)
        if len(values) != len(inner):
            raise TemplateError("gives several names another number of values")
        for bind, one in zip(inner, values, strict=True):
            bind(scope, one)

    return set_all


def _attribute_target(name: str, key: str) -> Bind:
    def run(scope: Scope, value: Any) -> None:
        owner = scope.find(name)
        if not isinstance(owner, Namespace):
            raise TemplateError("sets an attribute of what is no namespace")
        owner.attributes[key] = value

    return run


def _assign(node: Any) -> Execute:
    bind, value = _target(node.target), expression(node.node)

    def run(scope: Scope, out: list[str]) -> None:
        del out
        bind(scope, value(scope))

    return run


def _captured(body: Execute) -> Evaluate:
    def run(scope: Scope) -> str:
        out: list[str] = []
        body(scope.inner({}), out)
        return joined(scope.work, "", out)

    return run


def _assign_block(node: Any) -> Execute:
    bind, text = _target(node.target), _captured(block(node.body))
    filters = _filters(node.filter)

    def run(scope: Scope, out: list[str]) -> None:
        del out
        value: Any = text(scope)
        for apply in filters:
            value = apply(scope, value)
        bind(scope, value)

    return run


def _filters(node: Any) -> list[Callable[[Scope, Any], Any]]:
    """The filters of a chain that begins with nothing, in the order in which they are applied."""
    chain = []
    while node is not None:
        chain.append(applied(node))
        node = node.node
    return chain[::-1]


def _filter_block(node: Any) -> Execute:
    text, filters = _captured(block(node.body)), _filters(node.filter)

    def run(scope: Scope, out: list[str]) -> None:
        value: Any = text(scope)
        for apply in filters:
            value = apply(scope, value)
        if not isinstance(value, str):
            raise TemplateError("prints a filtered block that is no text")
        scope.work.make(len(value))
        out.append(value)

    return run


def _with(node: Any) -> Execute:
    bindings = [
        (_target(target), expression(value))
        for target, value in zip(node.targets, node.values, strict=True)
    ]
    body = block(node.body)

    def run(scope: Scope, out: list[str]) -> Exit | None:
        inner = scope.inner({})
        for bind, value in bindings:
            bind(inner, value(scope))
        return body(inner, out)

    return run


class _Macro:
    """A macro where it was defined: it sees the names around it as they are when it is called."""

    __slots__ = ("_body", "_parameters", "_scope")

    def __init__(
        self, scope: Scope, parameters: list[tuple[str, Evaluate | None]], body: Evaluate
    ) -> None:
        self._scope = scope
        self._parameters = parameters
        self._body = body

    def call(self, work: Work, args: list[Any], kwargs: dict[str, Any]) -> str:
        """See `Function.call`."""
        work.enter()
        text: str = self._body(self._bound(args, kwargs))
        work.leave()
        return text

    def _bound(self, args: list[Any], kwargs: dict[str, Any]) -> Scope:
        """The scope of its body, with a value for each parameter."""
        given = dict(kwargs)
        inner = self._scope.inner({"caller": given.pop("caller", UNDEFINED)})
        if len(args) > len(self._parameters):
            raise TemplateError("gives a macro too many arguments")
        for place, (name, default) in enumerate(self._parameters):
            if place < len(args):
                value = args[place]
            elif name in given:
                value = given.pop(name)
            else:
                value = UNDEFINED if default is None else default(inner)
            inner.names[name] = value
        if given:
            raise TemplateError("gives a macro an argument that it does not have")
        return inner


def _parameters(node: Any) -> list[tuple[str, Evaluate | None]]:
    names = [one.name for one in node.args]
    defaults: list[Evaluate | None] = [None] * (len(names) - len(node.defaults))
    return list(zip(names, [*defaults, *map(expression, node.defaults)], strict=True))


def _macro(node: Any) -> Execute:
    name, parameters, body = node.name, _parameters(node), _captured(block(node.body))

    def run(scope: Scope, out: list[str]) -> None:
        del out
        scope.names[name] = _Macro(scope, parameters, body)

    return run


def _call_block(node: Any) -> Execute:
    parameters, body = _parameters(node), _captured(block(node.body))
    call = nodes.Call(
        node.call.node,
        node.call.args,
        [*node.call.kwargs, nodes.Keyword("caller", nodes.Name(_CALLER, "load"))],
        node.call.dyn_args,
        node.call.dyn_kwargs,
    )
    text = printed(call)

    def run(scope: Scope, out: list[str]) -> None:
        caller = _Macro(scope, parameters, body)
        written = text(scope.inner({_CALLER: caller}))
        scope.work.make(len(written))
        out.append(written)

    return run


def _leave(how: Exit) -> Callable[[Any], Execute]:
    return lambda _node: lambda _scope, _out: how


_COMPILERS: Final[Mapping[type, Callable[[Any], Execute]]] = {
    nodes.Output: _output,
    nodes.If: _if,
    nodes.For: _for,
    nodes.Assign: _assign,
    nodes.AssignBlock: _assign_block,
    nodes.FilterBlock: _filter_block,
    nodes.With: _with,
    nodes.Macro: _macro,
    nodes.CallBlock: _call_block,
    nodes.Break: _leave(Exit.BREAK),
    nodes.Continue: _leave(Exit.CONTINUE),
}
