"""Usage rows on their way to a real database, when whoever writes them is cancelled on the way."""

import asyncio
import contextlib
from datetime import UTC, datetime

from gateway.metering import UsageWriter
from tenancy.entities import UsageRow

NUM_ROUNDS, ROWS_PER_ROUND = 30, 300


def row(gateway, number: int) -> UsageRow:
    return UsageRow(
        request_id=f"r{number}",
        attempt=1,
        tenant_id=gateway.tenant.id,
        key_id=gateway.key.split("_")[2],
        model="m",
        route="/v1/completions",
        outcome="stop",
        prompt_tokens=3,
        cached_tokens=0,
        output_tokens=1,
        created_at=datetime.now(UTC),
        queue_s=0.0,
        duration_s=0.1,
    )


async def test_a_cancelled_writer_leaves_neither_a_lock_nor_a_gap(gateway):
    """As at every stop: the writer is cancelled, wherever it is, and then the rest is written."""

    async def insert(rows):
        async with gateway.database.transaction() as repos:
            await repos.usage.insert(rows)

    for number in range(NUM_ROUNDS):
        writer = UsageWriter(insert, flush_interval_s=0.0)
        running = asyncio.create_task(writer.run())
        for index in range(ROWS_PER_ROUND):
            writer.write(row(gateway, number * ROWS_PER_ROUND + index))
        await asyncio.sleep(0.001 * number)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        assert await writer.flush()
        assert writer.backlog == 0
    written = [each["request_id"] for each in gateway.rows()]
    assert sorted(written) == sorted(f"r{n}" for n in range(NUM_ROUNDS * ROWS_PER_ROUND))
