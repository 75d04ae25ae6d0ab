"""The decoder of GPUs, its kernels interpreted on the CPU; `make gpu-check` has a GPU for it."""

import importlib.util
from functools import partial

import numpy as np
import pytest
import torch

from engine.core.batch import ScheduledBatch, ScheduledRow
from engine.core.engine_core import CoreConfig
from engine.core.request import NO_BLOCK, SamplingParams
from engine.model import gpu_decoder
from engine.model.decoder import DrawingState
from engine.model.gpu_decoder import GpuDecoder, require_gpu
from engine.model.load import load_model, open_weights
from engine.model.torch_decoder import TorchDecoder
from engine.runner.decoder_runner import DecoderRunner
from engine.server.main import _kv_memory
from engine.settings import EngineSettings
from kernels.reference import ReferenceKernels
from tests.support.equivalence import Comparison, forced_case
from tests.support.paged_tensors import DEVICE
from tests.support.tiny_models import tiny

BLOCK = 8


@pytest.fixture(autouse=True)
def _infinities_are_quiet():
    with np.errstate(all="ignore"):
        yield


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Of a family and type a folder with a model whose heads the kernels take, and the model."""
    made = {}

    def save(family, dtype=torch.float32):
        if (family, dtype) not in made:
            folder = tmp_path_factory.mktemp(family)
            model = tiny(family, head_dim=16)
            model.to(dtype).save_pretrained(folder)
            made[family, dtype] = folder, model.float()
        return made[family, dtype]

    return save


def plain(folder):
    return TorchDecoder(open_weights(folder), ReferenceKernels())


def compare(folder, reference, dtype):
    model = GpuDecoder(open_weights(folder), dtype, DEVICE)
    runner = DecoderRunner(model, 32, BLOCK, 4, 24)
    config = CoreConfig(
        num_blocks=32,
        max_model_len=model.config.context_length,
        model_digest=model.digest,
        block_size=BLOCK,
        max_num_seqs=4,
        max_num_batched_tokens=24,
        windows=runner.windows,
    )
    rng = np.random.default_rng(3)
    tokens = [rng.integers(0, 300, length + 2).tolist() for length in (1, 18)]
    cases = [forced_case(reference, sequence, len(sequence) - 2) for sequence in tokens]
    return Comparison(runner, config).run(cases).largest_logit_difference


@pytest.mark.parametrize("family", ["qwen2", "gemma3_text"])
def test_logits_are_those_of_transformers(saved, family):
    assert compare(*saved(family), "float32") <= 1e-4


def test_half_precision_is_as_near_as_it_can_be(saved):
    assert 0 < compare(*saved("qwen3"), "bfloat16") <= 0.15


def row(name, tokens, params):
    return ScheduledRow(name, tuple(tokens), 0, ((ord(name) - ord("a"),),), params, samples=True)


def test_tokens_are_drawn_on_the_device_as_on_the_host(saved):
    folder, _ = saved("qwen2")
    rows = [
        ({"temperature": 0.0}, "greedy"),
        ({"temperature": 1.0, "top_p": 0.7, "seed": 5}, "nucleus"),
        ({"temperature": 0.8, "top_k": 20, "min_p": 0.01, "seed": 6}, "top-k"),
        ({"temperature": 1.0, "seed": 7, "logit_bias": ((9, 3.0),)}, "a rule"),
        ({"temperature": 1.0, "seed": 8, "logprobs": 2}, "log-probabilities"),
    ]
    batch = ScheduledBatch(
        step=0,
        rows=tuple(
            row(name, range(3, 8), SamplingParams(max_tokens=1, **params))
            for name, (params, _) in zip("abcde", rows, strict=True)
        ),
        num_tokens=25,
    )
    host = DecoderRunner(plain(folder), 8, BLOCK, 8, 32).execute(batch)
    runner = DecoderRunner(GpuDecoder(open_weights(folder), "float32", DEVICE), 8, BLOCK, 8, 32)
    drawn = []
    draw = runner._draw
    runner._draw = lambda tokens, draws: drawn.append(len(tokens)) or draw(tokens, draws)
    device = runner.execute(batch)
    assert not device.failed
    assert drawn == [3]
    for name, token in host.sampled.items():
        assert device.sampled[name].token_id == token.token_id
    assert device.sampled["e"].logprobs.token_id == host.sampled["e"].token_id


def test_a_state_that_draws_is_known_by_what_it_can(saved):
    folder, _ = saved("qwen2")
    state = GpuDecoder(open_weights(folder), "float32", DEVICE).open(4, BLOCK, 8)
    assert isinstance(state, DrawingState)
    assert not isinstance(plain(folder).open(4, BLOCK, 8), DrawingState)
    assert not state.pages.keys.any()
    assert not state.pages.values.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_the_type_is_the_weights_own_or_bfloat16(saved, dtype):
    weights = open_weights(saved("llama", dtype)[0])
    model = GpuDecoder(weights, device=DEVICE)
    assert model.dtype == (torch.float16 if dtype == torch.float16 else torch.bfloat16)
    assert model.digest != weights.digest()
    assert GpuDecoder(weights, "float32", DEVICE).digest == weights.digest()
    assert model.page_bytes(16) == 2 * 2 * 2 * 2 * 16 * 16  # two each of layers, heads and bytes


def test_gemma_is_never_loaded_in_fp16(saved):
    """Its hidden states grow beyond what fp16 holds."""
    weights = open_weights(saved("gemma3_text", torch.float16)[0])
    assert GpuDecoder(weights, device=DEVICE).dtype == torch.bfloat16
    with pytest.raises(ValueError, match="too narrow"):
        GpuDecoder(weights, "float16", DEVICE)


def test_what_the_kernels_do_not_take_is_refused_when_opened(tmp_path, saved):
    tiny("llama", head_dim=12).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="head_dim must be a multiple of 8"):
        GpuDecoder(open_weights(tmp_path), device=DEVICE).open(4, BLOCK, 8)
    with pytest.raises(ValueError, match="page_size must be"):
        GpuDecoder(open_weights(saved("qwen2")[0]), device=DEVICE).open(4, 12, 8)


def test_what_does_not_exist_never_reaches_the_device(saved):
    state = GpuDecoder(open_weights(saved("qwen2")[0]), "float32", DEVICE).open(4, BLOCK, 8)
    layout = gpu_decoder._one_row(1, 1)
    with pytest.raises(ValueError, match="token is not among 300"):
        state.forward(np.array([300], np.int32), layout)
    layout.block_tables[:] = 4
    with pytest.raises(ValueError, match="page is not among 4"):
        state.forward(np.array([0], np.int32), layout)
    layout.block_tables[:] = NO_BLOCK
    with pytest.raises(ValueError, match="page is not among 4"):
        state.forward(np.array([0], np.int32), layout)
    layout.block_tables[:] = 0
    for positions in (layout.positions, layout.first_positions):
        positions[:] = BLOCK
    with pytest.raises(ValueError, match="slot of a block table is not among 1"):
        state.forward(np.array([0], np.int32), layout)
    with pytest.raises(ValueError, match="token of the batch"):
        state.logits(np.array([1]))


def test_a_gpu_that_is_not_there_is_an_error_that_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(ValueError, match="CUDA build of torch"):
        require_gpu()
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="torch finds none"):
        require_gpu()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    with pytest.raises(ValueError, match=r"8\.0 or newer; Tesla T4 has 7\.5"):
        require_gpu()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    require_gpu()


def test_a_model_is_loaded_for_a_gpu_once_there_is_one(monkeypatch, saved):
    folder, _ = saved("qwen2")
    with pytest.raises(ValueError, match="quantization 'activations-int8' is for device 'cpu'"):
        load_model(folder, quantization="activations-int8", device="cuda")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="needs torch, which is not installed"):
        load_model(folder, device="cuda")
    monkeypatch.undo()
    monkeypatch.setattr(gpu_decoder, "require_gpu", lambda: None)
    monkeypatch.setattr(gpu_decoder, "GpuDecoder", partial(GpuDecoder, device=DEVICE))
    model = load_model(folder, "float16", device="cuda")
    assert isinstance(model, GpuDecoder)
    assert model.dtype == torch.float16


def test_pages_get_most_of_what_a_gpu_has_left_unless_the_operator_says(monkeypatch):
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1000, 4000))
    assert _kv_memory(EngineSettings(device="cuda")) == 850
    assert _kv_memory(EngineSettings(device="cuda", kv_memory=77)) == 77
    assert _kv_memory(EngineSettings()) == 1 << 30
