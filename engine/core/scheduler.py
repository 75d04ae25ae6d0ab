"""Decides each step which tokens of which requests are computed, and where their KV blocks live.

There is no prefill phase and no decode phase: a request's computed tokens catch up with its known
tokens under the step's token budget. `schedule` returns a value, `update` takes what the runner
made of it; nothing here calls a model or reads a clock.

What must hold: requests are ordered by arrival, and an older one never yields to a newer. Memory
for the whole known sequence is taken at admission, so a running request needs at most one block
per step, for its next token. When none is idle the newest request that frees one is preempted: it
loses its blocks but not its output, and resumes before later arrivals by recomputing. The oldest
running request therefore always progresses.
"""

from bisect import insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from engine.core.batch import (
    Admission,
    EmittedToken,
    SampledToken,
    ScheduledBatch,
    ScheduledRow,
)
from engine.core.config import CoreConfig
from engine.core.errors import DuplicateRequest, NeverFits
from engine.core.kv_cache import KVCache
from engine.core.preemption import PreemptionPolicy
from engine.core.request import FinishReason, Request, RequestStatus
from engine.core.waiting_queue import WaitingQueue


@dataclass(frozen=True, slots=True)
class Schedule:
    """One step's decision: the batch, the request behind each row, and who came and went."""

    batch: ScheduledBatch
    requests: tuple[Request, ...]
    admitted: tuple[Admission, ...]
    num_preempted: int


@dataclass(slots=True)
class SchedulerCounts:
    """Totals since the start. Hits are counted once, at a request's first admission."""

    preemptions: int = 0
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0


class _Plan:
    """A schedule in the making: what is left of the token budget, and what it was spent on."""

    __slots__ = ("admitted", "budget", "num_preempted", "requests", "rows")

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.rows: list[ScheduledRow] = []
        self.requests: list[Request] = []
        self.admitted: list[Admission] = []
        self.num_preempted = 0

    def add(self, request: Request, max_tokens: int) -> None:
        """Spend budget on the request's next tokens, if any is left."""
        start = request.num_computed_tokens
        num_known = request.num_tokens
        stop = min(num_known, start + min(self.budget, max_tokens))
        if stop == start:
            return
        self.budget -= stop - start
        self.requests.append(request)
        self.rows.append(
            ScheduledRow(
                request.request_id,
                request.token_ids(start, stop),
                start,
                request.block_tables,
                request.sampling,
                stop == num_known,
                request.prompt_token_ids,
                request.output_token_ids,
            )
        )


