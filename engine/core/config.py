"""How much the engine core may hold and do at once; validated where it is made."""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """Sizes and limits of one engine core. Raises ValueError for a combination that cannot work.

    `reserve` is the share of blocks an admission must leave idle while anything runs.
    Under preemption thrash that share rises as far as `max_reserve`, which at most `reserve`
    means never.
    `long_prefill_token_threshold` caps one request's chunk in a step; 0 means that prefills share
    the token budget, a quarter each, and the oldest gets what is left.
    `max_passes` is how often later arrivals may pass a waiting request that does not fit yet.
    `windows` has one entry per page group, a group of layers with pages of their own: None for
    full attention, else how many of the latest tokens, itself included, a position attends to.
    """

    num_blocks: int
    max_model_len: int
    model_digest: bytes
    block_size: int = 16
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 512
    reserve: Fraction | float = 0.02
    max_reserve: Fraction | float = 0.10
    prefix_cache: bool = True
    long_prefill_token_threshold: int = 0
    max_waiting_requests: int = 1024
    max_waiting_tokens: int = 1 << 22
    max_passes: int = 8
    windows: tuple[int | None, ...] = (None,)

    def __post_init__(self) -> None:
        for name in ("num_blocks", "block_size", "max_num_seqs", "max_waiting_requests"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.max_model_len < 2:
            raise ValueError("max_model_len must hold a prompt token and an output token")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                "max_num_batched_tokens below max_num_seqs would starve a running request"
            )
        self._check_windows()
        if self.max_waiting_tokens < self.max_sequence_tokens:
            raise ValueError("max_waiting_tokens must hold the longest prompt there can be")
        for name in ("reserve", "max_reserve"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 0 and below 1")
        for name in ("max_passes", "long_prefill_token_threshold"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")

    def _check_windows(self) -> None:
        if not self.windows or any(w is not None and w < 1 for w in self.windows):
            raise ValueError("windows must name at least one page group, and no window below 1")
        if self.max_sequence_tokens < 2:
            raise ValueError("num_blocks must hold two tokens in every page group")

    @property
    def reserve_blocks(self) -> int:
        """The reserve in blocks, rounded up (exactly: 0.07 of 100 blocks is 7)."""
        return self._blocks(self.reserve)

    @property
    def max_reserve_blocks(self) -> int:
        """The most that preemption thrash can raise the reserve to, in blocks, rounded up."""
        return self._blocks(self.max_reserve)

    @property
    def max_sequence_tokens(self) -> int:
        """The most tokens, prompt and output, one request can have: context or whole pool."""
        return min(self.max_model_len, self.num_blocks // len(self.windows) * self.block_size)

    def tokens_in(self, num_blocks: int) -> int:
        """How many tokens so many blocks hold, as each takes a slot in every page group."""
        return num_blocks * self.block_size // len(self.windows)

    def _blocks(self, share: Fraction | float) -> int:
        return ceil(Fraction(str(share)) * self.num_blocks)
