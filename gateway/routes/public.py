"""The public listener's small routes: `GET /v1/models[/{id}]` and `GET /health`."""

from collections.abc import Mapping

import orjson

from engine.protocol import shapes
from gateway.admission import CHAT, COMPLETIONS
from gateway.errors import Answer, ModelNotFound
from gateway.guard import App, Receive, Scope, Send, respond
from gateway.routes.dialects import ChatDialect, CompletionDialect
from gateway.routes.inference import JSON, Inference, Service
from gateway.routes.router import Router


class Models:
    """The models of this gateway, to whoever has a good key."""

    def __init__(self, service: Service, created: Mapping[str, int]) -> None:
        self._service = service
        self._cards = {name: shapes.model_card(name, at) for name, at in created.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """All of them, or the one named in the path."""
        del receive
        record = scope["state"]["record"]
        record.route = "/v1/models"
        context = await self._service.auth.authenticate(scope["headers"])
        record.tenant = self._service.metrics.tenant(str(context.tenant_id), context.tenant_slug)
        name = scope.get("path_params", {}).get("rest")
        payload = shapes.model_list(list(self._cards.values())) if name is None else self._one(name)
        headers = JSON + self._service.quotas.headers(context)
        await respond(send, Answer(200, orjson.dumps(payload), headers))

    def _one(self, name: str) -> shapes.JsonObject:
        card = self._cards.get(name)
        if card is None:
            raise ModelNotFound(
                f"The model `{name[:200]}` does not exist or you do not have access to it.",
                param="model",
            )
        return card


async def health(scope: Scope, receive: Receive, send: Send) -> None:
    """The process runs; says nothing of what it depends on."""
    del receive
    scope["state"]["record"].route = "/health"
    await respond(send, Answer(200, b'{"status":"ok"}', JSON))


def public_app(service: Service, created: Mapping[str, int]) -> App:
    """Everything the public listener serves; `created` is Unix seconds per model."""
    models = Models(service, created)
    return Router(
        {
            ("POST", CHAT.name): Inference(service, CHAT, ChatDialect()),
            ("POST", COMPLETIONS.name): Inference(service, COMPLETIONS, CompletionDialect()),
            ("GET", "/v1/models"): models,
            ("GET", "/v1/models/*"): models,
            ("GET HEAD", "/health"): health,
        }
    )
