"""What is left of a tenant's limits, asked of the running gateway over its admin socket."""

from pathlib import Path
from typing import Any
from uuid import UUID

from gateway.cli.asking import BadAnswerError, NoGatewayError, SocketConnection
from gateway.cli.asking import ask as ask_gateway

TIMEOUT_S = 2.0


class LeftUnavailableError(Exception):
    """A gateway runs but did not say what is left."""


def ask(path: Path, tenant_id: UUID) -> dict[str, Any] | None:
    """What the gateway answers, or None where none runs. Raises LeftUnavailableError.

    Requests and tokens left this minute by limit (null: not limited), and the requests `queued` and
    `running` now.
    """
    try:
        answer = ask_gateway(SocketConnection(path, TIMEOUT_S), f"/left?tenant={tenant_id}")
    except NoGatewayError:
        return None
    except BadAnswerError as error:
        raise LeftUnavailableError(f"the gateway does not answer: {error}") from error
    if not isinstance(answer, dict):
        raise LeftUnavailableError("the gateway gives no figures for this tenant")
    return answer
