"""The composition root: everything one gateway process is made of, wired.

`create_app` opens nothing but client sessions and the event log; `gateway.app` adds listeners,
signals and the drain. Tests hand in their own store, keyring, text model and engines.
"""

import asyncio
import importlib.metadata
import logging
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from uuid import UUID

from engine.protocol.instruments import Registry
from engine.protocol.telemetry import Telemetry, TelemetryError, TelemetrySettings
from engine.protocol.telemetry import setup as setup_telemetry
from engine.protocol.text.errors import ModelFileError
from engine.protocol.text.model import TextModel, load_text_model
from fairness.reservation import LimitBook
from gateway.active import ActiveRequests
from gateway.admission import Admitted, Tokenizers, terms_of
from gateway.auth import AuthConfig, Authenticator, StoreDown
from gateway.engines.http import HttpEngine
from gateway.engines.port import EngineClient
from gateway.engines.request import CacheIdentity
from gateway.errors import AuthUnavailable
from gateway.guard import App, Guard
from gateway.metering import Meter, UsageWriter
from gateway.overview import overview
from gateway.pool import EVENT_LOG, Pool, make_pool, open_queue
from gateway.protocol import EdgeLimits
from gateway.quotas import LIMIT_FIELDS, Quotas
from gateway.readings import PoolReadings, register_logs, register_process
from gateway.routes.inference import Service
from gateway.routes.operations import Operations, operations_app, socket_app
from gateway.routes.public import public_app
from gateway.settings import ConfigurationError, Settings
from gateway.state.directory import Directory
from gateway.telemetry import GatewayMetrics
from gateway.tracing import RequestTrace
from tenancy.db import Database
from tenancy.entities import TenantContext
from tenancy.keyring import Keyring
from tenancy.namespace import NamespaceKey, NamespaceKind, derive
from tenancy.repositories import Store

log = logging.getLogger(__name__)

SERVICE_NAME = "evenhand-gateway"
# Cut requests still have to be aborted in their engines and settled.
CUT_DEADLINE_S = 15.0
NAMESPACES_CACHED = 10_000
LABELLED_AT_START = 1_000


