"""Decides each step which tokens of which requests are computed, and where their KV blocks live.

There is no prefill phase and no decode phase: a request's computed tokens catch up with its known
tokens under the step's token budget. `schedule` returns a value, `update` takes what the runner
made of it; nothing here calls a model or reads a clock.

Who decides: this class whom to run; `WaitingQueue` who is next, `Plan` how the budget is shared,
`ThrashGovernor` how many blocks admissions leave idle, `Family` which sample computes a prompt.
Who owns a block: the pool; a running request holds references to its own until it ends or is
preempted, and nobody else does anything with them.

What must hold: requests are ordered by arrival, and an older one never yields to a newer. Memory
for the whole known sequence is taken at admission, so a running request needs new blocks only for
its next token. When none is idle the newest request that frees one is preempted: it loses its
blocks but not its output, and resumes before later arrivals by recomputing. The oldest running
request therefore always progresses.

What goes wrong for one request ends it, with `error`, and nobody else.
"""

from bisect import insort
from dataclasses import dataclass

from engine.core.batch import (
    Admission,
    EmittedToken,
    Failure,
    SampledToken,
    ScheduledRow,
    ScoredPrompt,
    StepReport,
)
from engine.core.config import CoreConfig
from engine.core.errors import DuplicateRequest, NeverFits
from engine.core.execution import Outcome
from engine.core.governor import ThrashGovernor
from engine.core.kv_cache import KVCache
from engine.core.plan import Plan, Schedule
from engine.core.preemption import PreemptionPolicy, victim_for
from engine.core.request import FinishReason, Request, RequestStatus
from engine.core.samples import Family
from engine.core.waiting_queue import WaitingQueue


@dataclass(slots=True)
class SchedulerCounts:
    """Totals since the start. Hits are counted once, at a family's first admission."""

    preemptions: int = 0
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    copied_blocks: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0


