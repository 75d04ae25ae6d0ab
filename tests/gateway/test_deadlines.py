"""A head past its deadline, as its operator sees it."""

import asyncio
import logging

import pytest

from fairness.events import Headed, Missed, ReplicaUp

BODY = {"model": "smollm2-135m", "prompt": [5] * 10, "max_tokens": 100}


@pytest.fixture
def lines(caplog):
    """What is logged of decisions; a gateway sets up logging anew, so the root is no use."""
    logger = logging.getLogger("gateway.decisions")
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)


async def test_a_missed_deadline_is_counted_logged_and_shown(make_gateway, lines):
    async with make_gateway(fairness={"t_max": 0.2}) as gateway:
        script = gateway.upstream.script
        script.slots, script.tokens, script.between_s = 1, 100, 0.05
        await gateway.eventually(lambda: _one_slot(gateway))

        async def ask():
            async with gateway.client().post("/v1/completions", json=BODY) as reply:
                return reply.status

        calls = [asyncio.create_task(ask()) for _ in range(3)]  # a slot, and one look-ahead
        read = await gateway.eventually(lambda: _missed(gateway))
        assert read['evenhand_missed_deadlines_total{pool="smollm2-135m",reason="no_fit"}'] == 1
        labels = '{pool="smollm2-135m",tenant="acme"}'
        assert -5 < read[f"evenhand_head_deadline_seconds{labels}"] < 0
        assert read[f"evenhand_head_age_seconds{labels}"] > 0.2
        (line,) = [record.getMessage() for record in lines.records]
        assert "tenant acme" in line
        assert line.endswith("no_fit")
        (headed,) = [event for event in gateway.events() if isinstance(event, Headed)][-1:]
        (missed,) = [event for event in gateway.events() if isinstance(event, Missed)]
        assert headed.request == missed.request
        assert headed.deadline <= missed.now < headed.deadline + 5
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


def _one_slot(gateway) -> bool:
    """The gateway has heard of the smaller engine."""
    ups = [event for event in gateway.events() if isinstance(event, ReplicaUp)]
    return bool(ups) and ups[-1].capacity.slots == 1


async def _missed(gateway):
    read = await gateway.metrics()
    return read if any(key.startswith("evenhand_missed_deadlines_total{") for key in read) else None
