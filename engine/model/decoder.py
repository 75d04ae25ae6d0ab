"""What a loaded model offers the runner, whichever device and library compute it.

numpy at the boundary, so that a CPU engine need not load torch. Implemented by
`engine.model.torch_decoder`, operation by operation, and `engine.model.native`, a step at a time.
"""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from engine.model.config import ModelConfig
from engine.model.page_groups import PageGroups
from kernels.draws import Draws
from kernels.layout import BatchLayout, Ints

Indices = np.ndarray[Any, np.dtype[np.int64]]
Logits = np.ndarray[Any, np.dtype[np.float32]]


class DecoderState(Protocol):
    """The pages and the working memory of one engine; one thread at a time makes every call."""

    def copy_pages(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy page `sources[i]` to `targets[i]`, all layers; every source is read first.

        `targets` holds no page twice.
        """
        ...

    def clear_page(self, page: int) -> None:
        """Make the page look unused: all zeros."""
        ...

    def forward(self, token_ids: Ints, layout: BatchLayout) -> None:
        """Compute every token of a batch and write its keys and values to the pages.

        Raises ValueError for a batch beyond the declared size, and for a token or page that does
        not exist.
        """
        ...

    def logits(self, tokens: Indices) -> Logits:
        """Next-token logits [M, vocabulary] of these tokens of the latest batch."""
        ...


@runtime_checkable
class DrawingState(DecoderState, Protocol):
    """A state that also draws tokens where their logits are, so that only ids leave the device."""

    def draw(self, tokens: Indices, draws: Draws) -> Indices:
        """The token [M] drawn after each of these tokens of the latest batch.

        -1 where the model computed no logit that is a number.
        """
        ...


class Decoder(Protocol):
    """A loaded model; it keeps no state between calls: `open` makes the memory of one engine.

    `digest` is the SHA-256 of everything that decides what it computes. `page_groups` says how many
    layers a page holds and which of them share a block table.
    """

    config: ModelConfig
    digest: bytes
    page_groups: PageGroups

    def page_bytes(self, page_size: int) -> int:
        """Bytes of one page of `page_size` tokens, keys and values of all layers of one group."""
        ...

    def open(self, num_pages: int, page_size: int, max_tokens: int) -> DecoderState:
        """Zeroed pages, and room for batches of up to `max_tokens` tokens."""
        ...
