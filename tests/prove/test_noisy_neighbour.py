"""One tenant asks for ten times what the engine can do; a quiet one beside it hardly waits."""

import asyncio
import json
import os
import random
import statistics
import time
import urllib.request
from bisect import bisect_right
from collections import defaultdict

import aiohttp
import pytest

from fairness import events
from fairness.journal import read_entries, read_header
from gateway.eventfiles import pools, segments
from tests.support import stack as product

pytestmark = [pytest.mark.prove, pytest.mark.timeout(3600)]

SECONDS = float(os.environ.get("EVENHAND_TEST_SECONDS", "600"))
CONTROL_S = min(150.0, SECONDS)  # for first come, first served, and for the noisy tenant alone
SETTLE_S = min(20.0, SECONDS / 4)
CALIBRATION_S, CALIBRATION_CLIENTS = 12.0, 32
SLOTS, OVERLOAD = 16, 10
SHORTEST, LONGEST = 32, 96
QUIET_EVERY_S, QUIET_TOKENS = 2.0, 8
NOISY, QUIET, GAUGE = "noisy", "quiet", "gauge"
LIMITS = {"--rpm": 10**6, "--tpm": 10**9, "--concurrency": 64, "--max-queued": 200}
STEPS = ("step_seconds_sum", "step_seconds_count")
NO_END = {"0": -100, "2": -100}  # the model's end tokens: an answer is as long as it may be


class Run:
    """One `evenhand serve` under this policy, its tenants and its log."""

    def __init__(self, place, model, policy) -> None:
        self.stack = product.start(
            place,
            model,
            EVENHAND_ENGINE__MAX_NUM_SEQS=str(SLOTS),
            EVENHAND_FAIRNESS__POLICY=policy,
            EVENHAND_GATEWAY__DRAIN_S="1",
        )
        self.place = place
        self.keys = {name: self._tenant(name) for name in (NOISY, QUIET, GAUGE)}
        self.ids = {one["slug"]: one["id"] for one in self.stack.admin("tenant", "list")}
        self._steps = self.engine_totals(*STEPS)

    def _tenant(self, slug):
        key = self.stack.new_key(slug)
        options = [text for name, value in LIMITS.items() for text in (name, str(value))]
        self.stack.admin("quota", "set", "--tenant", slug, "--max-output", str(LONGEST), *options)
        return key

    def engine_totals(self, *names):
        """Totals that the engine has counted so far."""
        with urllib.request.urlopen(f"{self.stack.admin_url}/metrics/engine", timeout=10) as page:
            lines = [line.decode().partition(" ") for line in page]
        found = {name: float(value) for name, _, value in lines if not name.startswith("#")}
        return [found[f"evenhand_engine_{name}"] for name in names]

    def end(self):
        """Stop it; the mean step, and what its log holds."""
        seconds, steps = (
            b - a for a, b in zip(self._steps, self.engine_totals(*STEPS), strict=True)
        )
        assert self.stack.stop() == 0
        [directory] = pools(self.place / "fairness")
        return Log(directory, self.ids, seconds / steps)


class Log:
    """What became of each tenant's requests, by the gateway's own event log."""

    def __init__(self, directory, ids, step_s) -> None:
        self.step_s = step_s
        self._names = {tenant_id: name for name, tenant_id in ids.items()}
        self._tenant = {}
        self.enqueued, self.granted, self.ended = {}, {}, {}
        self.releases = []
        self.output = defaultdict(list)  # by tenant: moments and tokens that were charged
        self._known = defaultdict(int)
        digest = None
        for segment in segments(directory):
            lines = segment.lines()
            _, digest = read_header(next(lines), digest)
            for entry in read_entries(digest, lines):
                assert entry.intact
                digest = entry.digest
                self._take(entry.event)
        self.last = entry.event.now

    def _take(self, event) -> None:
        match event:
            case events.Enqueued():
                self._tenant[event.request] = self._names.get(event.tenant, event.tenant)
                self.enqueued[event.request] = event.now
            case events.Granted():
                self.granted.setdefault(event.request, event.now)
            case events.Expired() | events.Refused():
                self.ended[event.request] = event.now
            case events.Emitted() | events.Finished():
                self._emitted(event)
        if isinstance(event, events.Finished | events.NotStarted) and event.request in self.granted:
            self.releases.append(event.now)

    def _emitted(self, event) -> None:
        fresh = event.output_tokens - self._known[event.request]
        if fresh > 0:
            self._known[event.request] = event.output_tokens
            self.output[self._tenant[event.request]].append((event.now, fresh))

    def begin(self, name):
        """When the tenant's first request came."""
        return min(self.enqueued[request] for request in self._of(name))

    def _of(self, name):
        return [request for request, tenant in self._tenant.items() if tenant == name]

    def tokens_per_s(self, name, seconds):
        """Output tokens charged per second, between `SETTLE_S` and `seconds` from its begin."""
        since, until = self.begin(name) + SETTLE_S, self.begin(name) + seconds
        tokens = sum(fresh for now, fresh in self.output[name] if since <= now < until)
        return tokens / (until - since)

    def waits(self, name):
        """Seconds from arrival to grant, or to the end where none came."""
        return [
            self.granted.get(request, self.ended.get(request, self.last)) - self.enqueued[request]
            for request in self._of(name)
        ]

    def soon(self, name):
        """The share granted by the second slot release after arrival, and two steps."""
        within = []
        for request in self._of(name):
            place = bisect_right(self.releases, self.enqueued[request]) + 1
            limit = self.releases[place] if place < len(self.releases) else self.last
            granted = self.granted.get(request)
            within.append(granted is not None and granted <= limit + 2 * self.step_s)
        return statistics.mean(within)


