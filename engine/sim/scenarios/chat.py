"""A chat service on one machine: how much traffic it serves within its latency targets."""

from numpy.random import Generator

from engine.sim.job import Span, Streams
from engine.sim.presets import PRESETS
from engine.sim.replica import Replica
from engine.sim.report import Report, Slo, report
from engine.sim.result import Line, Plot, Result, run_table
from engine.sim.scenario import Scenario
from engine.sim.simulation import simulate
from engine.sim.workload import (
    Chat,
    Conversation,
    Conversations,
    Fixed,
    JobKind,
    Lognormal,
    OpenLoop,
    arrivals,
    bursts,
    poisson,
)

SLO = Slo(ttft_s=0.2, tpot_s=0.02)
CPU_SLO = Slo(ttft_s=5.0, tpot_s=0.2)
RATES = (2.0, 8.0, 32.0)  # conversations per second
NUM_CHATS = 64
SYSTEM_TOKENS, TURNS, THINK_S = 1_024, 3, 5.0
MESSAGES = Lognormal(median=64, sigma=0.8, least=4, most=2_000)
ANSWERS = Lognormal(median=128, sigma=0.8, least=4, most=1_000)
CPU_RATE, NUM_PER_BURST, NUM_CPU_JOBS = 0.5, 8, 48


def conversations(rng: Generator, rate: float) -> Conversations:
    """Chats of three turns over one system prompt; users think five seconds between turns."""
    streams = Streams()
    system = Span(streams.new(), SYSTEM_TOKENS)
    chats = []
    for number, begins in enumerate(poisson(rng, rate, NUM_CHATS)):
        chat = Chat(f"chat-{number}", streams, (system,))
        messages, answers = MESSAGES.draw(rng, TURNS), ANSWERS.draw(rng, TURNS)
        for message, answer in zip(messages, answers, strict=True):
            chat.turn(message, answer)
        chats.append(Conversation(begins, tuple(chat.turns), THINK_S))
    return Conversations(chats)


def chat_service(rng: Generator, rate: float) -> Report:
    """Serve the chats with Llama 3.1 8B on one H100."""
    preset = PRESETS["h100-llama-3.1-8b"]
    config = preset.config(max_num_seqs=64, max_num_batched_tokens=512)
    run = simulate(Replica("replica", config, preset.step_time), conversations(rng, rate))
    return report(run, SLO)


def _chats(rng: Generator) -> Result:
    runs = {f"{rate:g} chats/s": chat_service(rng, rate) for rate in RATES}
    lines = (
        Line("TTFT p99", RATES, [run.ttft.p99 for run in runs.values()]),
        Line("TTFT p50", RATES, [run.ttft.p50 for run in runs.values()]),
    )
    title = f"chats of {TURNS} turns, Llama 3.1 8B on one H100"
    return Result(
        (run_table(title, runs),),
        (Plot(title, "conversations per second", "seconds", lines, log_x=True),),
        runs,
    )


def _bursts(rng: Generator) -> Result:
    """The same jobs, once spread evenly at random and once eight at a time, on this CPU."""
    preset = PRESETS["cpu-smollm2-135m"]
    kind = JobKind(MESSAGES, Fixed(24))
    jobs = kind.jobs(rng, Streams(), NUM_CPU_JOBS)
    times = {
        "Poisson": poisson(rng, CPU_RATE, NUM_CPU_JOBS),
        f"bursts of {NUM_PER_BURST}": bursts(rng, CPU_RATE, NUM_CPU_JOBS, NUM_PER_BURST),
    }
    config = preset.config(max_num_seqs=16, max_num_batched_tokens=512)
    runs = {
        name: report(
            simulate(Replica("replica", config, preset.step_time), OpenLoop(arrivals(when, jobs))),
            CPU_SLO,
        )
        for name, when in times.items()
    }
    return Result(
        (run_table(f"{NUM_CPU_JOBS} short jobs, SmolLM2 135M on two cores", runs),), (), runs
    )


SCENARIOS = (
    Scenario("chats", "conversations with think time on one H100, by rate", _chats, plots=True),
    Scenario("bursts", "the same work evenly spread and in bursts, on two cores", _bursts),
)
