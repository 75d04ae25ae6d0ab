"""One pool: a model, its replicas, its fair queue, and what ties them together."""

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from engine.protocol.text.model import TextModel
from fairness.dispatcher import Dispatcher
from fairness.events import Effect, Input
from fairness.policy import Policy
from fairness.replay import POLICIES
from fairness.types import PoolConfig, Prices
from gateway.clock import pool_clock
from gateway.decisions import Decisions
from gateway.engines.monitor import ReplicaMonitor
from gateway.engines.port import EngineClient
from gateway.eventfiles import EventLogError
from gateway.eventlog import EventLog
from gateway.queue import PoolQueue
from gateway.quotas import Quotas
from gateway.settings import ConfigurationError, FairnessSettings, Settings
from gateway.spelling import Spelling
from gateway.streaming import Upstreams
from gateway.telemetry import GatewayMetrics

# What is missing while the event log cannot be written: the label of `evenhand_degraded`.
EVENT_LOG: Final = "event_log"


@dataclass(frozen=True, slots=True)
class Pool:
    """Everything the gateway holds for one model; `log` is None where nothing is recorded."""

    model: str
    policy: str
    text: TextModel
    spelling: Spelling
    queue: PoolQueue
    log: EventLog | None
    monitor: ReplicaMonitor
    upstreams: Upstreams

    @property
    def context_length(self) -> int:
        """The model's context, or less where the replicas were started with less."""
        served = self.monitor.max_model_len
        return self.text.context_length if served is None else min(self.text.context_length, served)

    @property
    def unrecorded(self) -> str | None:
        """Why nothing new may be granted: what is granted could not be recorded."""
        return None if self.log is None else self.log.reason


@dataclass(frozen=True, slots=True)
class Recorded:
    """A pool's queue, as its event log left it, and the log; None where nothing is recorded."""

    queue: PoolQueue
    policy: str
    log: EventLog | None


def open_queue(
    settings: Settings, name: str, *, quotas: Quotas, metrics: GatewayMetrics
) -> Recorded:
    """Recover a pool's queue from its log. Raises ConfigurationError, and then nothing is open."""
    fairness = settings.fairness
    config, policy = pool_config(fairness), POLICIES[fairness.policy]()
    log = _open_log(
        settings,
        name,
        config,
        policy,
        metrics=metrics,
        on_health=lambda reason: _tell(queue, reason),
    )
    decisions = Decisions(name, metrics)

    def applied(event: Input, effects: tuple[Effect, ...]) -> None:
        if log is not None:
            log.append(event, effects)
        decisions.note(effects)

    queue = PoolQueue(
        name,
        Dispatcher(config, policy) if log is None else log.dispatcher,
        flush_interval_s=fairness.flush_interval,
        on_granted=quotas.granted,
        on_waited=lambda outcome, seconds: metrics.waited(name, outcome, seconds),
        applied=applied,
        clock=pool_clock() if log is None else pool_clock(log.last_now),
    )
    return Recorded(queue, policy.name, log)


def make_pool(
    settings: Settings, text: TextModel, engines: Mapping[str, EngineClient], recorded: Recorded
) -> Pool:
    """The whole pool, over its queue."""
    queue = recorded.queue
    monitor = ReplicaMonitor(
        engines,
        interval_s=settings.gateway.capacity_interval_s,
        failures=settings.gateway.capacity_failures,
        on_up=queue.replica_up,
        on_lost=queue.replica_lost,
    )
    return Pool(
        model=text.model_id,
        policy=recorded.policy,
        text=text,
        spelling=Spelling(text.tokenizer),
        queue=queue,
        log=recorded.log,
        monitor=monitor,
        upstreams=Upstreams(engines, monitor.suspect),
    )


def _open_log(
    settings: Settings,
    name: str,
    config: PoolConfig,
    policy: Policy,
    *,
    metrics: GatewayMetrics,
    on_health: Callable[[str | None], None],
) -> EventLog | None:
    directory = settings.event_log_dir
    if directory is None:
        return None
    try:
        return EventLog.open(
            directory,
            name,
            config,
            policy,
            now=time.time(),
            wall=time.time,
            incarnation=secrets.token_hex(8),
            segment_bytes=settings.fairness.segment_bytes,
            keep_bytes=settings.fairness.keep_bytes,
            on_health=on_health,
            on_synced=lambda seconds: metrics.log_synced(name, seconds),
        )
    except EventLogError as error:
        raise ConfigurationError(str(error)) from error


def _tell(queue: PoolQueue, reason: str | None) -> None:
    """What the log says of its health becomes an event of the pool."""
    if reason is None:
        queue.restored(EVENT_LOG)
    else:
        queue.degraded(EVENT_LOG)


def pool_config(fairness: FairnessSettings) -> PoolConfig:
    """The settings as the dispatcher takes them, in integers of a thousandth."""
    return PoolConfig(
        prices=Prices(
            uncached=round(fairness.w_p * 1_000),
            cached=round(fairness.w_c * 1_000),
            output=round(fairness.w_q * 1_000),
        ),
        lookahead=fairness.lookahead,
        load_factor_milli=round(fairness.load_factor * 1_000),
        ttl_s=fairness.ttl,
        max_passes=fairness.max_passes,
        slack_milli=round(fairness.slack * 1_000),
        urgent_share_milli=round(fairness.urgent_share * 1_000),
        t_min_s=fairness.shortest_deadline_s,
        t_max_s=fairness.longest_deadline_s,
    )
