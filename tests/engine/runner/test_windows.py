"""Sliding windows and page groups, end to end: logits against transformers', blocks given back.

Windows straddle blocks and are much shorter than the sequences, so that blocks which one request's
windows have left behind are written by others while it still runs.
"""

import numpy as np
import pytest
import torch

from engine.core.batch import BlockCopy, ScheduledBatch, ScheduledRow
from engine.core.config import CoreConfig
from engine.core.engine_core import EngineCore
from engine.core.preemption import PreemptEvery
from engine.core.request import NO_BLOCK, Request, SamplingParams
from engine.core.windows import first_needed_block
from engine.model.load import load_model
from engine.runner.decoder_runner import DecoderRunner
from tests.support.equivalence import LOGIT_TOLERANCE, Comparison, reference_case
from tests.support.tiny_models import tiny_llama, tiny_ministral, tiny_mistral

BLOCK = 5
WINDOW = 12
HYBRID = [WINDOW, WINDOW, None, WINDOW]
GREEDY = SamplingParams(max_tokens=8, temperature=0.0)

REFERENCES = {
    "windowed": lambda: tiny_mistral(WINDOW),
    "hybrid": lambda: tiny_ministral(HYBRID),
}


def core_config(runner, num_blocks, budget, seqs, *, cache=True):
    return CoreConfig(
        num_blocks=num_blocks,
        max_model_len=512,
        model_digest=runner.model_digest,
        block_size=BLOCK,
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        prefix_cache=cache,
        windows=runner.windows,
    )


def engine(model, *, num_blocks=600, budget=512, seqs=16, cache=True, preemption=None):
    runner = DecoderRunner(model, num_blocks, BLOCK, seqs, budget)
    return Comparison(
        runner, core_config(runner, num_blocks, budget, seqs, cache=cache), preemption
    )


def assert_equal(difference):
    assert difference.largest_logit_difference <= LOGIT_TOLERANCE, difference
    assert difference.mismatches_beyond_gap == 0, difference


def load(reference, folder):
    reference.save_pretrained(folder)
    return load_model(folder, threads=2)


@pytest.fixture(scope="module", params=REFERENCES)
def reference(request):
    return REFERENCES[request.param]()


