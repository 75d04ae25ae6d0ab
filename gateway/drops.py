"""What becomes of a request that the fair queue will not, or no longer, hold: reason and answer.

Every drop has one reason, the label of `evenhand_drops_total`, and one error for its client.
Limits may shrink and replicas leave while a request waits, so a refusal need not come at arrival.
"""

from typing import Final

from engine.protocol.errors import InvalidRequest
from fairness.events import Expired, Refused
from fairness.types import RefusalReason
from gateway.errors import (
    GatewayError,
    LimitExceeded,
    NoHealthyUpstream,
    NoReplicaFits,
    PredictedWait,
    QueueTimeout,
)
from gateway.ticket import Ticket

EXPIRED: Final = "expired"
NO_HEALTHY_UPSTREAM: Final = "no_healthy_upstream"
# For clients that nobody can tell when to come back: a replica that returns is seen within seconds.
RETRY_AFTER_S: Final = 5.0
LEAST_RETRY_S: Final = 1.0


def reason_of(effect: Expired | Refused) -> str:
    """The drop's reason, as metrics name it."""
    if isinstance(effect, Refused):
        return effect.reason.value
    return EXPIRED if effect.replicas_up else NO_HEALTHY_UPSTREAM


def expiry(effect: Expired, wait_s: float) -> GatewayError:
    """The answer to a request that waited its whole time to live.

    `wait_s` is how long what its tenant still has waiting will take, 0 when nobody can say.
    """
    if not effect.replicas_up:
        return NoHealthyUpstream(
            "No server for this model is available right now.", retry_after_s=RETRY_AFTER_S
        )
    return QueueTimeout(
        "The request waited too long for a free place. Please retry later.",
        retry_after_s=max(LEAST_RETRY_S, wait_s) if wait_s else RETRY_AFTER_S,
    )


def refusal(effect: Refused, ticket: Ticket) -> GatewayError | InvalidRequest:
    """The answer to a request that can never be granted, or not in time."""
    match effect.reason:
        case RefusalReason.NO_REPLICA_FITS:
            # It fitted when it was admitted: the replica that held so much may come back.
            return NoReplicaFits(
                "No server that is up can hold this request right now.",
                retry_after_s=effect.retry_after_s or RETRY_AFTER_S,
            )
        case RefusalReason.PREDICTED_WAIT:
            return PredictedWait(
                "Your waiting requests already fill the time a request may wait. Please retry"
                " later.",
                retry_after_s=effect.retry_after_s or RETRY_AFTER_S,
            )
        case RefusalReason.RATE:
            return LimitExceeded(
                "Too many requests for the policy this pool runs.",
                dimension="rate",
                level="pool",
                retry_after_s=effect.retry_after_s,
            )
        case _:
            return _over_limit(effect.reason, ticket)


def _over_limit(reason: RefusalReason, ticket: Ticket) -> InvalidRequest:
    """A limit of the tenant's own shrank below what waits."""
    if reason is RefusalReason.CONCURRENCY:
        return InvalidRequest(
            f"n is {ticket.sequences}, over the concurrency limit in force now.",
            param="n",
            code="invalid_value",
        )
    if reason is RefusalReason.OUTPUT_LIMIT:
        return InvalidRequest(
            f"An answer of up to {ticket.max_output_tokens} tokens is over the max_output limit in"
            " force now.",
            param="max_tokens",
            code="invalid_value",
        )
    return InvalidRequest(
        f"The prompt has {ticket.prompt_tokens} tokens, more than the limit in force now.",
        param=ticket.prompt_param,
        code="context_length_exceeded",
    )
