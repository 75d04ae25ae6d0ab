"""How many blocks are saved where sequences of one prompt share them, by the real KV cache.

The measure is the PagedAttention paper's (Kwon et al. 2023, section 6.3): blocks saved by sharing,
of the blocks there would be without, added up over all steps.
"""

from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.random import Generator

from engine.core.config import CoreConfig
from engine.core.kv_cache import KVCache
from engine.core.request import Request, SamplingParams
from engine.sim.replica import MODEL_DIGEST


@dataclass(slots=True)
class Blocks:
    """Blocks held in each step, added up: with sharing as it is, and had each sequence its own."""

    block_size: int
    shared: int = 0
    apart: int = 0

    @property
    def saved(self) -> float:
        """The share of blocks that sharing saves."""
        return 1 - self.shared / self.apart


class Family:
    """Sequences of one prompt in a pool of their own, one token further at every `advance`."""

    def __init__(self, prompt_tokens: int, max_tokens: int, width: int, block_size: int) -> None:
        longest = prompt_tokens + max_tokens + 1
        num_blocks = 2 * width * -(-longest // block_size)  # twice: parents and children meet
        self._cache = KVCache(
            CoreConfig(num_blocks, longest, MODEL_DIGEST, block_size, prefix_cache=False)
        )
        self._params = SamplingParams(max_tokens)
        self._numbers = count()
        self._block_size = block_size
        root = self._new(tuple(range(prompt_tokens)), [])
        self._cache.admit(root, 0)
        self._compute(root)
        self.members = [root]

    def advance(self, parents: list[int], tokens: list[int]) -> None:
        """Let member i of the next generation be `parents[i]`'s sequence and `tokens[i]`.

        A parent goes on itself as its first child; the others fork it; one without is freed.
        """
        following = [
            self._fork(self.members[parent], token) if parent in parents[:index] else None
            for index, (parent, token) in enumerate(zip(parents, tokens, strict=True))
        ]
        grown = []
        for child, parent, token in zip(following, parents, tokens, strict=True):
            grown.append(child or self._append(self.members[parent], token))
        for index, member in enumerate(self.members):
            if index not in parents:
                self._cache.free(member)
        self.members = grown
        for member in grown:
            self._compute(member)

    def count(self, blocks: Blocks) -> None:
        """Add this moment's blocks."""
        blocks.shared += self._cache.pool.num_held
        blocks.apart += sum(-(-member.num_tokens // self._block_size) for member in self.members)

    def check_integrity(self) -> None:
        """Raise IntegrityError unless every block is accounted for."""
        self._cache.check_integrity(self.members)

    def _new(self, prompt: tuple[int, ...], output: list[int]) -> Request:
        name = f"sequence-{next(self._numbers)}"
        return Request(name, prompt, self._params, "namespace", output_token_ids=output)

    def _fork(self, parent: Request, token: int) -> Request:
        child = self._new(parent.prompt_token_ids, [*parent.output_token_ids, token])
        if self._cache.fork(parent, child, 0) is None:
            raise AssertionError("the pool holds two generations")
        return child

    def _append(self, parent: Request, token: int) -> Request:
        parent.output_token_ids.append(token)
        if not self._cache.extend(parent):
            raise AssertionError("the pool holds two generations")
        return parent

    def _compute(self, member: Request) -> None:
        member.num_computed_tokens = member.num_tokens
        self._cache.commit(member)


def parallel_samples(blocks: Blocks, prompt_tokens: int, answer_tokens: int, samples: int) -> None:
    """`samples` answers of equal length to one prompt: they share it, and nothing else."""
    family = Family(prompt_tokens, answer_tokens, samples, blocks.block_size)
    family.advance([0] * samples, list(range(samples)))
    family.count(blocks)
    for step in range(1, answer_tokens):
        family.advance(list(range(samples)), [samples * step + index for index in range(samples)])
        family.count(blocks)
    family.check_integrity()


@dataclass(frozen=True, slots=True)
class RandomModel:
    """Next-token log-probabilities out of nothing: logits are normal with this spread."""

    vocabulary: int = 64
    spread: float = 3.0

    def log_probabilities(
        self, rng: Generator, rows: int
    ) -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
        """[rows, vocabulary], independent of each other."""
        logits = rng.normal(0, self.spread, (rows, self.vocabulary))
        return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)


def beam_search(
    blocks: Blocks,
    rng: Generator,
    prompt_tokens: int,
    answer_tokens: int,
    width: int,
    *,
    model: RandomModel,
) -> None:
    """Keep the `width` best of all one-token continuations at every step."""
    family = Family(prompt_tokens, answer_tokens, width, blocks.block_size)
    scores = np.zeros(1)
    for _ in range(answer_tokens):
        candidates = scores[:, None] + model.log_probabilities(rng, len(scores))
        best = np.argsort(candidates, axis=None)[: -width - 1 : -1]
        parents, tokens = np.divmod(best, model.vocabulary)
        family.advance(parents.tolist(), tokens.tolist())
        family.count(blocks)
        scores = candidates.ravel()[best]
    family.check_integrity()
