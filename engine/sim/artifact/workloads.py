"""The artifact's workloads: which client sends how much, when, and for how long.

Every suite is the artifact's (fair_bench/exp_suite.py and trace.py) with one addition: weights
under equal load. Clients with fixed intervals begin at a random moment of their first one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from numpy.random import Generator

from engine.sim.artifact.real import real_trace
from engine.sim.job import Job, Span, Streams
from engine.sim.workload import Arrival

LENGTH = 256
"""Tokens of a prompt and of an answer, where a suite does not say otherwise."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One request: who sent it when, and how many tokens go in and come out."""

    when: float
    client: str
    prompt: int
    output: int


Draw = Callable[[Generator], list[Sent]]


@dataclass(frozen=True, slots=True)
class Suite:
    """One experiment. `weights` are the clients' in thousandths; without, all are equal.

    `caps`: whether it was also run with caps on requests per minute.
    """

    name: str
    summary: str
    draw: Draw
    preset: str = "slora-a10g-llama-2-7b"
    weights: Mapping[str, int] | None = None
    caps: bool = False

    def arrivals(self, rng: Generator) -> list[Arrival]:
        """Its requests in order of time, none sharing a prefix."""
        streams = Streams()
        return [
            Arrival(
                sent.when,
                Job(
                    f"{sent.client}-{number}",
                    (Span(streams.new(), sent.prompt),),
                    Span(streams.new(), sent.output),
                    tenant=sent.client,
                ),
            )
            for number, sent in enumerate(sorted(self.draw(rng), key=lambda sent: sent.when))
        ]


def client(number: int) -> str:
    """The name of a client; names sort as numbers do."""
    return f"client-{number:02}"


@dataclass(frozen=True, slots=True)
class Steady:
    """A client that sends every 1/`rate` seconds, silent every second minute if `on_off`."""

    rate: float
    on_off: bool = False
    length: int = LENGTH

    def sends(self, rng: Generator, number: int, seconds: float, start: float = 0.0) -> list[Sent]:
        """Its requests from `start` on."""
        first = start + float(rng.random()) / self.rate
        times = (first + index / self.rate for index in range(1, int(self.rate * seconds) + 1))
        return [
            Sent(when, client(number), self.length, self.length)
            for when in times
            if not (self.on_off and int(when // 60) % 2)
        ]


def steady(seconds: float, *clients: Steady) -> Draw:
    """Clients beside each other for so long."""

    def draw(rng: Generator) -> list[Sent]:
        return [
            sent
            for number, one in enumerate(clients, 1)
            for sent in one.sends(rng, number, seconds)
        ]

    return draw


def phases(seconds: float, *each: Sequence[Steady]) -> Draw:
    """Clients who change their habits: a phase after the other, each as long."""

    def draw(rng: Generator) -> list[Sent]:
        return [
            sent
            for phase, clients in enumerate(each)
            for number, one in enumerate(clients, 1)
            for sent in one.sends(rng, number, seconds, phase * seconds)
        ]

    return draw


def split(seconds: float, rates: tuple[float, float], lengths: Sequence[tuple[int, int]]) -> Draw:
    """Poisson arrivals, each of one of two clients by chance; each has its prompt and answer."""

    def draw(rng: Generator) -> list[Sent]:
        total = sum(rates)
        count = int(total * seconds)
        second = rng.random(count) > rates[0] / total
        times = rng.exponential(1 / total, count).cumsum()
        return [
            Sent(float(when), client(1 + int(number)), *lengths[int(number)])
            for when, number in zip(times, second, strict=True)
        ]

    return draw


def ramp(seconds: float, fixed: float, begin: float, end: float) -> Draw:
    """One client sends steadily, the other ever more often."""

    def draw(rng: Generator) -> list[Sent]:
        del rng
        sent = [
            Sent((index + 1) / fixed, client(1), LENGTH, LENGTH)
            for index in range(int(fixed * seconds))
        ]
        when = 0.0
        for _ in range(int((begin + end) / 2 * seconds)):
            when += 1 / (begin + (end - begin) * when / seconds)
            sent.append(Sent(when, client(2), LENGTH, LENGTH))
        return sent

    return draw


def real(rng: Generator) -> list[Sent]:
    """The trace of 27 clients, rebuilt."""
    return [
        Sent(when, client(number), prompt, output)
        for when, number, prompt, output in real_trace(rng)
    ]


def _ablation(tokens: int, length: int, light: float, heavy: float) -> Suite:
    """Two clients of other lengths on a larger machine."""
    kind = Steady(light, length=length), Steady(heavy, length=length)
    return Suite(
        f"ablation-{tokens // 1_000}k-{length}",
        f"two clients, {length} tokens in and out, a pool of {tokens:,}, Llama 2 13B on an A100",
        steady(600, *kind),
        f"slora-a100-llama-2-13b-{tokens // 1_000}k",
    )


_WEIGHTED = {client(number): 1_000 * number for number in range(1, 5)}

_SUITES = (
    Suite(
        "overload",
        "two clients, both overloaded, one twice as much",
        steady(360, Steady(1.5), Steady(3.0)),
    ),
    Suite(
        "overload-multi",
        "eight clients, all overloaded",
        steady(360, *[Steady(0.4)] * 3, *[Steady(0.6)] * 5),
    ),
    Suite(
        "overload-weighted",
        "weights 1 to 4, offered 2 : 2 : 3 : 4",
        steady(360, Steady(0.8), Steady(0.8), Steady(1.2), Steady(1.6)),
        weights=_WEIGHTED,
    ),
    Suite(
        "overload-weighted-equal",
        "weights 1 to 4, all offering the same",
        steady(360, *[Steady(1.2)] * 4),
        weights=_WEIGHTED,
    ),
    Suite(
        "proportional",
        "three clients, two below their share",
        steady(600, Steady(0.25), Steady(0.5), Steady(1.5)),
    ),
    Suite(
        "on-off-less",
        "a client below its share, silent every second minute",
        steady(600, Steady(0.5, on_off=True), Steady(2.0)),
    ),
    Suite(
        "on-off-overload",
        "a client above its share, silent every second minute",
        steady(600, Steady(2.0, on_off=True), Steady(3.0)),
    ),
    Suite(
        "poisson-short-long",
        "many short requests against few long ones",
        split(600, (8.0, 1.5), ((64, 64), (256, 256))),
    ),
    Suite(
        "poisson-short-long-2",
        "long prompts against long answers",
        split(600, (8.0, 1.5), ((512, 32), (32, 512))),
    ),
    Suite(
        "increase",
        "a steady client beside one who sends ever more",
        ramp(600, 0.5, 0.2, 2.0),
    ),
    Suite(
        "dist-shift",
        "three phases: on and off, both overloaded, one below its share",
        phases(
            300,
            (Steady(0.5, on_off=True), Steady(2.0)),
            (Steady(1.0), Steady(1.0)),
            (Steady(0.5), Steady(1.5)),
        ),
    ),
    _ablation(35_000, 256, 3, 6),
    _ablation(35_000, 512, 1.5, 3),
    _ablation(35_000, 768, 1, 2),
    _ablation(65_000, 256, 4, 8),
    _ablation(65_000, 512, 2, 4),
    _ablation(65_000, 768, 1.5, 3),
    Suite("real", "1,500 requests of 27 clients in ten minutes", real, caps=True),
)

SUITES: Mapping[str, Suite] = MappingProxyType({suite.name: suite for suite in _SUITES})
