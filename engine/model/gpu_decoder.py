"""The decoder on a GPU: operation by operation over Triton kernels, tokens drawn on the device.

Matrix products are cuBLAS's, which picks an algorithm by the number of rows: unlike on a CPU, the
last bits of a row's logits depend on the size of its batch.
"""

from dataclasses import replace
from typing import Final, Literal

import numpy as np
import torch

from engine.model.decoder import Indices
from engine.model.torch_decoder import TorchDecoder, TorchState
from engine.model.weights import Weights
from kernels.api import TensorLayout
from kernels.draws import Draws
from kernels.layout import BatchLayout
from kernels.matrix import FloatMatrix
from kernels.triton.attention_shape import AttentionShape
from kernels.triton.ops import TritonKernels

GpuType = Literal["auto", "float32", "float16", "bfloat16"]

_TYPES: Final = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
_LEAST_CAPABILITY: Final = (8, 0)
# Of what weights leave free: the rest is for activations, logits and the allocator's own.
_SHARE_FOR_PAGES: Final = 0.85


def require_gpu() -> None:
    """Raise ValueError where torch has no GPU that the kernels run on, and say why."""
    if torch.version.cuda is None:
        raise ValueError(
            f"device 'cuda' needs a CUDA build of torch; {torch.__version__} has none:"
            " install the wheel of the same version for your CUDA"
        )
    if not torch.cuda.is_available():
        raise ValueError("device 'cuda' needs a GPU and its driver; torch finds none")
    capability = torch.cuda.get_device_capability()
    if capability < _LEAST_CAPABILITY:
        raise ValueError(
            f"device 'cuda' needs compute capability 8.0 or newer;"
            f" {torch.cuda.get_device_name()} has {capability[0]}.{capability[1]}"
        )


def free_for_pages() -> int:
    """Bytes of the GPU's memory that pages may take once the weights are on it."""
    torch.cuda.empty_cache()  # what loading used for a moment
    free, _ = torch.cuda.mem_get_info()
    return int(free * _SHARE_FOR_PAGES)


class GpuDecoder(TorchDecoder):
    """`TorchDecoder` over Triton; `device` "cpu" is for their interpreter.

    `dtype` "auto" is the weights' own type where that has 16 bits, else bfloat16; of Gemma always.
    Raises ValueError for Gemma in float16, which its hidden states outgrow.
    """

    def __init__(self, weights: Weights, dtype: GpuType = "auto", device: str = "cuda") -> None:
        if weights.config.post_norms and dtype == "float16":
            raise ValueError("dtype 'float16' is too narrow for Gemma: use bfloat16 or float32")
        chosen = _own_type(weights) if dtype == "auto" else _TYPES[dtype]
        super().__init__(weights, TritonKernels(), chosen, device)

    def open(self, num_pages: int, page_size: int, max_tokens: int) -> "GpuState":
        """See `Decoder.open`; compiles the kernels.

        Raises ValueError for a page size or head size that they do not take.
        """
        config = self.config
        AttentionShape(
            self.dtype, config.num_heads, config.num_kv_heads, config.head_dim, page_size
        )
        state = GpuState(self, self.allocate(num_pages, page_size), max_tokens)
        state.compile()
        return state


class GpuState(TorchState):
    """`TorchState` that is an `engine.model.decoder.DrawingState`."""

    @torch.inference_mode()
    def draw(self, tokens: Indices, draws: Draws) -> Indices:
        """See `DrawingState.draw`."""
        drawn: Indices = self._decoder.sample(self._logits(tokens), draws).cpu().numpy()
        return drawn

    @torch.inference_mode()
    def compile(self) -> None:
        """Have every kernel compiled before the first request: prefill, decode, sampling, copies.

        The pages must be, and are again, all zeros.
        """
        decoder = self._decoder
        for count in (2, 1):
            row = _one_row(count, len(decoder.page_groups.windows))
            # Launched as for the longest context, which is attended to in parts.
            layout = replace(
                TensorLayout.of(row, decoder.device), longest_context=decoder.config.context_length
            )
            tokens = torch.zeros(count, dtype=torch.int32, device=decoder.device)
            self._hidden = decoder.forward(tokens, layout, self.pages)
        self.draw(np.zeros(1, np.int64), Draws.of([(1.0, 2, 0.9, 0.0, 0.5)]))
        last = self.pages.keys.shape[1] - 1
        self.copy_pages([0], [last])
        for page in (0, last):
            self.clear_page(page)


def _one_row(count: int, groups: int) -> BatchLayout:
    """The first `count` tokens of a sequence in page 0."""
    return BatchLayout(
        positions=np.arange(count, dtype=np.int32),
        rows=np.zeros(count, np.int32),
        row_starts=np.array([0, count], np.int32),
        first_positions=np.zeros(1, np.int32),
        block_tables=np.zeros((groups, 1, 1), np.int32),
    )


def _own_type(weights: Weights) -> torch.dtype:
    """By the first layer's queries; never fp16 for Gemma, whose hidden states outgrow it."""
    config = weights.config
    if config.post_norms:
        return torch.bfloat16
    shape = (config.num_heads * config.head_dim, config.hidden_size)
    matrix = weights.matrix("layers.0.q", shape)
    if isinstance(matrix, FloatMatrix) and matrix.kind == "f16":
        return torch.float16
    return torch.bfloat16
