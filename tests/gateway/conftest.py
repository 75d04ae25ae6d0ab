"""A whole gateway on real sockets before a scripted upstream, with SQLite in a temporary folder."""

import asyncio
import contextlib
import functools
import shutil
import sqlite3
import tempfile
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from engine.protocol.text.model import load_text_model
from fairness.journal import read_entries, read_header
from gateway.app import run
from gateway.eventfiles import segments
from gateway.settings import Settings
from migrations.runner import upgrade
from tenancy import tenants
from tenancy.db import Database
from tenancy.keyring import Keyring
from tests.support.upstream import Upstream, serve

MODEL = "smollm2-135m"


@pytest.fixture(scope="session")
def text_model(smollm2):
    return load_text_model(smollm2, MODEL)


@functools.cache
def migrated_database() -> bytes:
    """An empty database of the newest schema, migrated once."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "evenhand.db"
        thread = threading.Thread(target=upgrade, args=(f"sqlite:///{path}",))
        thread.start()
        thread.join()
        with contextlib.closing(sqlite3.connect(path)) as connection:
            return connection.serialize()


def logged(folder: Path) -> list:
    """Every event in the log of the pool below `folder`, in order, of an intact chain."""
    found = []
    for segment in segments(folder / MODEL):
        lines = segment.lines()
        _, digest = read_header(next(lines))
        for entry in read_entries(digest, lines):
            assert entry.intact
            found.append(entry.event)
    return found


@dataclass
class Running:
    """One running gateway; `sdk` and `http` speak to its public listener."""

    url: str
    admin_url: str
    admin_socket: Path
    database: Database
    database_path: Path
    keyring: Keyring
    upstream: Upstream
    key: str
    tenant: Any
    stop: asyncio.Event
    task: asyncio.Task
    clients: list = field(default_factory=list)

    def client(self, key: str | None = None) -> aiohttp.ClientSession:
        headers = {"authorization": f"Bearer {self.key if key is None else key}"}
        base = self.url.removesuffix("/v1") + "/"
        timeout = aiohttp.ClientTimeout(total=20)
        client = aiohttp.ClientSession(base, headers=headers, timeout=timeout)
        self.clients.append(client)
        return client

    async def new_tenant(self, slug: str, **limits) -> tuple[Any, str]:
        now = datetime.now(UTC)
        async with self.database.transaction() as repos:
            tenant = await tenants.create(repos, slug, now=now)
            _, key = await tenants.issue_key(repos, self.keyring.pepper, tenant, now=now)
            if limits:
                await tenants.change_limits(repos, slug, limits)
        return tenant, key

    def rows(self, tenant=None) -> list[dict]:
        """The usage rows of a tenant that are in the database now."""
        with contextlib.closing(sqlite3.connect(self.database_path)) as connection:
            connection.row_factory = sqlite3.Row
            rows = [dict(row) for row in connection.execute("SELECT * FROM usage")]
        wanted = (tenant or self.tenant).id.hex
        return [row for row in rows if row["tenant_id"].replace("-", "") == wanted]

    async def usage(self, tenant=None) -> list[dict]:
        """The same, once something was written and nothing more comes."""
        await self.eventually(lambda: self.rows(tenant))
        await asyncio.sleep(0.1)
        return self.rows(tenant)

    def events(self) -> list:
        """Every event in the pool's log so far, in order, of an intact chain."""
        return logged(self.database_path.parent / "fairness")

    async def metrics(self) -> dict[str, float]:
        async with aiohttp.ClientSession() as client:
            page = await (await client.get(f"{self.admin_url}/metrics")).text()
        lines = [line for line in page.splitlines() if line and not line.startswith("#")]
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}

    async def eventually(self, condition, what="it never happened"):
        for _ in range(1000):
            result = condition()
            if asyncio.iscoroutine(result):
                result = await result
            if result:
                return result
            await asyncio.sleep(0.01)
        raise AssertionError(what)


@contextlib.asynccontextmanager
async def running_gateway(text_model, *, gateway=None, fairness=None, folder=None):
    """With `folder` it goes on where an earlier one stopped, under a new key of its tenant."""
    short = folder or Path(tempfile.mkdtemp(prefix="eh"))  # a socket's path must be short
    settings = Settings(
        data_dir=short,
        gateway={
            "port": 0,
            "admin_port": 0,
            "usage_flush_s": 0.02,
            "capacity_interval_s": 0.05,
            "revision_interval_s": 0.05,
            "drain_s": 5,
        }
        | (gateway or {}),
        fairness=fairness or {},
    )
    keyring = Keyring.load_or_create(settings.effective_keyring_file)
    new = not (short / "evenhand.db").exists()
    if new:
        (short / "evenhand.db").write_bytes(migrated_database())
    database = Database(settings.effective_database_url)
    now = datetime.now(UTC)
    async with database.transaction() as repos:
        make = tenants.create(repos, "acme", now=now) if new else tenants.find(repos, "acme")
        tenant = await make
        _, key = await tenants.issue_key(repos, keyring.pepper, tenant, now=now)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(database.dispose)
        upstream = Upstream(MODEL)
        address = await stack.enter_async_context(serve(upstream, str(short / "engine.sock")))
        settings = settings.model_copy(
            update={"gateway": settings.gateway.model_copy(update={"engines": (address,)})}
        )
        ready = asyncio.get_running_loop().create_future()
        stop = asyncio.Event()
        task = asyncio.create_task(
            run(settings, on_ready=ready.set_result, stop=stop, text_model=text_model)
        )
        done, _ = await asyncio.wait([task, ready], return_when=asyncio.FIRST_COMPLETED)
        if task in done:
            task.result()
        endpoints = ready.result()
        running = Running(
            endpoints.url,
            endpoints.admin_url,
            endpoints.admin_socket,
            database,
            short / "evenhand.db",
            keyring,
            upstream,
            key,
            tenant,
            stop,
            task,
        )
        try:
            yield running
        finally:
            for client in running.clients:
                await client.close()
            stop.set()
            await task
            if folder is None:
                shutil.rmtree(short)


@pytest.fixture
async def gateway(text_model):
    async with running_gateway(text_model) as running:
        yield running


@pytest.fixture
def make_gateway(text_model):
    return lambda **options: running_gateway(text_model, **options)
