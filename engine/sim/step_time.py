"""How long a step takes on some hardware: a roofline over what the batch reads and computes.

A step lasts as long as the slower of two jobs, reading memory or doing arithmetic, plus a fixed
overhead (Williams et al. 2009; for decode and chunked prefill see Agrawal et al. 2024).
"""

from dataclasses import dataclass
from typing import Protocol

from engine.core.batch import ScheduledBatch


@dataclass(frozen=True, slots=True)
class StepWork:
    """What one batch asks of the hardware.

    A row of one token counts as decode, any other as prefill. `pairs` are (query, key) pairs of
    attention, per layer and head; `kv_tokens` the positions whose keys and values are read, each
    row's whole context.
    """

    num_rows: int = 0
    decode_tokens: int = 0
    prefill_tokens: int = 0
    decode_pairs: int = 0
    prefill_pairs: int = 0
    kv_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        """The tokens computed."""
        return self.decode_tokens + self.prefill_tokens

    @property
    def num_pairs(self) -> int:
        """The (query, key) pairs."""
        return self.decode_pairs + self.prefill_pairs


def work_of(batch: ScheduledBatch) -> StepWork:
    """The batch in numbers."""
    decode_tokens = prefill_tokens = decode_pairs = prefill_pairs = kv_tokens = 0
    for row in batch.rows:
        num_new, start = len(row.token_ids), row.start
        kv_tokens += start + num_new
        if num_new == 1:
            decode_tokens += 1
            decode_pairs += start + 1
        else:
            prefill_tokens += num_new
            prefill_pairs += num_new * start + num_new * (num_new + 1) // 2
    return StepWork(
        len(batch.rows), decode_tokens, prefill_tokens, decode_pairs, prefill_pairs, kv_tokens
    )


class StepTime(Protocol):
    """A model of the hardware: seconds for a step's work. Must be positive, also for no work."""

    def seconds(self, work: StepWork) -> float:
        """How long the step takes."""
        ...


@dataclass(frozen=True, slots=True)
class EverySame:
    """Each step takes the same time: then time counts steps."""

    step_s: float = 1.0

    def seconds(self, work: StepWork) -> float:  # noqa: ARG002 - the port's signature
        """Always `step_s`."""
        return self.step_s


@dataclass(frozen=True, slots=True)
class Hardware:
    """One or several equal accelerators that share a model: totals over all of them.

    `flops` is peak dense FLOP/s in the model's number format, `bandwidth` bytes of memory read per
    second, `memory_bytes` the memory there is.
    """

    flops: float
    bandwidth: float
    memory_bytes: float

    def times(self, count: int) -> "Hardware":
        """`count` of them, splitting weights, cache and work evenly."""
        return Hardware(self.flops * count, self.bandwidth * count, self.memory_bytes * count)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a dense decoder that decide a step's cost; numbers are `number_bytes` wide."""

    num_params: float
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    number_bytes: int = 2

    @property
    def weight_bytes(self) -> float:
        """What every step reads, whatever the batch."""
        return self.num_params * self.number_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        """One key and one value per layer and KV head."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.number_bytes

    @property
    def flops_per_token(self) -> float:
        """A multiplication and an addition per parameter."""
        return 2 * self.num_params

    @property
    def flops_per_pair(self) -> int:
        """A query with one key and its value, in all heads and layers."""
        return 4 * self.num_layers * self.num_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class Roofline:
    """Step time of `model` on `hardware`.

    Prefill reaches `prefill_mfu` of peak arithmetic. Decode rows count at peak: their arithmetic
    only matters in batches so large that it exceeds the reading.
    """

    hardware: Hardware
    model: ModelShape
    prefill_mfu: float = 0.5
    overhead_s: float = 0.3e-3

    def memory_s(self, work: StepWork) -> float:
        """Seconds to read the weights once and every row's context."""
        read = self.model.weight_bytes + work.kv_tokens * self.model.kv_bytes_per_token
        return read / self.hardware.bandwidth

    def arithmetic_s(self, work: StepWork) -> float:
        """Seconds of matrix products and attention."""
        per_token, per_pair = self.model.flops_per_token, self.model.flops_per_pair
        prefill = work.prefill_tokens * per_token + work.prefill_pairs * per_pair
        decode = work.decode_tokens * per_token + work.decode_pairs * per_pair
        return (prefill / self.prefill_mfu + decode) / self.hardware.flops

    def seconds(self, work: StepWork) -> float:
        """The slower of the two, and the overhead. A step without rows costs the overhead alone."""
        if not work.num_rows:
            return self.overhead_s
        return max(self.memory_s(work), self.arithmetic_s(work)) + self.overhead_s


@dataclass(frozen=True, slots=True)
class TwoPass:
    """A server that computes prompts and next tokens in two passes, one after the other.

    The pass of next tokens costs a fixed time, one per row, and one per position it reads; a
    prompt costs time per token. Passes without work cost nothing.
    """

    decode_s: float
    decode_row_s: float
    kv_token_s: float
    prefill_token_s: float
    idle_s: float = 1e-3

    def seconds(self, work: StepWork) -> float:
        """Both passes. A step without rows costs `idle_s`."""
        if not work.num_rows:
            return self.idle_s
        seconds = self.prefill_token_s * work.prefill_tokens
        if work.decode_tokens:
            seconds += self.decode_s + self.decode_row_s * work.decode_tokens
            seconds += self.kv_token_s * work.decode_pairs
        return seconds