class Gateway:
    """One wired gateway: `prime` it, start its `background` work, serve its applications, `close`.

    `public`, `admin` and `socket` are the applications of the three listeners.
    """

    def __init__(
        self,
        *,
        service: Service,
        writer: UsageWriter,
        directory: Directory,
        database: Database | None,
        engines: Mapping[str, EngineClient],
        telemetry: Telemetry,
        limits: EdgeLimits,
    ) -> None:
        self.service = service
        self.limits = limits
        self._writer = writer
        self._directory = directory
        self._database = database
        self._engines = engines
        self._telemetry = telemetry
        metrics = service.metrics
        created = int(time.time())
        operations = Operations(
            metrics=telemetry.prometheus_text,
            engine_metrics=next(iter(engines.values())).metrics,
            reasons_not_ready=self.reasons_not_ready,
            left=self.left,
            pools=lambda: overview(service.pools.values(), metrics.name_of),
        )
        self.public: App = Guard(
            public_app(service, dict.fromkeys(service.pools, created)),
            finished=metrics.finished,
            stripped=metrics.stripped,
        )
        self.admin: App = Guard(operations_app(operations))
        self.socket: App = Guard(socket_app(operations))

    async def prime(self) -> None:
        """Look at store and replicas once, so that the first request finds what is there."""
        polls = [self.service.auth.poll()]
        for pool in self.service.pools.values():
            polls += [pool.monitor.poll(name) for name in pool.upstreams.engines]
        await asyncio.gather(*polls, self._name_recovered())

    async def _name_recovered(self) -> None:
        """Tenants that the event log brought back are labelled before they ask for anything."""
        known = [
            UUID(account.tenant)
            for pool in self.service.pools.values()
            for account in pool.queue.snapshot().tenants
        ]
        try:
            slugs = await self._directory.slugs(known[:LABELLED_AT_START])
        except StoreDown:
            return  # readiness says so, and whoever asks for something brings its name
        for tenant_id, slug in slugs.items():
            self.service.metrics.tenant(str(tenant_id), slug)

    def background(self) -> list["asyncio.Task[None]"]:
        """Start what runs beside requests; the caller cancels it."""
        loop = asyncio.get_running_loop()
        work = [self.service.auth.run(), self._writer.run()]
        for pool in self.service.pools.values():
            work += [pool.queue.run(), pool.monitor.run()]
        return [loop.create_task(one) for one in work]

    def reasons_not_ready(self) -> list[str]:
        """Why this gateway should get no traffic; empty when it should."""
        reasons = []
        if self.service.active.draining:
            reasons.append("draining")
        if not self.service.auth.store_up:
            reasons.append("the database does not answer")
        if self.service.meter.full:
            reasons.append("the backlog of usage rows is full")
        reasons += [
            f"{name}: {reason}"
            for name, pool in self.service.pools.items()
            if (reason := pool.unrecorded) is not None
        ]
        reasons += [
            f"no replica of {name} is up"
            for name, pool in self.service.pools.items()
            if not any(pool.monitor.up.values())
        ]
        return reasons

    async def drain(self, deadline_s: float, hurry: asyncio.Event) -> None:
        """Admit nothing, let what runs finish, cut what is left at the deadline or in a hurry."""
        active = self.service.active
        active.draining = True
        idle = asyncio.create_task(active.wait_idle())
        hurried = asyncio.create_task(hurry.wait())
        await asyncio.wait([idle, hurried], timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
        if not idle.done():
            log.warning("cutting %d requests that did not end in time", len(active))
            active.cut()
            await asyncio.wait([idle], timeout=CUT_DEADLINE_S)
        idle.cancel()
        hurried.cancel()

    async def close(self) -> None:
        """Write what is owed and let everything go. Call once, after the last request."""
        if not await self._writer.flush():
            log.error("%d usage rows could not be written", self._writer.backlog)
        self.service.tokenizers.close()
        for engine in self._engines.values():
            await engine.close()
        if self._database is not None:
            await self._database.dispose()
        for pool in self.service.pools.values():
            if pool.log is not None:
                pool.log.rest()
                pool.log.close()
        await asyncio.to_thread(self._telemetry.shutdown)

    async def left(self, tenant_id: UUID) -> dict[str, int | None] | None:
        """What a tenant may still take now, and what it has waiting and running."""
        try:
            limits = await self._directory.limits(tenant_id)
        except StoreDown as error:
            raise AuthUnavailable("The database does not answer.") from error
        if limits is None:
            return None
        counted = {
            dimension: limit.value
            for dimension, name in LIMIT_FIELDS.items()
            if (limit := getattr(limits, name)) is not None
        }
        left = self.service.quotas.left(str(tenant_id), counted)
        found: dict[str, int | None] = {
            dimension.value: left.get(dimension) for dimension in LIMIT_FIELDS
        }
        return found | self._counts(str(tenant_id))

    def _counts(self, tenant: str) -> dict[str, int | None]:
        accounts = [
            account
            for pool in self.service.pools.values()
            for account in pool.queue.snapshot().tenants
            if account.tenant == tenant
        ]
        return {
            "queued": sum(account.queued for account in accounts),
            "running": sum(account.in_flight for account in accounts),
        }


def create_app(
    settings: Settings,
    *,
    store: Store | None = None,
    keyring: Keyring | None = None,
    text_model: TextModel | None = None,
    engines: Mapping[str, EngineClient] | None = None,
) -> Gateway:
    """Wire a gateway; inside the event loop it will run on. Raises ConfigurationError.

    What is handed in is used instead of what the settings name, and is not closed by us.
    """
    registry = Registry()
    metrics = GatewayMetrics(registry)
    version = importlib.metadata.version("evenhand")
    try:
        telemetry = setup_telemetry(SERVICE_NAME, registry, TelemetrySettings(version=version))
    except TelemetryError as error:
        raise ConfigurationError(str(error)) from error
    keyring = keyring or Keyring.load(settings.effective_keyring_file)
    database = None
    if store is None:
        store = database = Database(settings.effective_database_url)
    directory = Directory(store)
    text = text_model or load_tokenizer(settings)
    if not (engines or settings.gateway.engines):
        raise ConfigurationError(
            "no engine is named: give --engine or set EVENHAND_GATEWAY__ENGINES"
        )
    quotas = Quotas(LimitBook(), time.monotonic)
    # What can fail comes first: nothing after it leaves sessions or a locked log behind.
    recorded = open_queue(settings, text.model_id, quotas=quotas, metrics=metrics)
    clients = engines or _engines(settings)
    pool = make_pool(settings, text, clients, recorded)
    pools = {pool.model: pool}
    auth = Authenticator(
        directory,
        keyring.pepper.value,
        AuthConfig(settings.gateway.revision_interval_s, settings.gateway.store_silence_s),
        on_failure=metrics.auth_failed,
        on_change=lambda context: _tenant_changed(pools, context),
        active_tenants=pool.queue.active_tenants,
    )
    writer = UsageWriter(directory.insert_usage, flush_interval_s=settings.gateway.usage_flush_s)
    service = Service(
        auth=auth,
        tokenizers=Tokenizers({pool.model: text}, threads=settings.gateway.tokenizer_threads),
        quotas=quotas,
        pools=pools,
        meter=Meter(quotas, writer, metrics.settled),
        metrics=metrics,
        start_trace=lambda name, headers: RequestTrace.start(telemetry.tracer, name, headers),
        cache_identity=_cache_identities(keyring),
        router_key=keyring.router.value,
        max_body_bytes=settings.gateway.max_body_bytes,
        active=ActiveRequests(),
    )
    queues = {name: one.queue for name, one in pools.items()}
    PoolReadings(queues, metrics.label_of).register(registry)
    register_logs(registry, {name: one.log for name, one in pools.items() if one.log is not None})
    register_process(
        registry,
        revision=lambda: auth.revision,
        store_up=lambda: auth.store_up,
        degraded=lambda: {EVENT_LOG: any(EVENT_LOG in one.missing for one in queues.values())},
        replicas_up=lambda: [pair for one in pools.values() for pair in one.monitor.up.items()],
    )
    return Gateway(
        service=service,
        writer=writer,
        directory=directory,
        database=database,
        engines=clients,
        telemetry=telemetry,
        limits=_edge_limits(settings),
    )


# --- parts --------------------------------------------------------------------------------------


def load_tokenizer(settings: Settings) -> TextModel:
    """The pool's model as text sees it. Raises ConfigurationError."""
    path = settings.gateway.tokenizer
    if path is None:
        raise ConfigurationError("GATEWAY__TOKENIZER must name the model's GGUF file or folder")
    try:
        return load_text_model(path, settings.gateway.model)
    except ModelFileError as error:
        raise ConfigurationError(str(error)) from error


def _engines(settings: Settings) -> dict[str, EngineClient]:
    timeout_s = settings.gateway.upstream_read_timeout_s
    return {
        address: HttpEngine(address, read_timeout_s=timeout_s)
        for address in settings.gateway.engines
    }


def _edge_limits(settings: Settings) -> EdgeLimits:
    given = settings.gateway
    return EdgeLimits(
        max_body_bytes=given.max_body_bytes,
        max_header_bytes=given.max_header_bytes,
        max_header_fields=given.max_header_fields,
        header_timeout_s=given.header_timeout_s,
        body_timeout_s=given.body_timeout_s,
        write_timeout_s=given.write_timeout_s,
    )


def _cache_identities(
    keyring: Keyring,
) -> Callable[[TenantContext, Admitted, str], CacheIdentity]:
    """Whose cache a request may touch: the key's tenant's, narrowed or private as it asked."""
    root = NamespaceKey.for_epoch(keyring.cache_ns.value, keyring.deployment_id, keyring.epoch)

    @lru_cache(NAMESPACES_CACHED)
    def shared(tenant_id: UUID, generation: int) -> str:
        kind = NamespaceKind.TENANT
        return derive(root, kind=kind, group_id=tenant_id, generation=generation)

    def identity(context: TenantContext, admitted: Admitted, request_id: str) -> CacheIdentity:
        choice = admitted.prepared.cache
        if choice.enabled and choice.scope is None:
            namespace = shared(context.tenant_id, context.generation)
        else:
            namespace = derive(
                root,
                kind=NamespaceKind.NARROWED if choice.enabled else NamespaceKind.PRIVATE,
                group_id=context.tenant_id,
                generation=context.generation,
                scope=choice.scope if choice.enabled else request_id,
            )
        return CacheIdentity(
            namespace, str(context.tenant_id), context.weight_milli, choice.enabled
        )

    return identity


def _tenant_changed(pools: Mapping[str, Pool], context: TenantContext) -> None:
    for pool in pools.values():
        pool.queue.tenant_changed(context.tenant_id, terms_of(context))
