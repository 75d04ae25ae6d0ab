"""Folds logged inputs through a dispatcher and compares what follows with the effects logged.

The audit and the recovery after a crash read a log with this: the one reports every difference, the
other refuses to go on from the first.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any

from fairness import checkpoint
from fairness.checkpoint import CheckpointError
from fairness.codec import is_input, kind
from fairness.dispatcher import Dispatcher
from fairness.events import Effect, Event, Input
from fairness.journal import Header
from fairness.policy import FcfsPolicy, Policy, VtcPolicy

POLICIES: dict[str, type[Policy]] = {one.name: one for one in (VtcPolicy, FcfsPolicy)}


def restored(header: Header, state: Mapping[str, Any]) -> Dispatcher:
    """The dispatcher of this state under a header's settings. Raises CheckpointError."""
    policy = POLICIES.get(header.policy)
    if policy is None:
        raise CheckpointError(f"no policy of the name {header.policy!r} is known")
    return checkpoint.load(header.config, policy(), state)


class Replay:
    """`owed` are effects of the last input that the log has not shown yet."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher
        self.owed: deque[Effect] = deque()
        self.now = 0.0

    def take(self, event: Event) -> str | None:
        """The next event of the log; what is wrong with it, if it is not the one that follows.

        After a wrong event the dispatcher is no longer what wrote the log.
        """
        if is_input(event):
            return self._input(event)  # type: ignore[arg-type]
        expected = self.owed.popleft() if self.owed else None
        if expected == event:
            return None
        if expected is None:
            return "nothing that came in has this effect"
        return f"what came in has another effect here: {described(expected)}"

    def _input(self, event: Input) -> str | None:
        problem = None
        if self.owed:
            problem = f"before it belongs an effect that is missing: {described(self.owed[0])}"
        elif event.now < self.now:
            problem = f"its time {event.now} is before that of the event before it, {self.now}"
        else:
            self.now = event.now
            self.owed.extend(self.dispatcher.apply(event))
        return problem


def described(event: Event) -> str:
    """An event in a few words: its kind, and whom it is about."""
    parts = [kind(event)]
    for name in ("request", "tenant", "replica"):
        value = getattr(event, name, None)
        if value is not None:
            parts.append(f"{name} {value}")
    return " ".join(parts)
