"""Machines to simulate: a step-time model and the KV memory that is left beside the weights.

Peak rates are the vendors' dense figures. KV memory is 90 % of the accelerator's, as engines
configure it, less the weights and working memory, unless said otherwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from engine.core.config import CoreConfig
from engine.sim.measured import measured_cpu
from engine.sim.replica import MODEL_DIGEST
from engine.sim.step_time import Hardware, ModelShape, Roofline, StepTime, TwoPass

BLOCK_SIZE = 16
_MEMORY_USED = 0.9
_WORKING_BYTES = 4e9

# H100 SXM5: 989 TFLOP/s dense bf16, 3.35 TB/s, 80 GB (NVIDIA H100 data sheet).
H100 = Hardware(flops=989e12, bandwidth=3.35e12, memory_bytes=80e9)
# A10G: 70 TFLOP/s dense fp16 tensor, 600 GB/s, 24 GB (NVIDIA A10G product brief).
A10G = Hardware(flops=70e12, bandwidth=600e9, memory_bytes=24e9)

# Sizes as in the models' published configurations.
LLAMA_3_1_8B = ModelShape(8.03e9, num_layers=32, num_heads=32, num_kv_heads=8, head_dim=128)
LLAMA_3_1_70B = ModelShape(70.6e9, num_layers=80, num_heads=64, num_kv_heads=8, head_dim=128)
LLAMA_2_7B = ModelShape(6.74e9, num_layers=32, num_heads=32, num_kv_heads=32, head_dim=128)
QWEN_2_5_7B = ModelShape(7.62e9, num_layers=28, num_heads=28, num_kv_heads=4, head_dim=128)

# The server of the Virtual Token Counter paper (S-LoRA, Sheng et al. 2024) on an A10G with Llama 2
# 7B. Least squares on the relative errors of the times that its artifact publishes
# (fair_bench/cost_profile.json): 13 batches of 13 to 52 rows, all within 1.7 %. A prompt's token
# costs 0.21 to 0.23 ms from 64 tokens on.
SLORA_A10G = TwoPass(28.35e-3, 0.0606e-3, 1.126e-6, 0.2137e-3)
# The same server on an A100 80GB (312 TFLOP/s, 2,039 GB/s: NVIDIA A100 data sheet) with Llama 2
# 13B: no times are published, so those of the A10G, scaled by what is read and computed per unit,
# and all by 1.48, with which two clients drift as far apart under FCFS as was published (840,307).
SLORA_A100 = TwoPass(23.8e-3, 0.0897e-3, 0.767e-6, 0.137e-3)


@dataclass(frozen=True, slots=True)
class Preset:
    """A machine with a model: how long its steps take, and how many tokens its KV pool holds."""

    summary: str
    step_time: StepTime
    kv_tokens: int

    def config(self, *, max_num_seqs: int, max_num_batched_tokens: int) -> CoreConfig:
        """An engine on this machine, with the whole pool; the rest as the engine's defaults."""
        return CoreConfig(
            num_blocks=self.kv_tokens // BLOCK_SIZE,
            max_model_len=min(self.kv_tokens, 1 << 17),
            model_digest=MODEL_DIGEST,
            block_size=BLOCK_SIZE,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_waiting_requests=1 << 20,
            max_waiting_tokens=1 << 40,
        )


def kv_tokens_beside(hardware: Hardware, model: ModelShape, num_accelerators: int = 1) -> int:
    """Tokens of cache that fit beside the weights."""
    free = _MEMORY_USED * hardware.memory_bytes - model.weight_bytes
    return int((free - _WORKING_BYTES * num_accelerators) // model.kv_bytes_per_token)


def _preset(summary: str, hardware: Hardware, model: ModelShape, kv_tokens: int) -> Preset:
    return Preset(summary, Roofline(hardware, model), kv_tokens)


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "h100-llama-3.1-8b": _preset(
            "one H100, Llama 3.1 8B in bf16",
            H100,
            LLAMA_3_1_8B,
            kv_tokens_beside(H100, LLAMA_3_1_8B),
        ),
        "h100x8-llama-3.1-70b": _preset(
            "eight H100s, Llama 3.1 70B in bf16, split evenly",
            H100.times(8),
            LLAMA_3_1_70B,
            kv_tokens_beside(H100.times(8), LLAMA_3_1_70B, 8),
        ),
        # The pool of the Virtual Token Counter paper's experiments (Sheng et al. 2024, section 5).
        "a10g-llama-2-7b": _preset("one A10G, Llama 2 7B in fp16", A10G, LLAMA_2_7B, 10_000),
        "slora-a10g-llama-2-7b": Preset(
            "one A10G, Llama 2 7B: fitted to the published times of S-LoRA", SLORA_A10G, 10_000
        ),
        "slora-a100-llama-2-13b-35k": Preset(
            "one A100 80GB, Llama 2 13B: the same server, scaled", SLORA_A100, 35_000
        ),
        "slora-a100-llama-2-13b-65k": Preset(
            "one A100 80GB, Llama 2 13B: the same server, scaled", SLORA_A100, 65_000
        ),
        # The pool of the published preemption measurements (vLLM #44594).
        "h100-qwen2.5-7b": _preset("one H100, Qwen2.5 7B in bf16", H100, QWEN_2_5_7B, 299_584),
        "cpu-smollm2-135m": Preset(
            "two AVX2 cores, SmolLM2 135M: fitted to measured steps", measured_cpu(), 23_296
        ),
    }
)
