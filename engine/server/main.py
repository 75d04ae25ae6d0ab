"""Run one engine in this process: bind, load the model, answer until told to stop."""

import gc
import importlib.metadata
import logging
from collections.abc import Callable
from typing import Final

from engine.core.engine_core import CoreConfig
from engine.model.load import load_model
from engine.model.store import ModelSource
from engine.protocol.telemetry import TelemetrySettings
from engine.protocol.text.errors import ModelFileError
from engine.protocol.text.model import TextModel, load_text_model
from engine.runner.decoder_runner import DecoderRunner
from engine.server.assembly import Engine, assemble
from engine.server.listen import Address, bound
from engine.server.serving import EngineServer
from engine.settings import CPU_KV_MEMORY, EngineSettings

log = logging.getLogger(__name__)

MAX_RESERVE: Final = 0.10
"""How far the thrash governor may raise the share of blocks that admission leaves free."""


def run(
    settings: EngineSettings,
    source: ModelSource,
    address: Address,
    *,
    on_ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve `source` at `address` until SIGTERM or SIGINT, drain, and return.

    `on_ready` gets the address in words once requests are answered. The socket is bound before
    the model is loaded, so a wrong address is told at once; it refuses connections until then.
    Raises ListenError, ModelFileError, TelemetryError, and ValueError for sizes that cannot work.
    """
    with bound(address) as listener:
        engine = _load(settings, source)
        name = _words(listener.getsockname())
        server = EngineServer(
            engine.app, engine.service, settings.drain_deadline_s, lambda: on_ready(name)
        )
        # What was loaded stays: no collection needs to walk it while requests run.
        gc.collect()
        gc.freeze()
        try:
            server.run(sockets=[listener])
        finally:
            engine.telemetry.shutdown()


def core_config(
    settings: EngineSettings,
    *,
    context_length: int,
    num_blocks: int,
    model_digest: bytes,
    windows: tuple[int | None, ...],
) -> CoreConfig:
    """The core's sizes from the operator's settings and the model's. Raises ValueError."""
    max_model_len = min(settings.max_model_len or context_length, context_length)
    return CoreConfig(
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        model_digest=model_digest,
        block_size=settings.block_size,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        reserve=settings.reserve,
        max_reserve=MAX_RESERVE if settings.thrash_governor else settings.reserve,
        prefix_cache=settings.prefix_cache,
        long_prefill_token_threshold=settings.long_prefill_token_threshold,
        max_waiting_requests=settings.max_waiting,
        max_waiting_tokens=settings.max_waiting_tokens,
        windows=windows,
    )


def _load(settings: EngineSettings, source: ModelSource) -> Engine:
    text = load_text_model(source.path, source.model_id)
    model = load_model(
        source.path, settings.dtype, settings.threads, settings.quantization, settings.device
    )
    _require_rows(source, text, model.config.vocab_size)
    num_blocks = settings.num_kv_blocks or DecoderRunner.num_blocks_for(
        model, _kv_memory(settings), settings.block_size
    )
    config = core_config(
        settings,
        context_length=text.context_length,
        num_blocks=num_blocks,
        model_digest=model.digest,
        windows=model.page_groups.windows,
    )
    runner = DecoderRunner(
        model,
        num_blocks,
        settings.block_size,
        settings.max_num_seqs,
        settings.max_num_batched_tokens,
    )
    log.info(
        "%s is loaded: %d KV blocks of %d tokens", source.model_id, num_blocks, config.block_size
    )
    return assemble(
        runner,
        text,
        config,
        write_deadline_s=settings.write_deadline_s,
        telemetry=TelemetrySettings(version=importlib.metadata.version("evenhand")),
    )


def _kv_memory(settings: EngineSettings) -> int:
    """Bytes for keys and values, once the model is loaded."""
    if settings.kv_memory is not None:
        return settings.kv_memory
    if settings.device == "cpu":
        return CPU_KV_MEMORY
    from engine.model.gpu_decoder import free_for_pages

    return free_for_pages()


def _require_rows(source: ModelSource, text: TextModel, rows: int) -> None:
    """A token without an embedding would read beyond the table."""
    if text.vocab_size > rows:
        raise ModelFileError(
            source.path, f"names {text.vocab_size} tokens but has embeddings for {rows} only"
        )


def _words(name: object) -> str:
    """A socket's own name: `unix:/path`, or `http://host:port`."""
    if isinstance(name, str):
        return f"unix:{name}"
    if isinstance(name, tuple):
        host, port = name[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    raise TypeError(f"a socket of this family has no address in words: {name!r}")
