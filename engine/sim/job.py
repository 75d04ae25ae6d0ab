"""What a client sends in the simulator: a prompt made of runs of token ids, and an answer's length.

Streams are unbounded runs of ids; two of them practically never share a block. Prompts that begin
with the same spans share a prefix, and a span of an earlier answer's stream resends that answer.
"""

from dataclasses import dataclass
from itertools import chain, count

from engine.core.request import Request, SamplingParams

_NUM_STREAMS = (
    1 << 31
)  # a block key has 32 bits for a token id: half of them is left to run through
_SPREAD = 1_327_217_885  # odd, so no two numbers meet; near 2^31 / golden ratio (Knuth)


class Streams:
    """Hands out streams, each only once."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def new(self) -> int:
        """The first token id of a stream nobody has."""
        return next(self._numbers) * _SPREAD % _NUM_STREAMS


@dataclass(frozen=True, slots=True)
class Span:
    """The first `length` tokens of a stream."""

    stream: int
    length: int

    def token_ids(self) -> range:
        """The ids, in order."""
        return range(self.stream, self.stream + self.length)


@dataclass(frozen=True, slots=True)
class Job:
    """One request of a workload; `answer` is what it will be answered, known only to the simulator.

    `max_tokens` is what the client declares (the dispatcher counts with it), never less than the
    answer is long. `tenant` is whose it is and also the cache's namespace and owner.
    """

    job_id: str
    prompt: tuple[Span, ...]
    answer: Span
    max_tokens: int = 0
    tenant: str = "tenant"

    def __post_init__(self) -> None:
        if self.num_prompt_tokens < 1 or self.answer.length < 1:
            raise ValueError(f"job {self.job_id} needs a prompt token and an output token")
        if self.max_tokens and self.max_tokens < self.answer.length:
            raise ValueError(f"job {self.job_id} answers more than its max_tokens")

    @property
    def num_prompt_tokens(self) -> int:
        """The prompt's length."""
        return sum(span.length for span in self.prompt)

    @property
    def declared_tokens(self) -> int:
        """The most output the client asks for."""
        return self.max_tokens or self.answer.length

    def request(self) -> Request:
        """The request that the engine core is given: it ends after exactly the answer's length."""
        prompt = tuple(chain.from_iterable(span.token_ids() for span in self.prompt))
        params = SamplingParams(self.answer.length, temperature=0.0, seed=self.answer.stream)
        return Request(self.job_id, prompt, params, self.tenant, owner=self.tenant)
