"""Dispatch by path and method alone; every miss is one of our errors, never a framework's body.

The Host header takes no part: `scope["path"]` is what was asked for.
"""

from starlette.routing import Route, Router

from gateway.errors import MethodNotSupported, UnknownUrl
from gateway.guard import App, Receive, Scope, Send


class Only:
    """An application for some methods of its path. Raises MethodNotSupported for the others."""

    def __init__(self, app: App, *methods: str) -> None:
        self._app = app
        self._methods = frozenset(methods)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve, or refuse the method."""
        if scope["method"] not in self._methods:
            raise MethodNotSupported(f"Not allowed to {scope['method']} on {scope['path'][:200]}.")
        await self._app(scope, receive, send)


async def unknown_url(scope: Scope, receive: Receive, send: Send) -> None:
    """What no route matches."""
    del receive, send
    raise UnknownUrl(f"Unknown request URL: {scope['method']} {scope['path'][:200]}.")


def router(routes: dict[tuple[str, str], App]) -> Router:
    """A router over (methods, path) to application; methods are separated by blanks."""
    return Router(
        [Route(path, Only(app, *methods.split())) for (methods, path), app in routes.items()],
        redirect_slashes=False,
        default=unknown_url,
    )
