"""Puts an engine together from a runner, a text model and its sizes; loads nothing itself."""

from dataclasses import dataclass, replace

from starlette.types import ASGIApp

from engine.core.engine_core import CoreConfig
from engine.core.ports import ModelRunner
from engine.core.preemption import PreemptionPolicy
from engine.protocol import telemetry as process_telemetry
from engine.protocol.instruments import Registry
from engine.protocol.telemetry import Telemetry, TelemetrySettings
from engine.protocol.text.model import TextModel
from engine.server.app import create_app
from engine.server.loop import EngineLoop
from engine.server.places import Places
from engine.server.service import EngineService, Limits
from engine.server.telemetry import EngineMetrics, RequestSpans

SERVICE_NAME = "evenhand-engine"


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine, ready to be served; whoever made it shuts `telemetry` down."""

    app: ASGIApp
    service: EngineService
    telemetry: Telemetry


def assemble(
    runner: ModelRunner,
    text: TextModel,
    config: CoreConfig,
    *,
    write_deadline_s: float = 30.0,
    telemetry: TelemetrySettings | None = None,
    preemption: PreemptionPolicy | None = None,
) -> Engine:
    """Wire the parts; `preemption` is for tests that force it. Raises TelemetryError."""
    registry = Registry()
    exported = process_telemetry.setup(SERVICE_NAME, registry, telemetry)
    metrics = EngineMetrics(registry)
    spans = RequestSpans(exported.tracer, text.model_id)
    places = Places(
        max_samples=config.max_waiting_requests + config.max_num_seqs,
        max_tokens=config.max_waiting_tokens,
    )
    loop = EngineLoop(
        _admitting_all(config, places),
        runner,
        metrics,
        on_ended=spans.record,
        preemption=preemption,
    )
    limits = Limits(
        max_model_len=config.max_sequence_tokens,
        num_slots=config.max_num_seqs,
        block_size=config.block_size,
        write_deadline_s=write_deadline_s,
    )
    service = EngineService(loop, text, limits, places)
    return Engine(create_app(service, metrics, exported), service, exported)


def _admitting_all(config: CoreConfig, places: Places) -> CoreConfig:
    """The core's own queue takes whatever has a place: one rule decides who is refused."""
    return replace(config, max_waiting_requests=places.max_samples)