class Scheduler:
    """Owns every unfinished request; `kv_cache` owns the blocks they hold."""

    def __init__(self, config: CoreConfig, kv_cache: KVCache, preemption: PreemptionPolicy) -> None:
        self._config = config
        self._kv_cache = kv_cache
        self._preemption = preemption
        self._governor = ThrashGovernor(config)
        self._requests: dict[str, Request] = {}
        self._waiting = WaitingQueue(config)
        self._running: list[Request] = []  # oldest first
        self._num_added = 0
        self._step = 0
        self._max_sequence_tokens = config.max_sequence_tokens
        self.counts = SchedulerCounts()

    @property
    def num_running(self) -> int:
        """Requests that hold blocks."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Requests that wait, preempted ones included."""
        return len(self._waiting)

    @property
    def requests(self) -> dict[str, Request]:
        """The unfinished requests by id; not to be changed."""
        return self._requests

    @property
    def reserve_blocks(self) -> int:
        """How many blocks an admission must leave idle now, while anything runs."""
        return self._governor.reserve_blocks

    def add(self, *requests: Request) -> None:
        """Take the samples of one prompt, all or none.

        Raises DuplicateRequest, NeverFits or QueueFull, and ValueError if the prompts differ or
        have no token.
        """
        prompt, namespace = requests[0].prompt_token_ids, requests[0].namespace
        if not prompt:
            raise ValueError("a prompt has at least one token")
        ids = {request.request_id for request in requests}
        for request in requests:
            if request.prompt_token_ids != prompt or request.namespace != namespace:
                raise ValueError("requests that are added together must share their prompt")
            if request.request_id in self._requests or len(ids) < len(requests):
                raise DuplicateRequest(request.request_id)
        if len(prompt) >= self._max_sequence_tokens:
            raise NeverFits(len(prompt), self._max_sequence_tokens)
        family = Family(requests)
        self._waiting.add(family)
        for request in requests:
            request.arrival = self._num_added
            request.family = family
            self._num_added += 1
            self._requests[request.request_id] = request

    def schedule(self) -> Schedule:
        """Decide one step: decodes, then running prefills, then whoever can start."""
        self._step += 1
        plan = Plan(self._config)
        for victim in tuple(self._preemption.victims(self._step, self._running)):
            self._preempt(victim, plan)
        decodes, prefills = self._pending()
        for request in decodes:
            if request.status is RequestStatus.RUNNING and self._has_room(request, plan):
                plan.decode(request)
        for request in prefills:
            if request.status is RequestStatus.RUNNING:
                plan.prefill(request)
        if plan.num_preempted == 0:
            self._admit(plan)
        return plan.finish(self._step)

    def update(self, schedule: Schedule, outcome: Outcome) -> StepReport:
        """Account for a computed step: publish full blocks, append sampled tokens, end requests."""
        emitted: list[EmittedToken] = []
        scored: list[ScoredPrompt] = []
        failed = list(schedule.failed)
        lost_before = self.counts.recomputed_tokens
        for request, row in zip(schedule.requests, schedule.batch.rows, strict=True):
            if request.status is not RequestStatus.RUNNING:
                continue  # ended since it was scheduled; its blocks are gone already
            failure = self._advance(request, row, outcome)
            if failure is not None:
                self.end(request.request_id, FinishReason.ERROR)
                failed.append(failure)
                continue
            if row.scored:
                scored.append(self._score(request, row, outcome))
            if row.samples:
                emitted.append(self._append(request, outcome.sampled[request.request_id]))
        num_tokens = schedule.batch.num_tokens
        self.counts.computed_tokens += num_tokens
        if num_tokens:
            self._governor.observe(num_tokens, self.counts.recomputed_tokens - lost_before)
        return StepReport(
            schedule.batch.step,
            schedule.admitted,
            tuple(emitted),
            num_tokens,
            schedule.num_preempted,
            tuple(scored),
            tuple(failed),
        )

    def end(self, request_id: str, reason: FinishReason) -> bool:
        """End a request in whatever state it is; its blocks are back at once. False if unknown."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return False
        if request.status is RequestStatus.RUNNING:
            self._running.remove(request)
        else:
            self._waiting.remove(request)
        request.family.members.remove(request)
        self._kv_cache.free(request)
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        return True

    def _pending(self) -> tuple[list[Request], list[Request]]:
        """The running requests that lack one token, and those that lack more; oldest first."""
        decodes: list[Request] = []
        prefills: list[Request] = []
        for request in self._running:
            (decodes if request.num_pending_tokens == 1 else prefills).append(request)
        return decodes, prefills

    def _has_room(self, request: Request, plan: Plan) -> bool:
        """Give the request a place for its next token, preempting newer ones while none is idle.

        Decodes are scheduled oldest first and before prefills, so no victim has a row yet. Where
        the oldest could only yield to newer ones, what they hold is pinned: the pins go first.
        """
        try:
            while not self._kv_cache.extend(request):
                victim = victim_for(request, self._running, self._kv_cache.frees_a_block)
                stuck = request is self._running[0] and victim in {None, request}
                if stuck and self._kv_cache.release_pins():
                    continue
                if victim is None:
                    return False
                self._preempt(victim, plan)
                if victim is request:
                    return False
        except Exception as error:  # noqa: BLE001 - reported for the request it belongs to
            self._fail(request, error, plan)
            return False
        return True

    def _preempt(self, request: Request, plan: Plan) -> None:
        """Take the request's blocks; it keeps its output and its place before later arrivals."""
        self._running.remove(request)
        self._kv_cache.free(request)
        request.num_lost_tokens = max(request.num_lost_tokens, request.num_computed_tokens)
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.num_outputs_at_preemption = len(request.output_token_ids)
        request.status = RequestStatus.PREEMPTED
        self._waiting.requeue(request)
        self.counts.preemptions += 1
        plan.num_preempted += 1

    def _admit(self, plan: Plan) -> None:
        """Start waiting requests while budget, slots and memory last."""
        for request in self._waiting.candidates():
            if plan.budget == 0 or len(self._running) == self._config.max_num_seqs:
                return
            try:
                fits = self._place(request, plan)
            except Exception as error:  # noqa: BLE001 - reported for the request it belongs to
                self._fail(request, error, plan)
                continue
            if fits:
                self._start(request, plan)

    def _place(self, request: Request, plan: Plan) -> bool:
        """Give the request blocks for all it knows; False, changing nothing, if they do not fit.

        A sample shares those of a sibling that has their prompt. While anything runs, an admission
        must leave the reserve idle: running requests will soon need those blocks. When nothing
        does, even pinned blocks are released.
        """
        sibling = request.family.source(request)
        if sibling is not None:
            copies = self._kv_cache.fork(sibling, request, self.reserve_blocks)
            if copies is None:
                return False
            plan.copy(copies)
            self.counts.copied_blocks += len(copies)
            return True
        if self._running:
            return self._kv_cache.admit(request, self.reserve_blocks)
        return self._kv_cache.admit(request, 0) or (
            self._kv_cache.release_pins() > 0 and self._kv_cache.admit(request, 0)
        )

    def _start(self, request: Request, plan: Plan) -> None:
        self._waiting.remove(request)
        request.status = RequestStatus.RUNNING
        insort(self._running, request, key=lambda running: running.arrival)
        if request.num_preemptions == 0:
            plan.admitted.append(self._first_admission(request))
        plan.prefill(request)

    def _first_admission(self, request: Request) -> Admission:
        """Report what was hit; samples share one prompt, which counts as the first found it."""
        family = request.family
        if family.num_cached_tokens is None:
            family.num_cached_tokens = request.num_computed_tokens
            if self._kv_cache.looks_up(request):
                self.counts.prefix_query_tokens += len(request.prompt_token_ids)
                self.counts.prefix_hit_tokens += request.num_computed_tokens
        request.num_cached_tokens = family.num_cached_tokens
        return Admission(request.request_id, request.num_cached_tokens)

    def _advance(self, request: Request, row: ScheduledRow, outcome: Outcome) -> Failure | None:
        """Count the row's tokens as computed and publish what they filled, unless it failed."""
        if outcome.failed and request.request_id in outcome.failed:
            return outcome.failed[request.request_id]
        stop = row.start + len(row.token_ids)
        if row.start < request.num_lost_tokens:
            self.counts.recomputed_tokens += min(stop, request.num_lost_tokens) - row.start
        request.num_computed_tokens = stop
        try:
            self._kv_cache.commit(request)
        except Exception as error:  # noqa: BLE001 - reported for the request it belongs to
            return Failure(request.request_id, "schedule", error)
        return None

    def _score(self, request: Request, row: ScheduledRow, outcome: Outcome) -> ScoredPrompt:
        """Deliver scores; a prompt's are the same for all its samples, so it is scored once."""
        for member in request.family.members:
            member.num_scored_tokens = row.scored.stop
        return ScoredPrompt(
            request.request_id, row.scored.start, outcome.scored[request.request_id]
        )

    def _append(self, request: Request, sampled: SampledToken) -> EmittedToken:
        """Add a sampled token to the request and end the request if it was its last."""
        output, token_id, params = request.output_token_ids, sampled.token_id, request.sampling
        output.append(token_id)
        reason: FinishReason | None = None
        if token_id in params.stop_token_ids and len(output) >= params.min_tokens:
            reason = FinishReason.STOP
        elif (
            len(output) >= params.max_tokens
            or len(request.prompt_token_ids) + len(output) >= self._max_sequence_tokens
        ):
            reason = FinishReason.LENGTH
        if reason is not None:
            self.end(request.request_id, reason)
        return EmittedToken(request.request_id, token_id, reason, sampled.logprobs)

    def _fail(self, request: Request, error: Exception, plan: Plan) -> None:
        self.end(request.request_id, FinishReason.ERROR)
        plan.failed.append(Failure(request.request_id, "schedule", error))
