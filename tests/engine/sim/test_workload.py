import numpy as np
import pytest
from numpy.random import default_rng

from engine.sim.job import Job, Span, Streams
from engine.sim.workload import (
    Chat,
    ClosedLoop,
    Conversation,
    Conversations,
    Exponential,
    Fixed,
    JobKind,
    Lognormal,
    OpenLoop,
    Uniform,
    arrivals,
    bursts,
    poisson,
)

KINDS = JobKind(Exponential(50), Lognormal(median=30, sigma=0.5))


def test_one_seed_is_one_workload():
    def draw(seed):
        rng = default_rng(seed)
        return arrivals(poisson(rng, 2.0, 20), KINDS.jobs(rng, Streams(), 20))

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_poisson_arrivals_have_their_rate_and_independent_gaps():
    gaps = np.diff(poisson(default_rng(0), 5.0, 20_000))
    assert gaps.mean() == pytest.approx(0.2, rel=0.03)
    assert gaps.std() == pytest.approx(0.2, rel=0.03)


def test_bursts_keep_the_rate_and_come_together():
    when = bursts(default_rng(0), 5.0, 20_000, burst=8)
    assert len(when) == 20_000
    assert when[:8] == [when[0]] * 8
    assert len(when) / when[-1] == pytest.approx(5.0, rel=0.05)


@pytest.mark.parametrize(
    ("lengths", "mean"),
    [
        (Fixed(7), 7),
        (Uniform(80, 120), 100),
        (Exponential(200), 200),
        (Lognormal(256, 0.9), 256 * np.exp(0.405)),
    ],
)
def test_lengths_have_their_mean(lengths, mean):
    drawn = lengths.draw(default_rng(0), 40_000)
    assert min(drawn) >= 1
    assert np.mean(drawn) == pytest.approx(mean, rel=0.03)


def test_a_clipped_lognormal_stays_within():
    drawn = Lognormal(256, 0.9, least=8, most=512).draw(default_rng(0), 2_000)
    assert min(drawn) >= 8
    assert max(drawn) == 512


def test_streams_are_distinct_runs_of_valid_ids():
    streams = Streams()
    starts = {streams.new() for _ in range(10_000)}
    assert len(starts) == 10_000
    assert max(starts) < 1 << 31
    assert list(Span(5, 3).token_ids()) == [5, 6, 7]


def test_jobs_of_a_kind_share_its_prefix_and_nothing_else():
    streams = Streams()
    prefix = Span(streams.new(), 40)
    one, other = JobKind(Fixed(8), Fixed(2), (prefix,)).jobs(default_rng(0), streams, 2)
    assert one.num_prompt_tokens == 48
    assert one.request().prompt_token_ids[:40] == other.request().prompt_token_ids[:40]
    assert not set(one.request().prompt_token_ids[40:]) & set(other.request().prompt_token_ids)


def test_a_turn_resends_everything_said_before():
    chat = Chat("chat", Streams())
    first, second = chat.turn(10, 5), chat.turn(3, 1)
    answer = tuple(first.answer.token_ids())
    assert second.request().prompt_token_ids[:15] == first.request().prompt_token_ids + answer
    assert second.num_prompt_tokens == 18


def test_a_closed_loop_sends_one_for_each_that_ended():
    jobs = KINDS.jobs(default_rng(0), Streams(), 3)
    loop = ClosedLoop(jobs, in_flight=2)
    assert [arrival.job for arrival in loop.first()] == jobs[:2]
    assert [(a.when, a.job) for a in loop.after(jobs[0], 4.0)] == [(4.0, jobs[2])]
    assert list(loop.after(jobs[1], 5.0)) == []


def test_a_conversation_goes_on_after_thinking():
    chat = Chat("chat", Streams())
    first, second = chat.turn(4, 2), chat.turn(4, 2)
    chats = Conversations([Conversation(1.0, tuple(chat.turns), think_s=3.0)])
    assert [(a.when, a.job) for a in chats.first()] == [(1.0, first)]
    assert [(a.when, a.job) for a in chats.after(first, 5.0)] == [(8.0, second)]
    assert list(chats.after(second, 9.0)) == []


def test_an_open_loop_ignores_ends():
    jobs = KINDS.jobs(default_rng(0), Streams(), 2)
    assert list(OpenLoop(arrivals([0.0, 1.0], jobs)).after(jobs[0], 3.0)) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt": (Span(1, 0),)},
        {"answer": Span(2, 0)},
        {"max_tokens": 1},
    ],
)
def test_a_job_that_cannot_be_is_refused(wrong):
    fields = {"job_id": "job", "prompt": (Span(1, 4),), "answer": Span(2, 2)} | wrong
    with pytest.raises(ValueError, match="job"):
        Job(**fields)