@pytest.fixture(scope="module")
def model(reference, tmp_path_factory):
    return load(reference, tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def cases(reference):
    rng = np.random.default_rng(4)
    lengths = [1, 4, 11, 12, 13, 29, 60, 61, 90]
    prompts = [rng.integers(0, 300, length).tolist() for length in lengths]
    prompts[7][:47] = prompts[6][:47]
    return [reference_case(reference, prompt, 16) for prompt in prompts]


def test_the_runner_names_the_windows_of_its_groups(reference, model):
    windows = DecoderRunner(model, 1, BLOCK, 1, 16).windows
    expected = {"mistral": (WINDOW,), "ministral": (WINDOW, WINDOW, None, WINDOW)}
    assert windows == expected[reference.config.model_type]


@pytest.mark.parametrize("budget", [512, 16, 7], ids=["whole", "chunks of 16", "chunks of 7"])
@pytest.mark.parametrize("cache", [True, False], ids=["cache", "no cache"])
def test_all_at_once(model, cases, budget, cache):
    comparison = engine(model, budget=budget, seqs=min(16, budget), cache=cache)
    assert_equal(comparison.run(cases))
    assert_equal(comparison.run(cases))  # warm, when there is a cache
    hits = comparison.core.stats().prefix_hit_tokens
    assert hits > 200 if cache else hits == 0
    comparison.core.check_integrity()


@pytest.mark.parametrize("cache", [True, False], ids=["cache", "no cache"])
def test_with_a_preemption_forced_every_three_steps(model, cases, cache):
    comparison = engine(model, budget=32, cache=cache, preemption=PreemptEvery(3))
    assert_equal(comparison.run(cases))
    assert comparison.core.stats().preemptions > len(cases)
    comparison.core.check_integrity()


def test_with_a_pool_too_small_for_all(model, cases):
    groups = len(model.page_groups.windows)
    comparison = engine(model, num_blocks=22 * groups, budget=16)
    assert_equal(comparison.run(cases))
    assert comparison.core.stats().evicted_blocks > 0
    comparison.core.check_integrity()


def test_the_comparison_can_fail(reference, cases, tmp_path):
    """The control: the same weights without windows are far beyond the tolerance."""
    plain = tiny_llama(num_hidden_layers=reference.config.num_hidden_layers)
    plain.load_state_dict(reference.state_dict())
    difference = engine(load(plain, tmp_path / "model")).run([cases[-1]])
    assert difference.largest_logit_difference > 0.1


class TableWatcher:
    """Passes batches on; checks that tables hold just what the windows of their groups need."""

    def __init__(self, runner, num_prompt):
        self._runner = runner
        self._num_prompt = num_prompt

    def execute(self, batch):
        for row in batch.rows:
            num_known = max(self._num_prompt, row.start + len(row.token_ids))
            for table, window in zip(row.block_tables, self._runner.windows, strict=True):
                first = first_needed_block(row.start, window, BLOCK)
                assert set(table[:first]) <= {NO_BLOCK}
                assert NO_BLOCK not in table[first:]
                assert len(table) == -(-num_known // BLOCK)
        return self._runner.execute(batch)


def test_blocks_outside_the_windows_go_back_to_the_pool(model):
    num_prompt, num_output = 90, 60
    runner = DecoderRunner(model, 600, BLOCK, 1, 16)
    config = core_config(runner, 600, budget=16, seqs=1, cache=False)
    core = EngineCore(config, TableWatcher(runner, num_prompt))
    params = SamplingParams(max_tokens=num_output, temperature=0.0)
    core.add(Request("a", tuple(range(num_prompt)), params, namespace="n" * 43))
    held = []
    while core.has_work():
        core.step()
        core.check_integrity()
        stats = core.stats()
        assert stats.free_blocks + stats.held_blocks == stats.total_blocks
        held.append(stats.held_blocks)
    assert held[-1] == 0
    num_full = runner.windows.count(None)
    num_sliding = len(runner.windows) - num_full
    everything = (num_prompt + num_output) // BLOCK
    assert held[-2] <= num_full * everything + num_sliding * (WINDOW // BLOCK + 2)


def outputs(core):
    tokens = {}
    while core.has_work():
        for token in core.step().emitted:
            tokens.setdefault(token.request_id, []).append(token.token_id)
        core.check_integrity()
    return tokens


def test_samples_that_share_a_prompt_draw_what_they_would_alone(model):
    """The prompt ends within a block: each sample goes on in a copy of it, in every group."""
    samples = [
        Request(str(seed), tuple(range(88)), SamplingParams(max_tokens=20, seed=seed), "n" * 43)
        for seed in range(3)
    ]
    runner = DecoderRunner(model, 600, BLOCK, 4, 32)
    together = EngineCore(core_config(runner, 600, 32, 4), runner)
    together.add(*samples)
    drawn = outputs(together)
    assert together.stats().copied_blocks == 2 * len(runner.windows)
    for sample in samples:
        alone = EngineCore(core_config(runner, 600, 32, 4, cache=False), runner)
        alone.add(Request(sample.request_id, sample.prompt_token_ids, sample.sampling, "m" * 43))
        assert outputs(alone) == {sample.request_id: drawn[sample.request_id]}


def test_memory_is_counted_per_group(model):
    layers = model.page_groups.layers_per_group
    per_block = 2 * layers * 2 * 20 * 4 * BLOCK  # keys and values, heads, head size, bytes
    assert DecoderRunner.num_blocks_for(model, 10 * per_block + per_block - 1, BLOCK) == 10
    pages = DecoderRunner(model, 3, BLOCK, 1, 16).state.pages
    assert pages.keys.nbytes + pages.values.nbytes == 3 * per_block


def row(name, tokens, start, *tables):
    return ScheduledRow(name, tokens, start, tables, GREEDY, samples=True)


def batch(*rows, copies=()):
    return ScheduledBatch(1, rows, sum(len(row.token_ids) for row in rows), copies)


def test_copies_are_made_before_anything_is_computed(model):
    """A sample forked within a block goes on in a copy of it, its sibling in the block itself."""
    groups = len(model.page_groups.windows)
    runner = DecoderRunner(model, 8 * groups, BLOCK, 4, 64)
    tokens = list(range(8))
    shared, tail, copied = (range(first, 8 * groups, 8) for first in (0, 1, 2))
    ours = [list(pair) for pair in zip(shared, tail, strict=True)]
    theirs = [list(pair) for pair in zip(shared, copied, strict=True)]
    runner.execute(batch(row("a", tokens, 0, *ours)))
    copies = tuple(BlockCopy(a, b) for a, b in zip(tail, copied, strict=True))
    forked = batch(row("a", [50], 8, *ours), row("b", [60], 8, *theirs), copies=copies)
    logits = runner.execute_logits(forked)
    # Doing it again changes nothing: sources are as they were up to the position copied for.
    torch.testing.assert_close(runner.execute_logits(forked), logits, rtol=0, atol=0)
    fresh = DecoderRunner(model, 8 * groups, BLOCK, 4, 64)
    for ours_logits, last in zip(logits, (50, 60), strict=True):
        whole = fresh.execute_logits(batch(row("c", [*tokens, last], 0, *ours)))[0]
        torch.testing.assert_close(ours_logits, whole, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_pages_outside_the_window_are_never_read(tmp_path):
    reference = tiny_mistral(WINDOW)
    model = load(reference, tmp_path / "model")
    runner = DecoderRunner(model, 20, BLOCK, 4, 64)
    tokens = np.random.default_rng(5).integers(0, 300, 60).tolist()
    table = list(range(1, 13))
    runner.execute(batch(row("a", tokens[:50], 0, table)))
    first = first_needed_block(50, WINDOW, BLOCK)
    for pages in (runner.state.pages.keys, runner.state.pages.values):
        pages[:, : table[first]] = float("nan")
        pages[:, 13:] = float("nan")
    rest = [NO_BLOCK] * first + table[first:]
    logits = runner.execute_logits(batch(row("a", tokens[50:], 50, rest)))[0]
    whole = reference(torch.tensor([tokens])).logits[0, -1]
    torch.testing.assert_close(torch.from_numpy(logits), whole, atol=1e-3, rtol=0)
