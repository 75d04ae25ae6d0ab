"""How much of a chat service's prompts the prefix cache finds, by the size of the cache."""

from collections.abc import Sequence

from numpy.random import Generator

from engine.core.config import CoreConfig
from engine.sim.job import Job, Span, Streams
from engine.sim.presets import BLOCK_SIZE
from engine.sim.replica import MODEL_DIGEST, Replica
from engine.sim.report import report
from engine.sim.result import Line, Plot, Result, Table
from engine.sim.scenario import Scenario
from engine.sim.simulation import simulate
from engine.sim.step_time import EverySame
from engine.sim.workload import Chat, ClosedLoop, Exponential

NUM_CHATS, NUM_SYSTEM_PROMPTS = 120, 3
SYSTEM_TOKENS = (600, 2_000)
TURNS = (1, 6)
MESSAGES, ANSWERS = Exponential(100), Exponential(60)
CACHE_TOKENS = (8_192, 16_384, 32_768, 65_536)


def chat_trace(rng: Generator) -> list[Job]:
    """120 conversations of one to six turns over three system prompts, interleaved at random.

    Every turn resends the system prompt and the whole history and adds a message.
    """
    streams = Streams()
    lengths = rng.integers(*SYSTEM_TOKENS, NUM_SYSTEM_PROMPTS, endpoint=True)
    prompts = [Span(streams.new(), int(length)) for length in lengths]
    chats = [
        Chat(f"chat-{number}", streams, (prompts[int(rng.integers(NUM_SYSTEM_PROMPTS))],))
        for number in range(NUM_CHATS)
    ]
    for chat in chats:
        count = int(rng.integers(*TURNS, endpoint=True))
        messages, answers = MESSAGES.draw(rng, count), ANSWERS.draw(rng, count)
        for message, answer in zip(messages, answers, strict=True):
            chat.turn(message, answer)
    return _interleave(rng, [chat.turns for chat in chats])


def _interleave(rng: Generator, sequences: Sequence[Sequence[Job]]) -> list[Job]:
    """One random order of all that keeps each sequence's own."""
    owners = rng.permutation([i for i, sequence in enumerate(sequences) for _ in sequence])
    remaining = [iter(sequence) for sequence in sequences]
    return [next(remaining[owner]) for owner in owners]


def hit_rate(trace: Sequence[Job], cache_tokens: int) -> float:
    """The share of prompt tokens found in a cache of this size, one request after another."""
    num_blocks = cache_tokens // BLOCK_SIZE
    config = CoreConfig(
        num_blocks,
        num_blocks * BLOCK_SIZE,
        MODEL_DIGEST,
        max_num_seqs=1,
        max_num_batched_tokens=1 << 14,
    )
    run = simulate(Replica("replica", config, EverySame()), ClosedLoop(trace, in_flight=1))
    return report(run).hit_rate


def everything(trace: Sequence[Job]) -> int:
    """A cache this large never evicts."""
    return sum(job.num_prompt_tokens + job.answer.length + BLOCK_SIZE for job in trace)


def _chat_cache(rng: Generator) -> Result:
    trace = chat_trace(rng)
    rates = {tokens: hit_rate(trace, tokens) for tokens in CACHE_TOKENS}
    rows = [(f"{tokens:,}", 100 * rate) for tokens, rate in rates.items()]
    rows.append(("unlimited", 100 * hit_rate(trace, everything(trace))))
    title = f"{len(trace)} turns of {NUM_CHATS} conversations"
    line = Line("hit rate", list(rates), [100 * rate for rate in rates.values()])
    return Result(
        (Table(title, ("cache (tokens)", "prompt tokens hit (%)"), tuple(rows)),),
        (Plot(title, "cache (tokens)", "prompt tokens hit (%)", (line,), log_x=True),),
    )


SCENARIOS = (
    Scenario(
        "chat-cache",
        "prefix-cache hits of interleaved conversations by size",
        _chat_cache,
        plots=True,
    ),
)
