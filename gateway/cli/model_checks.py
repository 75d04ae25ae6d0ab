"""What `evenhand doctor` finds out about models, kernels and devices on this machine."""

import importlib.metadata
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from engine.model import store
from engine.model.download import ModelUnavailableError
from engine.model.inspect import Inspection, inspect
from engine.model.load import require_device
from engine.protocol.text.errors import ModelFileError
from engine.protocol.text.model import load_text_model
from engine.settings import CPU_KV_MEMORY, EngineSettings
from gateway.checks import Finding, failed, ok, warning
from kernels.cpu.build import source_digest
from kernels.cpu.library import (
    KernelsUnavailableError,
    StaleKernelsError,
    chosen_variant,
    native,
)

_MEMINFO: Final = Path("/proc/meminfo")
_CGROUP_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")
_CGROUP_USED: Final = Path("/sys/fs/cgroup/memory.current")
_NVIDIA_DRIVER: Final = Path("/proc/driver/nvidia/version")


def models(data_dir: Path, tokenizer: Path | None, settings: EngineSettings) -> list[Finding]:
    """Every model that is here, and the one the gateway's settings name."""
    try:
        entries = store.entries(data_dir)
    except OSError as error:
        return [failed("models", f"those in {data_dir} cannot be listed: {error.strerror}")]
    names = [entry.name for entry in entries if entry.path is not None]
    known = {entry.path for entry in entries}
    if tokenizer is not None and tokenizer not in known:
        names.append(str(tokenizer))
    if not names:
        return [warning("models", "none here yet; `evenhand serve` pulls the default one")]
    available = available_memory()
    return [model(name, data_dir, settings, available) for name in names]


def model(name: str, data_dir: Path, settings: EngineSettings, available: int | None) -> Finding:
    """Whether its files are what they should be, can be loaded, and fit into `available` bytes."""
    check = f"model {name}"
    try:
        source = store.resolve(name, data_dir)
        found = inspect(source.path)
        text = load_text_model(source.path, source.model_id)
    except (ModelUnavailableError, ModelFileError) as error:
        return failed(check, str(error))
    except OSError as error:
        return failed(check, f"cannot be looked at: {error.strerror}")
    if text.vocab_size > found.config.vocab_size:
        return failed(check, f"names {text.vocab_size} tokens, has rows for fewer")
    needed = memory_needed(found, settings)
    says = f"{found.family}, {found.main_type}, needs {needed / 1e9:.2f} GB"
    if available is None:
        return ok(check, says)
    says += f" of {available / 1e9:.2f} GB that are free"
    if needed <= available:
        return ok(check, says)
    return warning(check, f"{says}: lower EVENHAND_ENGINE__KV_MEMORY or take a smaller model")


def memory_needed(found: Inspection, settings: EngineSettings) -> int:
    """Bytes an engine with these settings needs for the model."""
    pool = settings.kv_memory or CPU_KV_MEMORY
    if settings.num_kv_blocks is not None:
        pool = settings.num_kv_blocks * found.page_bytes(settings.block_size)
    return found.memory(pool, settings.max_num_batched_tokens, settings.max_num_seqs).total


def available_memory() -> int | None:
    """Bytes that may still be taken, by the machine and by this container; None: it is not said."""
    said = [*_machine_memory(), *_container_memory()]
    return min(said, default=None)


def _machine_memory() -> Iterator[int]:
    if _MEMINFO.exists():
        for line in _MEMINFO.read_text(encoding="ascii").splitlines():
            name, _, rest = line.partition(":")
            if name == "MemAvailable":
                yield int(rest.split()[0]) * 1024


def _container_memory() -> Iterator[int]:
    if _CGROUP_LIMIT.exists() and _CGROUP_USED.exists():
        limit = _CGROUP_LIMIT.read_text(encoding="ascii").strip()
        if limit != "max":
            yield max(0, int(limit) - int(_CGROUP_USED.read_text(encoding="ascii")))


def device(settings: EngineSettings) -> Finding:
    """Whether an engine that is started here with these settings can compute as they say."""
    chosen, name = settings.device, "device"
    try:
        require_device(chosen, settings.dtype, settings.quantization)
    except (StaleKernelsError, ValueError) as error:
        return failed(name, str(error))
    return ok(name, f"{chosen}, dtype {settings.dtype}, quantization {settings.quantization}")


def cpu_kernels() -> Finding:
    """Which compiled kernels would run here, and whether they are of the sources beside them."""
    name = "CPU kernels"
    try:
        native()
        variant = chosen_variant()
    except KernelsUnavailableError as error:
        return warning(name, f"{error}; until then torch computes, many times slower")
    except (StaleKernelsError, ValueError) as error:
        return failed(name, str(error))
    return ok(name, f"{variant}, of the sources here ({source_digest()[:12]})")


def torch_and_cuda() -> Finding:
    """What a GPU would need; the CPU needs neither. torch is imported only where a driver is."""
    name = "torch and CUDA"
    if importlib.util.find_spec("torch") is None:
        return ok(name, "torch is not installed; only `--device cuda` needs it")
    version = importlib.metadata.version("torch")
    if not _NVIDIA_DRIVER.exists():
        return ok(name, f"torch {version}, no NVIDIA driver: the CPU computes")
    import torch

    if not torch.cuda.is_available():
        return warning(name, f"torch {version} is a build that does not see the GPU here")
    return ok(name, f"torch {version}, {torch.cuda.get_device_name()}")
