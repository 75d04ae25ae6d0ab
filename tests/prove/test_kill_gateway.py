"""A gateway that is killed under load knows, once it is back, what every tenant was served."""

import asyncio
import itertools
import json
import os
import subprocess
import time
import urllib.request
from collections import Counter

import aiohttp
import pytest

from engine.model.store import locate
from fairness import events
from fairness.journal import read_entries, read_header
from fairness.replay import Replay, restored
from gateway.eventfiles import pool_directory, segments
from tests.support.counting_engine import CountingEngine
from tests.support.stack import EVENHAND, ROOT, clean_environment, run_cli

pytestmark = [pytest.mark.prove, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("EVENHAND_TEST_KILLS", "20"))
LOAD_S = 3.0
SLOTS, PACE_S, FLUSH_S = 8, 0.02, 0.1
# A token that an engine has written takes a moment to reach the gateway, on a busy machine too.
ON_THE_WAY_S = 0.15
TENANTS = {"one": 1, "two": 1, "three": 3}
CLIENTS = 5


class Killable:
    """A gateway process before a given engine; its log and database are in `data`."""

    def __init__(self, data, model, engine) -> None:
        command = ["gateway", "--json", "--port", "0", "--admin-port", "0"]
        options = ["--data-dir", str(data), "--model", str(model), "--engine", engine.address]
        self.process = subprocess.Popen(
            [*EVENHAND, *command, *options],
            cwd=ROOT,
            env=clean_environment(EVENHAND_FAIRNESS__FLUSH_INTERVAL=str(FLUSH_S)),
            stdout=subprocess.PIPE,
            text=True,
        )
        line = self.process.stdout.readline()
        assert line, "the gateway ended before it answered"
        self.first = json.loads(line)

    def kill(self):
        """SIGKILL; the moments between which it died."""
        before = time.monotonic()
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        return before, time.monotonic()

    def stop(self):
        self.process.terminate()
        status = self.process.wait(60)
        self.process.stdout.close()
        return status


def make_tenants(data):
    """Ids and keys by name."""
    place = {"EVENHAND_DATA_DIR": str(data)}
    assert run_cli("migrate", **place).returncode == 0
    found = {}
    limits = {"--rpm": 10**6, "--tpm": 10**9, "--concurrency": 8, "--max-output": 64}
    options = [text for name, value in limits.items() for text in (name, str(value))]
    for slug, weight in TENANTS.items():
        admin(place, "tenant", "create", slug, "--weight", str(weight))
        admin(place, "quota", "set", "--tenant", slug, *options)
        found[slug] = admin(place, "key", "create", "--tenant", slug)["key"]
    ids = {one["slug"]: one["id"] for one in admin(place, "tenant", "list")}
    return {slug: (ids[slug], key) for slug, key in found.items()}


def admin(place, *arguments):
    done = run_cli("admin", *arguments, "--json", **place)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def body(model, number, turn):
    """Prompts of one client share their first three blocks; every answer has another length."""
    prompt = [1_000 + number, *range(2_000, 2_050), 3_000 + turn % 10_000]
    return {"model": model, "prompt": prompt, "max_tokens": 8 + 7 * (turn + number) % 56}


async def client(session, url, model, number, asked):
    """Asks for ever; every seventh answer is left in the middle. Ends when the gateway does."""
    turn = 0
    try:
        while True:
            turn += 1
            wanted = body(model, number, next(asked)) | {"stream": True}
            async with session.post(f"{url}/completions", json=wanted) as answer:
                assert answer.status == 200, await answer.text()
                chunks = 0
                async for _ in answer.content:
                    chunks += 1
                    if turn % 7 == 0 and chunks > 8:
                        break
    except (aiohttp.ClientError, ConnectionError):
        return


async def load_and_kill(gateway, model, keys, asked):
    """All clients at once, until the gateway is killed under them."""
    sessions = {
        name: aiohttp.ClientSession(headers={"authorization": f"Bearer {key}"})
        for name, key in keys.items()
    }
    tasks = [
        asyncio.create_task(
            client(session, gateway.first["url"], model, 100 * index + number, asked)
        )
        for index, session in enumerate(sessions.values())
        for number in range(CLIENTS)
    ]
    await asyncio.sleep(LOAD_S)
    moments = await asyncio.to_thread(gateway.kill)
    await asyncio.wait_for(asyncio.gather(*tasks), 20)
    for session in sessions.values():
        await session.close()
    return moments


