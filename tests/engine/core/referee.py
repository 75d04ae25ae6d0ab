"""The scheduler's rules restated over plain lists, slow and obvious, to hold its decisions against.

The referee does not decide anything: it is told what the scheduler tried, preempted and scheduled,
and fails the test if the rules as they are written do not lead to the same.
"""

from collections import Counter

from engine.core.config import CoreConfig
from engine.core.request import NO_BLOCK, Request, RequestStatus

MAX_REFUSALS = 8


class Referee:
    """Watches one scheduler, step by step."""

    def __init__(self, settings: CoreConfig, scheduler, pool) -> None:
        self._settings = settings
        self._scheduler = scheduler
        self._pool = pool
        self._passes: Counter = Counter()  # by family
        self._may_force = False
        self._num_preempted = 0
        self._admitted: list[Request] = []
        self._refused: list[Request] = []
        self._watch()

    def begin_step(self, *, may_force: bool) -> None:
        self._may_force = may_force
        self._num_preempted = 0
        self._admitted, self._refused = [], []

    def check_batch(self, batch) -> None:
        """Decodes come first, one token each; prefills share what is left."""
        veterans = [each for each in self._scheduler._running if each not in self._admitted]
        decodes = [each for each in veterans if pending(each) == 1 and self._has_room(each)]
        prefills = [each for each in veterans if pending(each) > 1] + self._admitted
        chunks = dict.fromkeys(decodes, 1) | self._shares(prefills, len(decodes))
        rows = [(row.request_id, row.start, len(row.token_ids)) for row in batch.rows]
        assert rows == [
            (each.request_id, each.num_computed_tokens, chunk) for each, chunk in chunks.items()
        ]
        for row in batch.rows:
            wanted = self._scheduler.requests[row.request_id]
            stop = row.start + len(row.token_ids)
            assert row.samples == (stop == len(tokens_of(wanted)))
            reached = range(row.start + 1, min(stop + 1, len(wanted.prompt_token_ids)))
            asked = wanted.sampling.prompt_logprobs is not None
            unscored = [at for at in reached if asked and at >= wanted.num_scored_tokens]
            assert list(row.scored) == unscored

    def _shares(self, prefills: list[Request], num_decodes: int) -> dict[Request, int]:
        """A quarter of the budget each, in turn; then the rest, oldest first."""
        budget = self._settings.max_num_batched_tokens
        threshold = self._settings.long_prefill_token_threshold
        left = budget - num_decodes
        shares = {}
        for each in prefills:
            shares[each] = min(self._wanted(each), threshold or (budget + 3) // 4, left)
            left -= shares[each]
        for each in sorted(prefills, key=lambda each: each.arrival):
            more = min(self._wanted(each), threshold or budget) - shares[each]
            shares[each] += min(more, left)
            left -= min(more, left)
        oldest_first = sorted(shares, key=lambda each: each.arrival)
        return {each: shares[each] for each in oldest_first if shares[each]}

    def _wanted(self, each: Request) -> int:
        """A prompt's last token waits a step for the siblings who fork before it."""
        siblings = [other for other in self._scheduler.requests.values() if each is not other]
        alone = all(other.family is not each.family for other in siblings)
        if alone or each.output_token_ids or pending(each) == 1:
            return pending(each)
        return pending(each) - 1

    def _has_room(self, wanted: Request) -> bool:
        room = len(wanted.block_tables[0]) * self._settings.block_size
        return len(tokens_of(wanted)) <= room

    def _victims(self) -> list[Request]:
        """Preempted requests, oldest first."""
        every = self._scheduler.requests.values()
        victims = [each for each in every if each.status is RequestStatus.PREEMPTED]
        return sorted(victims, key=lambda each: each.arrival)

    def _heads(self) -> list[Request]:
        """Arrivals that could start now, oldest first: of each family the oldest that waits."""
        families: dict = {}
        for each in self._scheduler.requests.values():
            families.setdefault(each.family, []).append(each)
        heads = []
        for members in families.values():
            waiting = [each for each in members if each.status is RequestStatus.WAITING]
            if waiting and not self._waits_for_prompt(waiting[0], members):
                heads.append(waiting[0])
        return sorted(heads, key=lambda each: each.arrival)

    def _waits_for_prompt(self, sample: Request, members: list[Request]) -> bool:
        """An older sample is there to compute the prompt, and nobody has it computed."""
        if sample is members[0]:
            return False
        return not any(
            each.status is RequestStatus.RUNNING
            and each.num_computed_tokens >= max(1, len(sample.prompt_token_ids) - 1)
            for each in members
            if each is not sample
        )

    def _tried(self, wanted: Request, *, fits: bool) -> None:
        """It was this one's turn."""
        assert self._num_preempted == 0
        assert len(self._scheduler._running) < self._settings.max_num_seqs
        if victims := self._victims():
            assert wanted is victims[0]
            assert not self._refused
        else:
            heads = self._heads()
            assert heads[: heads.index(wanted)] == self._refused
            assert not self._is_barred()
            for passed in self._refused if fits else ():
                self._passes[passed.family] += 1
        (self._admitted if fits else self._refused).append(wanted)

    def _is_barred(self) -> bool:
        """Whether a refused arrival may not be passed, or too many were refused."""
        limit = self._settings.max_passes
        return len(self._refused) >= MAX_REFUSALS or any(
            self._passes[each.family] >= limit for each in self._refused
        )

    def _nobody_was_forgotten(self, plan) -> None:
        """With budget and slots left, whoever's turn it would be was refused or is barred."""
        if plan.budget == 0 or len(self._scheduler._running) == self._settings.max_num_seqs:
            return
        if victims := self._victims():
            assert self._refused == victims[:1]
        else:
            assert self._is_barred() or self._heads() == self._refused

    def _preempts(self, victim: Request) -> None:
        """The newest running request that frees a block, for want of one."""
        self._num_preempted += 1
        if self._may_force:
            return
        assert self._pool.num_idle < len(self._settings.windows)
        holders: Counter = Counter()
        running = list(self._scheduler._running)
        for each in running:
            holders.update(blocks_of(each))
        newest = next(
            each
            for each in reversed(running)
            if any(
                holders[block] == 1 and self._pool.num_unpinned([block])
                for block in blocks_of(each)
            )
        )
        assert victim is newest

    def _watch(self) -> None:
        scheduler = self._scheduler
        place, preempt, admit = scheduler._place, scheduler._preempt, scheduler._admit

        def watched_place(wanted, plan):
            assert plan.budget > 0
            fits = place(wanted, plan)
            self._tried(wanted, fits=fits)
            return fits

        def watched_preempt(victim, plan):
            self._preempts(victim)
            preempt(victim, plan)

        def watched_admit(plan):
            admit(plan)
            self._nobody_was_forgotten(plan)

        scheduler._place, scheduler._preempt = watched_place, watched_preempt
        scheduler._admit = watched_admit


def tokens_of(wanted: Request) -> list[int]:
    return [*wanted.prompt_token_ids, *wanted.output_token_ids]


def pending(wanted: Request) -> int:
    return len(tokens_of(wanted)) - wanted.num_computed_tokens


def blocks_of(wanted: Request) -> list[int]:
    return [block for table in wanted.block_tables for block in table if block != NO_BLOCK]
