"""Turns Jinja's syntax trees of expressions into Python closures over a scope.

Only what is listed here is evaluated; every other node is refused when the template is loaded.
Expressions have no loops, so the statement they stand in pays for them by their number of nodes;
whatever depends on the size of a value is paid for where it happens.
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

from jinja2 import nodes

from engine.protocol.text.template.filters import apply_filter
from engine.protocol.text.template.methods import attribute, item, sliced
from engine.protocol.text.template.predicates import apply_test
from engine.protocol.text.template.scope import Scope
from engine.protocol.text.template.values import (
    UNDEFINED,
    add,
    bounded,
    calculate,
    compare,
    contains,
    equal,
    items_of,
    joined,
    key_of,
    multiply,
    text_of,
)
from engine.protocol.text.template.work import TemplateError, Work

Evaluate = Callable[[Scope], Any]


class UnsupportedError(Exception):
    """The template uses a part of Jinja that no chat template needs."""


def expression(node: Any) -> Evaluate:
    """The node as a function of a scope; raises UnsupportedError."""
    compiler = _COMPILERS.get(type(node))
    if compiler is None:
        raise UnsupportedError(type(node).__name__)
    return compiler(node)


def printed(node: Any) -> Evaluate:
    """The node as a function of a scope that gives its text."""
    if isinstance(node, nodes.TemplateData):
        data = node.data
        return lambda _: data
    value = expression(node)

    def run(scope: Scope) -> str:
        found = value(scope)
        return found if type(found) is str else text_of(scope.work, found)

    return run


def _const(node: Any) -> Evaluate:
    value = node.value
    try:
        bounded(value)
        if isinstance(value, str):
            value.encode()
    except TemplateError:
        raise UnsupportedError("a number beyond 64 bits") from None
    except UnicodeEncodeError:
        raise UnsupportedError("half of a surrogate pair") from None
    return lambda _: value


def _template_data(node: Any) -> Evaluate:
    data = node.data
    return lambda _: data


def _name(node: Any) -> Evaluate:
    name = node.name
    return lambda scope: scope.find(name)


def _list(node: Any) -> Evaluate:
    items = [expression(one) for one in node.items]
    return lambda scope: [one(scope) for one in items]


def _tuple(node: Any) -> Evaluate:
    items = [expression(one) for one in node.items]
    return lambda scope: tuple([one(scope) for one in items])


def _dict(node: Any) -> Evaluate:
    pairs = [(expression(pair.key), expression(pair.value)) for pair in node.items]
    return lambda scope: {key_of(scope.work, key(scope)): value(scope) for key, value in pairs}


def _getattr(node: Any) -> Evaluate:
    owner, name = expression(node.node), node.attr
    return lambda scope: attribute(scope.work, owner(scope), name)


def _getitem(node: Any) -> Evaluate:
    owner = expression(node.node)
    if isinstance(node.arg, nodes.Slice):
        start, stop, step = (
            _const(nodes.Const(None)) if bound is None else expression(bound)
            for bound in (node.arg.start, node.arg.stop, node.arg.step)
        )
        return lambda scope: sliced(
            scope.work, owner(scope), slice(start(scope), stop(scope), step(scope))
        )
    key = expression(node.arg)
    return lambda scope: item(scope.work, owner(scope), key(scope))


def _call(node: Any) -> Evaluate:
    callee, arguments = expression(node.node), _arguments(node)

    def run(scope: Scope) -> Any:
        function = callee(scope)
        call = getattr(type(function), "call", None)
        if call is None:
            raise TemplateError("calls what is no function")
        args, kwargs = arguments(scope)
        return call(function, scope.work, args, kwargs)

    return run


def _arguments(node: Any) -> Callable[[Scope], tuple[list[Any], dict[str, Any]]]:
    """Positional and named arguments; `*` takes a list and `**` a dict."""
    positional = [expression(one) for one in node.args]
    named = [(one.key, expression(one.value)) for one in node.kwargs]
    more = None if node.dyn_args is None else expression(node.dyn_args)
    more_named = None if node.dyn_kwargs is None else expression(node.dyn_kwargs)

    def run(scope: Scope) -> tuple[list[Any], dict[str, Any]]:
        args = [one(scope) for one in positional]
        kwargs = {key: one(scope) for key, one in named}
        if more is not None:
            args += items_of(scope.work, more(scope))
        if more_named is not None:
            extra = more_named(scope)
            if not isinstance(extra, dict) or not all(isinstance(key, str) for key in extra):
                raise TemplateError("takes names from what has none")
            scope.work.spend(len(extra))
            kwargs |= extra
        return args, kwargs

    return run


def applied(node: Any) -> Callable[[Scope, Any], Any]:
    """A filter without its operand: a function of a scope and a value."""
    name, arguments = node.name, _arguments(node)

    def run(scope: Scope, value: Any) -> Any:
        args, kwargs = arguments(scope)
        return apply_filter(scope.work, name, value, *args, **kwargs)

    return run


def _filter(node: Any) -> Evaluate:
    if node.node is None:
        raise UnsupportedError("a filter of nothing")
    value, apply = expression(node.node), applied(node)
    return lambda scope: apply(scope, value(scope))


def _test(node: Any) -> Evaluate:
    value, name, arguments = expression(node.node), node.name, _arguments(node)

    def run(scope: Scope) -> bool:
        args, kwargs = arguments(scope)
        return apply_test(scope.work, name, value(scope), *args, **kwargs)

    return run


def _conditional(node: Any) -> Evaluate:
    test, then = expression(node.test), expression(node.expr1)
    other = _const(nodes.Const(UNDEFINED)) if node.expr2 is None else expression(node.expr2)
    return lambda scope: then(scope) if test(scope) else other(scope)


def _and(node: Any) -> Evaluate:
    left, right = expression(node.left), expression(node.right)
    return lambda scope: left(scope) and right(scope)


def _or(node: Any) -> Evaluate:
    left, right = expression(node.left), expression(node.right)
    return lambda scope: left(scope) or right(scope)


def _not(node: Any) -> Evaluate:
    value = expression(node.node)
    return lambda scope: not value(scope)


def _add(node: Any) -> Evaluate:
    left, right = expression(node.left), expression(node.right)
    return lambda scope: add(scope.work, left(scope), right(scope))


def _mul(node: Any) -> Evaluate:
    left, right = expression(node.left), expression(node.right)
    return lambda scope: multiply(scope.work, left(scope), right(scope))


def _numeric(operation: Callable[[Any, Any], Any]) -> Callable[[Any], Evaluate]:
    def compiler(node: Any) -> Evaluate:
        left, right = expression(node.left), expression(node.right)
        return lambda scope: calculate(operation, left(scope), right(scope))

    return compiler


def _signed(operation: Callable[[Any, Any], Any]) -> Callable[[Any], Evaluate]:
    def compiler(node: Any) -> Evaluate:
        value = expression(node.node)
        return lambda scope: calculate(operation, 0, value(scope))

    return compiler


def _concat(node: Any) -> Evaluate:
    parts = [printed(one) for one in node.nodes]
    return lambda scope: joined(scope.work, "", [part(scope) for part in parts])


def _compare(node: Any) -> Evaluate:
    first = expression(node.expr)
    steps = [(_COMPARISONS[one.op], expression(one.expr)) for one in node.ops]
    if len(steps) == 1:
        ((operation, second),) = steps
        return lambda scope: operation(scope.work, first(scope), second(scope))

    def run(scope: Scope) -> bool:
        left = first(scope)
        for operation, second in steps:
            right = second(scope)
            if not operation(scope.work, left, right):
                return False
            left = right
        return True

    return run


def _ordered(operation: Callable[[Any, Any], bool]) -> Callable[[Work, Any, Any], bool]:
    return lambda work, left, right: compare(work, left, right, operation)


_COMPARISONS: Final[Mapping[str, Callable[[Work, Any, Any], bool]]] = {
    "eq": equal,
    "ne": lambda work, left, right: not equal(work, left, right),
    "lt": _ordered(operator.lt),
    "lteq": _ordered(operator.le),
    "gt": _ordered(operator.gt),
    "gteq": _ordered(operator.ge),
    "in": lambda work, left, right: contains(work, right, left),
    "notin": lambda work, left, right: not contains(work, right, left),
}
_COMPILERS: Final[Mapping[type, Callable[[Any], Evaluate]]] = {
    nodes.Const: _const,
    nodes.TemplateData: _template_data,
    nodes.Name: _name,
    nodes.List: _list,
    nodes.Tuple: _tuple,
    nodes.Dict: _dict,
    nodes.Getattr: _getattr,
    nodes.Getitem: _getitem,
    nodes.Call: _call,
    nodes.Filter: _filter,
    nodes.Test: _test,
    nodes.CondExpr: _conditional,
    nodes.And: _and,
    nodes.Or: _or,
    nodes.Not: _not,
    nodes.Add: _add,
    nodes.Sub: _numeric(operator.sub),
    nodes.Mul: _mul,
    nodes.Div: _numeric(operator.truediv),
    nodes.FloorDiv: _numeric(operator.floordiv),
    nodes.Mod: _numeric(operator.mod),
    nodes.Neg: _signed(operator.sub),
    nodes.Pos: _signed(operator.add),
    nodes.Concat: _concat,
    nodes.Compare: _compare,
}