# --- load --------------------------------------------------------------------------------------


def noisy_body(model, dice):
    prompt = [dice.randrange(1_000, 40_000) for _ in range(24)]
    tokens = dice.randint(SHORTEST, LONGEST)
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    return body | {"logit_bias": NO_END}


def quiet_body(model, dice):
    prompt = [dice.randrange(1_000, 40_000) for _ in range(8)]
    return {"model": model, "prompt": prompt, "max_tokens": QUIET_TOKENS, "temperature": 0}


async def ask(session, url, body):
    """One request, whatever becomes of it; its tokens."""
    async with session.post(f"{url}/completions", json=body) as answer:
        document = await answer.json()
        assert answer.status in {200, 429}, document
        return document["usage"]["completion_tokens"] if answer.status == 200 else 0


async def capacity(run):
    """Requests like the noisy tenant's that the engine answers per second, by its own tokens."""
    url, model, dice = run.stack.url, run.stack.first["model"], random.Random(1)

    async def client(session):
        while True:
            await ask(session, url, noisy_body(model, dice))

    async with session_of(run.keys[GAUGE]) as session:
        clients = [asyncio.create_task(client(session)) for _ in range(CALIBRATION_CLIENTS)]
        moments, tokens = [], []
        for _ in range(2):
            await asyncio.sleep(CALIBRATION_S / 2)
            moments.append(time.monotonic())
            tokens += await asyncio.to_thread(run.engine_totals, "generation_tokens_total")
        for one in clients:
            one.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
    per_s = (tokens[1] - tokens[0]) / (moments[1] - moments[0])
    return per_s / ((SHORTEST + LONGEST) / 2)


def session_of(key):
    return aiohttp.ClientSession(
        headers={"authorization": f"Bearer {key}"},
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
    )


async def every(seconds, interval_s, session, url, bodies):
    """Requests at a steady rate, nobody waiting for another's answer; all left at the end."""
    tasks = set()
    begin = time.monotonic()
    for number in range(int(seconds / interval_s)):
        await asyncio.sleep(max(0.0, begin + number * interval_s - time.monotonic()))
        task = asyncio.create_task(ask(session, url, bodies()))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.sleep(max(0.0, begin + seconds - time.monotonic()))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def load(run, rate, seconds, *, quiet):
    """The noisy tenant at this rate, and beside it perhaps the quiet one."""
    url, model = run.stack.url, run.stack.first["model"]
    loud, soft = random.Random(2), random.Random(3)
    async with session_of(run.keys[NOISY]) as noisy, session_of(run.keys[QUIET]) as other:
        offered = [every(seconds, 1 / rate, noisy, url, lambda: noisy_body(model, loud))]
        if quiet:
            asked = every(
                seconds - SETTLE_S, QUIET_EVERY_S, other, url, lambda: quiet_body(model, soft)
            )
            offered.append(_later(SETTLE_S, asked))
        await asyncio.gather(*offered)


async def _later(delay_s, work):
    await asyncio.sleep(delay_s)
    await work


def test_a_quiet_tenant_hardly_waits_beside_a_noisy_one(tmp_path, smollm2):
    alone = Run(tmp_path / "alone", smollm2, "vtc")
    rate = OVERLOAD * asyncio.run(capacity(alone))
    asyncio.run(load(alone, rate, CONTROL_S, quiet=False))
    alone_log = alone.end()
    fair = Run(tmp_path / "fair", smollm2, "vtc")
    asyncio.run(load(fair, rate, SECONDS, quiet=True))
    fair_log = fair.end()
    fcfs = Run(tmp_path / "fcfs", smollm2, "fcfs")
    asyncio.run(load(fcfs, rate, CONTROL_S, quiet=True))
    fcfs_log = fcfs.end()

    kept = fair_log.tokens_per_s(NOISY, SECONDS) / alone_log.tokens_per_s(NOISY, CONTROL_S)
    waits = {name: p90(log.waits(QUIET)) for name, log in (("fair", fair_log), ("fcfs", fcfs_log))}
    line = {
        "claim": "noisy neighbour",
        "seconds": SECONDS,
        "offered_per_s": rate,
        "quiet_requests": len(fair_log.waits(QUIET)),
        "granted_by_second_release": fair_log.soon(QUIET),
        "quiet_wait_p50_s": statistics.median(fair_log.waits(QUIET)),
        "quiet_wait_p90_s": waits["fair"],
        "fcfs_quiet_wait_p90_s": waits["fcfs"],
        "noisy_tokens_per_s": fair_log.tokens_per_s(NOISY, SECONDS),
        "noisy_alone_tokens_per_s": alone_log.tokens_per_s(NOISY, CONTROL_S),
        "noisy_kept": kept,
        "step_s": fair_log.step_s,
    }
    print(json.dumps(line))
    assert line["granted_by_second_release"] >= 0.9
    assert waits["fcfs"] >= 10 * waits["fair"]
    assert kept >= 0.93


def p90(values):
    return statistics.quantiles(values, n=10)[-1]
