"""How one engine runs, as a frozen value read from `EVENHAND_ENGINE__*`; other names are errors."""

from typing import Literal, Self

from pydantic import BaseModel, ByteSize, ConfigDict, Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

CPU_KV_MEMORY = 1 << 30
"""Bytes for keys and values on a CPU when the operator names none."""


class EngineSettings(BaseModel):
    """What an operator may choose about one engine process. The defaults suit a laptop's CPU.

    `num_kv_blocks` wins over `kv_memory`, which None leaves to the device. `threads` None are the
    cores that the process has, as far as a container's quota goes; `max_model_len` None is the
    model's own context length.
    `quantization` trades exactness for speed on a CPU with AVX2. `dtype` "auto" is float32 on a
    CPU, and the model's own 16-bit type, else bfloat16, on a GPU.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    block_size: int = Field(default=16, ge=1, le=256)
    num_kv_blocks: int | None = Field(default=None, ge=2)
    kv_memory: ByteSize | None = Field(default=None, ge=1)
    max_num_seqs: int = Field(default=16, ge=1, le=1024)
    max_num_batched_tokens: int = Field(default=512, ge=1, le=65536)
    max_waiting: int = Field(default=1024, ge=1)
    max_waiting_tokens: int = Field(default=1 << 22, ge=1)
    reserve: float = Field(default=0.02, ge=0.0, le=0.5)
    thrash_governor: bool = True
    long_prefill_token_threshold: int = Field(default=0, ge=0)
    prefix_cache: bool = True
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    threads: int | None = Field(default=None, ge=1, le=1024)
    quantization: Literal["none", "activations-int8"] = "none"
    max_model_len: int | None = Field(default=None, ge=2)
    drain_deadline_s: float = Field(default=30.0, ge=0.0)
    write_deadline_s: float = Field(default=30.0, gt=0.0)

    @model_validator(mode="after")
    def _every_sequence_can_decode(self) -> Self:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError("max_num_batched_tokens must be at least max_num_seqs")
        return self


class _Environment(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="EVENHAND_", env_nested_delimiter="__", extra="ignore", frozen=True
    )

    engine: EngineSettings = EngineSettings()


def load_engine_settings() -> EngineSettings:
    """Read `EVENHAND_ENGINE__*`; pydantic's `ValidationError` names an unknown or wrong one."""
    return _Environment().engine
