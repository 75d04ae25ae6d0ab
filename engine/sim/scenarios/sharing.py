"""What sequences of one prompt save by sharing blocks: parallel samples and beam search.

Lengths are lognormal with the mean prompt and answer of the two traces that Kwon et al. (2023,
figure 11) drew from; theirs are not published with the paper, so only the means agree.
"""

from dataclasses import dataclass
from math import exp

from numpy.random import Generator

from engine.sim.presets import BLOCK_SIZE
from engine.sim.result import Result, Table
from engine.sim.scenario import Scenario
from engine.sim.sharing import Blocks, RandomModel, beam_search, parallel_samples
from engine.sim.workload import Lognormal

_SIGMA = 0.8
WIDTHS = (2, 4, 6)
_LATTICE = (21, 13)


@dataclass(frozen=True, slots=True)
class Traffic:
    """A trace's mean lengths, and the savings measured on it: at the smallest and largest width."""

    name: str
    mean_prompt: float
    mean_answer: float
    published_parallel: tuple[float, float]
    published_beam: tuple[float, float]

    def lengths(self) -> list[tuple[int, int]]:
        """Pairs of prompt and answer lengths, evenly over both distributions: a Fibonacci lattice.

        A handful of random pairs would say more about the pairs than about sharing.
        """
        count, stride = _LATTICE
        prompts, answers = (
            Lognormal(mean * exp(-(_SIGMA**2) / 2), _SIGMA).strata(count)
            for mean in (self.mean_prompt, self.mean_answer)
        )
        return [(prompts[index], answers[index * stride % count]) for index in range(count)]


ALPACA = Traffic("Alpaca", 19.31, 58.45, (0.061, 0.098), (0.376, 0.552))
SHAREGPT = Traffic("ShareGPT", 161.31, 337.99, (0.162, 0.305), (0.443, 0.663))


@dataclass(frozen=True, slots=True)
class Saving:
    """The share of blocks saved with `width` sequences per prompt."""

    width: int
    parallel: float
    beam: float


def savings(rng: Generator, traffic: Traffic) -> list[Saving]:
    """What sharing saves on the traffic, by the number of samples or beams."""
    lengths = traffic.lengths()
    found = []
    for width in WIDTHS:
        parallel, beam = Blocks(BLOCK_SIZE), Blocks(BLOCK_SIZE)
        for prompt, answer in lengths:
            parallel_samples(parallel, prompt, answer, width)
            beam_search(beam, rng, prompt, answer, width, model=RandomModel())
        found.append(Saving(width, parallel.saved, beam.saved))
    return found


def _sharing(rng: Generator) -> Result:
    columns = (
        "width",
        "parallel samples (%)",
        "published parallel (%)",
        "beam search (%)",
        "published beam (%)",
    )
    return Result(
        tuple(
            Table(
                f"blocks saved, lengths like {traffic.name}",
                columns,
                tuple(
                    (
                        saving.width,
                        100 * saving.parallel,
                        _range(traffic.published_parallel),
                        100 * saving.beam,
                        _range(traffic.published_beam),
                    )
                    for saving in savings(rng, traffic)
                ),
            )
            for traffic in (ALPACA, SHAREGPT)
        )
    )


def _range(shares: tuple[float, float]) -> str:
    return f"{100 * shares[0]:.1f} to {100 * shares[1]:.1f}"


SCENARIOS = (
    Scenario("block-sharing", "what parallel samples and beams save by sharing blocks", _sharing),
)
