"""Requests that share one prompt, so that it is computed once for all of them.

The oldest unfinished sample computes the prompt. A younger one waits, in nobody's way, until some
running sample has the prompt computed but for its last token, and forks from it. A sample with
siblings gives that last token a step of its own: it may end in that step, and those for whom there
is room have forked by then. If the oldest ends before, for whatever reason, the next one is the
oldest: a family can always go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from engine.core.request import Request


class Family:
    """The samples of one prompt; a request that was added alone is a family of one.

    `members` are the unfinished samples, `waiting` those never admitted, both oldest first.
    `num_passes` counts the admissions that passed the family in the queue. `num_cached_tokens`,
    set by the first admission, is how much of the prompt was a hit.
    """

    __slots__ = ("members", "num_cached_tokens", "num_passes", "waiting")

    def __init__(self, requests: Iterable[Request]) -> None:
        self.members = list(requests)
        self.waiting = list(self.members)
        self.num_passes = 0
        self.num_cached_tokens: int | None = None

    @property
    def num_prompt_tokens(self) -> int:
        """The length of the one prompt."""
        return len(self.members[0].prompt_token_ids)

    def ready(self) -> Request | None:
        """The sample that may start next; None while it waits for the prompt, or nobody waits."""
        if not self.waiting:
            return None
        sample = self.waiting[0]
        return sample if sample is self.members[0] or self.source(sample) else None

    def source(self, sample: Request) -> Request | None:
        """A running sibling that `sample` can fork from: it lacks at most the prompt's last token.

        None for a sample with output of its own: the prefix cache knows more of it.
        """
        if sample.output_token_ids:
            return None
        num_wanted = max(len(sample.prompt_token_ids) - 1, 1)
        for member in self.members:
            if member.num_computed_tokens >= num_wanted and member is not sample:
                return member  # only who runs has computed tokens
        return None

    def num_to_prefill(self, sample: Request) -> int:
        """How many tokens the sample should compute before its next step."""
        num_pending = sample.num_pending_tokens
        if num_pending > 1 and len(self.members) > 1 and not sample.output_token_ids:
            return num_pending - 1
        return num_pending
