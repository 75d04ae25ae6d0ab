"""One settlement and one usage row per request that got a reservation, on every way it can end.

`Meter.settle` does all of it without awaiting, so no cancellation can come between: the credit
returns with the last charge, the reservation becomes what was used, the row joins the writer's
batch. Billed output is the engine's own count up to the end or the abort it confirmed; if it
could not be asked, the last count it sent. A prompt is owed once an engine may have begun it,
unless the request then failed without a token: that was not its tenant's doing.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from gateway.admission import Admitted
from gateway.guard import where
from gateway.queue import PoolQueue
from gateway.quotas import Quotas
from gateway.ticket import Phase, Ticket
from tenancy.entities import TenantContext, UsageRow

log = logging.getLogger(__name__)

BATCH_ROWS = 500
MAX_BACKLOG = 100_000
RETRY_S = 1.0


class Outcome(StrEnum):
    """How a request ended, as its usage row says."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    ERROR = "error"
    EXPIRED = "expired"


FAILURES = frozenset({Outcome.TIMEOUT, Outcome.ERROR})


@dataclass(slots=True, eq=False)
class Exchange:
    """One reserved request from reservation to settlement; owned by its handler."""

    request_id: str
    route: str
    operation: str
    context: TenantContext
    admitted: Admitted
    queue: PoolQueue
    ticket: Ticket
    started: float
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    cached_tokens: int | None = None
    output_tokens: int = 0
    first_token_at: float | None = None
    upstream_s: float = 0.0
    outcome: Outcome | None = None

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens, whatever became of them."""
        return self.ticket.prompt_tokens


@dataclass(frozen=True, slots=True)
class Settlement:
    """What one request came to; `phase` is where it was when it ended."""

    exchange: Exchange
    phase: Phase
    row: UsageRow


class UsageWriter:
    """Batches rows into the database; rows wait here, never lost, while it does not answer."""

    def __init__(
        self,
        insert: Callable[[Sequence[UsageRow]], Awaitable[None]],
        *,
        flush_interval_s: float,
        max_backlog: int = MAX_BACKLOG,
    ) -> None:
        self._insert = insert
        self._flush_interval_s = flush_interval_s
        self._max_backlog = max_backlog
        self._rows: list[UsageRow] = []
        self._written = asyncio.Event()
        self._flushing = asyncio.Lock()
        self._flushes: set[asyncio.Task[bool]] = set()

    @property
    def backlog(self) -> int:
        """Rows not yet in the database."""
        return len(self._rows)

    @property
    def full(self) -> bool:
        """Whether no further request should be admitted: its row could not be kept."""
        return len(self._rows) >= self._max_backlog

    def write(self, row: UsageRow) -> None:
        """Hand over a row."""
        self._rows.append(row)
        self._written.set()

    async def flush(self) -> bool:
        """Write all rows there are now; False if the database would not take them.

        A flush that was begun is finished even if its caller is cancelled: a transaction cut off
        in the middle keeps its lock, and then the last flush of all would find it taken.
        """
        task = asyncio.create_task(self._flush())
        self._flushes.add(task)
        task.add_done_callback(self._flushes.discard)
        return await asyncio.shield(task)

    async def _flush(self) -> bool:
        async with self._flushing:
            while batch := self._rows[:BATCH_ROWS]:
                try:
                    await self._insert(batch)
                except Exception as error:  # noqa: BLE001 - rows are kept whatever the reason
                    log.error(  # noqa: TRY400 - the message of an exception is never logged
                        "usage rows wait: the database refused them\n%s", where(error)
                    )
                    return False
                del self._rows[: len(batch)]
        return True

    async def run(self) -> None:
        """Flush for ever, at most once per interval."""
        while True:
            await self._written.wait()
            self._written.clear()
            await asyncio.sleep(self._flush_interval_s)
            if not await self.flush():
                await asyncio.sleep(RETRY_S)
                self._written.set()


class Meter:
    """Settles exchanges; `observe` is told of each settlement once."""

    def __init__(
        self, quotas: Quotas, writer: UsageWriter, observe: Callable[[Settlement], None]
    ) -> None:
        self._quotas = quotas
        self._writer = writer
        self._observe = observe

    @property
    def full(self) -> bool:
        """Whether the backlog of rows is too long to admit more."""
        return self._writer.full

    def settle(self, exchange: Exchange, outcome: Outcome) -> Settlement | None:
        """Close the ticket, the reservation and the row. None after the first call."""
        if exchange.outcome is not None:
            return None
        exchange.outcome = outcome
        ticket = exchange.ticket
        phase = ticket.phase if ticket.phase is not Phase.OVER else Phase.WAITING
        begun = phase is Phase.BEGUN or (phase is Phase.GRANTED and ticket.sent)
        fruitless = outcome in FAILURES and not exchange.output_tokens
        prompt = exchange.prompt_tokens if begun and not fruitless else 0
        ticket.output_tokens = max(ticket.output_tokens, exchange.output_tokens)
        exchange.queue.close(ticket, refund=fruitless)
        self._quotas.settle(
            exchange.request_id,
            prompt=prompt,
            cached=(exchange.cached_tokens or 0) if prompt else 0,
            output=exchange.output_tokens,
        )
        row = self._row(exchange, outcome, prompt)
        self._writer.write(row)
        settlement = Settlement(exchange, phase, row)
        self._observe(settlement)
        return settlement

    @staticmethod
    def _row(exchange: Exchange, outcome: Outcome, prompt: int) -> UsageRow:
        ticket = exchange.ticket
        now = time.perf_counter()
        duration_s = now - exchange.started
        waited_s = (
            duration_s if ticket.granted_at is None else ticket.granted_at - ticket.enqueued_at
        )
        return UsageRow(
            request_id=exchange.request_id,
            attempt=1,
            tenant_id=exchange.context.tenant_id,
            key_id=exchange.context.key_id,
            model=exchange.admitted.prepared.model,
            route=exchange.route,
            outcome=outcome.value,
            prompt_tokens=prompt,
            cached_tokens=exchange.cached_tokens if prompt else 0,
            output_tokens=exchange.output_tokens,
            created_at=exchange.created_at,
            queue_s=waited_s,
            duration_s=duration_s,
        )
