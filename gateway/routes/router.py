"""Dispatch by path and method alone; every miss is one of our errors, never a framework's body.

The Host header takes no part: `scope["path"]` is what was asked for. A path that ends in `/*`
stands for every path below it, and the rest is in `scope["path_params"]["rest"]`.
"""

from collections.abc import Mapping

from gateway.errors import MethodNotSupported, UnknownUrl
from gateway.guard import App, Receive, Scope, Send


class Router:
    """An application over (methods, path) to application; methods are separated by blanks.

    Raises UnknownUrl and MethodNotSupported.
    """

    def __init__(self, routes: Mapping[tuple[str, str], App]) -> None:
        self._exact: dict[str, tuple[frozenset[str], App]] = {}
        self._below: dict[str, tuple[frozenset[str], App]] = {}
        for (methods, path), app in routes.items():
            kind = self._below if path.endswith("/*") else self._exact
            kind[path.removesuffix("*")] = (frozenset(methods.split()), app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the route, or say what is wrong with the request line."""
        path, method = scope["path"], scope["method"]
        found = self._exact.get(path) or self._match_below(scope, path)
        if found is None:
            raise UnknownUrl(f"Unknown request URL: {method} {path[:200]}.")
        methods, app = found
        if method not in methods:
            raise MethodNotSupported(f"Not allowed to {method} on {path[:200]}.")
        await app(scope, receive, send)

    def _match_below(self, scope: Scope, path: str) -> tuple[frozenset[str], App] | None:
        for prefix, found in self._below.items():
            if path.startswith(prefix):
                scope["path_params"] = {"rest": path[len(prefix) :]}
                return found
        return None
