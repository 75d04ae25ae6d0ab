"""One pool: a model, its replicas, its fair queue, and what ties them together."""

from dataclasses import dataclass

from engine.protocol.text.model import TextModel
from gateway.engines.monitor import ReplicaMonitor
from gateway.queue import PoolQueue
from gateway.spelling import Spelling
from gateway.streaming import Upstreams


@dataclass(frozen=True, slots=True)
class Pool:
    """Everything the gateway holds for one model."""

    model: str
    text: TextModel
    spelling: Spelling
    queue: PoolQueue
    monitor: ReplicaMonitor
    upstreams: Upstreams

    @property
    def context_length(self) -> int:
        """The model's context, or less where the replicas were started with less."""
        served = self.monitor.max_model_len
        return self.text.context_length if served is None else min(self.text.context_length, served)