def owners(engine):
    """Which tenant an owner that the engine saw is, by the numbers of its clients."""
    names = list(TENANTS)
    return {one.owner: names[(one.prompt[0] - 1_000) // 100] for one in engine.served}


class Restarts:
    """What the log says each tenant had been charged in all, by id, whenever a gateway came back.

    `charged` also counts accounts that were forgotten; `counters` are of those that were not.
    """

    def __init__(self, directory) -> None:
        self.charged, self.counters = [], []
        self._forgotten = Counter()
        digest = replay = None
        for segment in segments(directory):
            lines = segment.lines()
            header, digest = read_header(next(lines), digest)
            self.prices = header.config.prices
            replay = replay or Replay(restored(header, header.state))
            for entry in read_entries(digest, lines):
                assert entry.intact
                assert replay.take(entry.event) is None
                digest = entry.digest
                self._note(replay, entry.event)

    def _note(self, replay, event) -> None:
        if isinstance(event, events.Forgotten):
            self._forgotten[event.tenant] += event.service_milli
        if isinstance(event, events.Restarted):
            tenants = replay.dispatcher.snapshot().tenants
            charged = self._forgotten + Counter({one.tenant: one.service_milli for one in tenants})
            charged.update({one.tenant: one.service_milli for one in replay.owed})
            self.charged.append(charged)
            self.counters.append({one.tenant: one.counter / 1_000 for one in tenants})


def differences(engine, restarts, kills, ids):
    """For each kill and tenant: what the log has beyond what the engine's tokens can come to.

    Milli-units, 0 within one flush of every stream that the kill cut.
    """
    named = owners(engine)
    before = Counter()
    for incarnation, (charged, (sent, dead)) in enumerate(
        zip(restarts.charged, kills, strict=True), 1
    ):
        least, most = (
            engine.charges(incarnation, until, restarts.prices)
            for until in (sent - FLUSH_S - ON_THE_WAY_S, dead)
        )
        for owner, name in named.items():
            came = charged[ids[name]] - before[ids[name]]
            low, high = least.get(owner, 0), most.get(owner, 0)
            yield {
                "kill": incarnation,
                "tenant": name,
                "charged": came,
                "beyond": max(0, came - high, low - came),
                "flush": high - low,
            }
        before = charged


def pools(gateway):
    """The counters that a gateway shows, by tenant id."""
    with urllib.request.urlopen(f"{gateway.first['admin_url']}/pools", timeout=10) as answer:
        [pool] = json.load(answer)["pools"]
    return {one["tenant_id"]: one["counter"] for one in pool["tenants"]}


def kill_again_and_again(tmp_path, model, times):
    """Everything the claim needs, after so many kills and one orderly end."""
    data = tmp_path / "data"
    tenants = make_tenants(data)
    keys = {name: key for name, (_, key) in tenants.items()}
    engine = CountingEngine(
        locate(str(model), data).model_id, tmp_path / "engine.sock", slots=SLOTS, pace_s=PACE_S
    )
    engine.start()
    asked, kills, shown = itertools.count(), [], []
    for number in range(1, times + 2):
        engine.incarnation = number
        gateway = Killable(data, model, engine)
        shown.append(pools(gateway))
        if number <= times:
            kills.append(asyncio.run(load_and_kill(gateway, engine.model, keys, asked)))
    assert gateway.stop() == 0
    engine.stop()
    restarts = Restarts(pool_directory(data / "fairness", engine.model))
    ids = {name: tenant_id for name, (tenant_id, _) in tenants.items()}
    assert shown[1:] == [pytest.approx(counters) for counters in restarts.counters]
    found = list(differences(engine, restarts, kills, ids))
    audit = run_cli("audit", "fairness", "--json", EVENHAND_DATA_DIR=str(data))
    return engine, found, audit


def test_after_each_kill_every_tenant_is_charged_what_it_was_served(tmp_path, smollm2):
    engine, found, audit = kill_again_and_again(tmp_path, smollm2, KILLS)
    line = {
        "claim": "charges survive SIGKILL",
        "kills": KILLS,
        "requests": len(engine.served),
        "tokens": sum(len(one.emitted) for one in engine.served),
        "charged_units": sum(one["charged"] for one in found) / 1_000,
        "worst_beyond_units": max(one["beyond"] for one in found) / 1_000,
        "largest_flush_units": max(one["flush"] for one in found) / 1_000,
        "audit_exit": audit.returncode,
    }
    print(json.dumps(line))
    assert audit.returncode == 0, audit.stdout + audit.stderr
    assert len(found) == KILLS * len(TENANTS)
    assert all(one["charged"] > 0 for one in found)
    assert [one for one in found if one["beyond"]] == []
