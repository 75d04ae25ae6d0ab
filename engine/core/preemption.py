"""Whom to preempt: for want of a block, the newest; without need, nobody but in tests."""

from collections.abc import Callable, Sequence
from typing import Protocol

from engine.core.request import Request


class PreemptionPolicy(Protocol):
    """Chooses running requests to preempt at the start of a step, before anything is scheduled."""

    def victims(self, step: int, running: Sequence[Request]) -> Sequence[Request]:
        """The requests to preempt now; a subset of `running`."""
        ...


class PreemptWhenFull:
    """Forces nothing: requests are preempted only when a block is needed and none is idle."""

    def victims(self, step: int, running: Sequence[Request]) -> Sequence[Request]:  # noqa: ARG002 - the port's signature
        """Nobody."""
        return ()


class PreemptEvery:
    """Preempts every `every` steps, to show that output does not depend on preemption.

    It spares a request that has emitted nothing since it was last preempted: else a long prompt,
    computed in chunks, would never end.
    """

    def __init__(self, every: int) -> None:
        self._every = every

    def victims(self, step: int, running: Sequence[Request]) -> Sequence[Request]:
        """All running requests that have emitted since their last preemption."""
        if step % self._every:
            return ()
        return [
            request
            for request in running
            if len(request.output_token_ids) > request.num_outputs_at_preemption
        ]


def victim_for(
    request: Request, running: Sequence[Request], frees_a_block: Callable[[Request], bool]
) -> Request | None:
    """The newest of `running` (oldest first), not older than `request`, that frees a block now.

    None (all their blocks are shared or pinned) makes `request` wait a step. Without pins that
    cannot happen to the oldest: then it alone would hold the whole pool, and have ended.
    """
    for candidate in reversed(running):
        if frees_a_block(candidate):
            return candidate
        if candidate is request:
            return None
    return None