class Scheduler:
    """Owns every unfinished request; `kv_cache` owns the blocks they hold."""

    def __init__(self, config: CoreConfig, kv_cache: KVCache, preemption: PreemptionPolicy) -> None:
        self._config = config
        self._kv_cache = kv_cache
        self._preemption = preemption
        self._requests: dict[str, Request] = {}
        self._waiting = WaitingQueue(config.max_waiting_requests, config.max_waiting_tokens)
        self._running: list[Request] = []  # oldest first
        self._num_added = 0
        self._step = 0
        self._max_chunk_tokens = config.max_chunk_tokens
        self._max_sequence_tokens = config.max_sequence_tokens
        self.reserve_blocks = config.reserve_blocks
        self.counts = SchedulerCounts()

    @property
    def num_running(self) -> int:
        """Requests that hold blocks."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for their first admission or to resume."""
        return len(self._waiting)

    @property
    def requests(self) -> Mapping[str, Request]:
        """Every unfinished request by id; read only."""
        return self._requests

    def add(self, request: Request) -> None:
        """Let a new request wait its turn.

        Raises NeverFits, QueueFull or DuplicateRequest, and then keeps nothing.
        """
        if request.request_id in self._requests:
            raise DuplicateRequest(request.request_id)
        num_prompt = len(request.prompt_token_ids)
        if num_prompt >= self._max_sequence_tokens:
            raise NeverFits(num_prompt, self._max_sequence_tokens)
        self._num_added += 1
        request.arrival = self._num_added
        self._waiting.add(request)
        self._requests[request.request_id] = request

    def schedule(self) -> Schedule:
        """Spend one step's token budget: on decodes, then running prefills, then admissions."""
        self._step += 1
        plan = _Plan(self._config.max_num_batched_tokens)
        for victim in tuple(self._preemption.victims(self._step, self._running)):
            self._preempt(victim, plan)
        decodes = [request for request in self._running if request.num_pending_tokens == 1]
        prefills = [request for request in self._running if request.num_pending_tokens > 1]
        for request in decodes:
            if request.status is RequestStatus.RUNNING and self._make_room(request, plan):
                plan.add(request, 1)
        for request in prefills:
            if request.status is RequestStatus.RUNNING:
                plan.add(request, self._max_chunk_tokens)
        if plan.num_preempted == 0:
            self._admit(plan)
        return self._finish_plan(plan)

    def update(
        self, schedule: Schedule, sampled: Mapping[str, SampledToken]
    ) -> tuple[EmittedToken, ...]:
        """Account for a computed step: publish full blocks, append sampled tokens, end requests."""
        emitted: list[EmittedToken] = []
        for request, row in zip(schedule.requests, schedule.batch.rows, strict=True):
            if request.status is not RequestStatus.RUNNING:
                continue  # ended since it was scheduled; its blocks are gone already
            stop = row.start + len(row.token_ids)
            if row.start < request.num_lost_tokens:
                self.counts.recomputed_tokens += min(stop, request.num_lost_tokens) - row.start
            request.num_computed_tokens = stop
            self._kv_cache.commit(request)
            if row.samples:
                emitted.append(self._append(request, sampled[request.request_id]))
        self.counts.computed_tokens += schedule.batch.num_tokens
        return tuple(emitted)

    def end(self, request_id: str, reason: FinishReason) -> bool:
        """End a request in whatever state it is; its blocks are back at once. False if unknown."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return False
        if request.status is RequestStatus.RUNNING:
            self._running.remove(request)
        else:
            self._waiting.remove(request)
        self._kv_cache.free(request)
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        return True

    def end_all(self, requests: Iterable[Request], reason: FinishReason) -> tuple[str, ...]:
        """End these requests for the same reason; their ids, without those ended before."""
        return tuple(
            request.request_id for request in requests if self.end(request.request_id, reason)
        )

    def _make_room(self, request: Request, plan: _Plan) -> bool:
        """Give the request a place for its next token, preempting newer ones while none is idle.

        Decodes are scheduled oldest first and before prefills, so no victim has a row yet.
        """
        while not self._kv_cache.extend(request):
            victim = self._victim(request)
            if victim is None:
                return False
            self._preempt(victim, plan)
            if victim is request:
                return False
        return True

    def _victim(self, request: Request) -> Request | None:
        """The newest running request, not older than this one, that frees a block now.

        None (all their blocks are shared with older requests) makes this request wait a step. It
        cannot happen to the oldest: then it alone would hold the whole pool, and have ended.
        """
        for candidate in reversed(self._running):
            if self._kv_cache.frees_a_block(candidate):
                return candidate
            if candidate is request:
                return None
        return None

    def _preempt(self, request: Request, plan: _Plan) -> None:
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

    def _admit(self, plan: _Plan) -> None:
        """Start waiting requests in order while budget, slots and memory last.

        The head is never passed by a request behind it. While anything runs, an admission must
        leave the reserve idle: running requests will soon need those blocks.
        """
        while plan.budget > 0 and len(self._running) < self._config.max_num_seqs:
            request = self._waiting.first()
            reserve = self.reserve_blocks if self._running else 0
            if request is None or not self._kv_cache.admit(request, reserve):
                return
            self._waiting.remove(request)
            request.status = RequestStatus.RUNNING
            insort(self._running, request, key=lambda running: running.arrival)
            if request.num_preemptions == 0:
                plan.admitted.append(self._first_admission(request))
            plan.add(request, self._max_chunk_tokens)

    def _first_admission(self, request: Request) -> Admission:
        request.num_cached_tokens = request.num_computed_tokens
        if self._kv_cache.caches(request):
            self.counts.prefix_query_tokens += len(request.prompt_token_ids)
            self.counts.prefix_hit_tokens += request.num_cached_tokens
        return Admission(request.request_id, request.num_cached_tokens)

    def _append(self, request: Request, sampled: SampledToken) -> EmittedToken:
        """Add a sampled token to the request and end the request if it was its last."""
        output, token_id = request.output_token_ids, sampled.token_id
        output.append(token_id)
        reason: FinishReason | None = None
        if token_id in request.sampling.stop_token_ids:
            reason = FinishReason.STOP
        elif (
            len(output) >= request.sampling.max_tokens
            or request.num_tokens >= self._max_sequence_tokens
        ):
            reason = FinishReason.LENGTH
        if reason is not None:
            self.end(request.request_id, reason)
        return EmittedToken(request.request_id, token_id, reason, sampled.logprobs)

    def _finish_plan(self, plan: _Plan) -> Schedule:
        num_tokens = self._config.max_num_batched_tokens - plan.budget
        return Schedule(
            ScheduledBatch(self._step, tuple(plan.rows), num_tokens),
            tuple(plan.requests),
            tuple(plan.admitted),
            plan.num_preempted,
        )
