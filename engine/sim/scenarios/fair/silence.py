"""A stream that is silent for more than five minutes: a prompt as long as the machine's memory.

Its place is its own however long it says nothing. A gateway that took silent streams for lost would
count their places as free and send others there. They would wait inside the engine, where nobody
is fair; one such reaper let a pool of 96 places hold 1,700 (llm-d #2295).
"""

from collections.abc import Sequence

from numpy.random import Generator

from engine.core.config import CoreConfig
from engine.sim.job import Job, Span, Streams
from engine.sim.replica import MODEL_DIGEST, Replica
from engine.sim.result import Cell, Result, Table
from engine.sim.scenario import Scenario
from engine.sim.scenarios.fair.broken import ReapingGateway
from engine.sim.scenarios.fair.compare import Client, Play, Setting, play, plays, result
from engine.sim.step_time import EverySame
from engine.sim.workload import Arrival, Fixed, JobKind
from fairness.policy import VtcPolicy
from fairness.types import PoolConfig, TenantTerms

SECONDS, STEP_S = 1_500.0, 1.0
READER, CHATTER = "reader", "chatter"
PROMPT, ANSWER, NUM_READERS, CHUNK = 20_800, 32, 4, 64
REAPED = "silent streams reaped"
TERMS = TenantTerms(1_000, concurrency=16, max_prompt_tokens=21_000, max_output_tokens=32)


def setting(rng: Generator, seconds: float = SECONDS) -> Setting:
    """A book after the other to read, and short questions in between."""
    streams = Streams()
    sent = [Arrival(5.0 * number, _book(number, streams)) for number in range(NUM_READERS)]
    kind = JobKind(Fixed(32), Fixed(16), tenant=CHATTER)
    sent += Client(kind, rate=0.1).arrivals(rng, streams, seconds)
    terms = {READER: TERMS, CHATTER: TERMS}
    return Setting(
        terms, sent, seconds, replicas=_slow, pool=PoolConfig(ttl_s=1e6, t_max_s=seconds)
    )


def _book(number: int, streams: Streams) -> Job:
    prompt, answer = Span(streams.new(), PROMPT), Span(streams.new(), ANSWER)
    return Job(f"{READER}-{number}", (prompt,), answer, tenant=READER)


def _slow() -> Sequence[Replica]:
    """A step a second, and 64 tokens of a long prompt in each, so that others' streams go on."""
    config = CoreConfig(
        num_blocks=1_456,
        max_model_len=1 << 15,
        model_digest=MODEL_DIGEST,
        max_num_batched_tokens=256,
        long_prefill_token_threshold=CHUNK,
    )
    return [Replica("replica", config, EverySame(STEP_S))]


def without_rule(of: Setting) -> dict[str, Play]:
    """A gateway that gives silent streams up."""
    return {REAPED: play(of, VtcPolicy(), ReapingGateway)}


def longest_silence(run: Play) -> float:
    """The longest time from a stream's grant to its first token."""
    return max(
        job.token_times[0] - job.granted
        for job in run.trace.jobs.values()
        if job.granted is not None and job.token_times
    )


def most_waiting_in_engine(run: Play) -> int:
    """The most requests that waited inside the engine after a step."""
    return max(run.trace.replicas["replica"].timeline.waiting)


def silence_table(found: dict[str, Play]) -> Table:
    """Where requests waited."""
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (name, longest_silence(run), most_waiting_in_engine(run)) for name, run in found.items()
    )
    columns = ("queue", "longest from grant to first token (s)", "most waiting in the engine")
    return Table("silence", columns, rows)


def _run(rng: Generator) -> Result:
    found = plays(setting(rng), without_rule)
    return result("a prompt that takes more than five minutes", found, silence_table(found))


SCENARIOS = (
    Scenario("fairness/silence", "a stream that is silent for five minutes", _run, plots=True),
)
