from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.core.batch import ScheduledBatch, ScheduledRow
from engine.core.engine_core import CoreConfig, EngineCore
from engine.core.request import Request, SamplingParams
from engine.model.load import load_model
from engine.runner.decoder_runner import DecoderRunner
from engine.runner.sampler import sample
from tests.support.tiny_models import tiny_llama

BLOCK = 16
GREEDY = SamplingParams(max_tokens=8, temperature=0.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny") / "model"
    tiny_llama().save_pretrained(folder)
    return load_model(folder, threads=2)


@pytest.fixture
def runner(model):
    return DecoderRunner(model, 32, BLOCK, 4, 64)


def batch(*rows):
    return ScheduledBatch(1, rows, sum(len(row.token_ids) for row in rows))


def row(name, tokens, start, table, params=GREEDY, output_index=0, *, samples=True):
    output = [0] * output_index
    return ScheduledRow(name, tokens, start, (table,), params, samples, (), output)


def test_only_rows_that_sample_get_a_token(runner):
    out = runner.execute(batch(row("a", [5], 0, [3]), row("b", [1, 2, 3], 0, [9], samples=False)))
    assert set(out.sampled) == {"a"}


def test_a_batch_without_samples_still_writes_its_keys(runner):
    tokens = list(range(40))
    whole = runner.execute_logits(batch(row("a", tokens, 0, [1, 2, 3])))
    runner.execute(batch(row("b", tokens[:20], 0, [9, 4, 30], samples=False)))
    rest = runner.execute_logits(batch(row("b", tokens[20:], 20, [9, 4, 30])))
    torch.testing.assert_close(rest, whole, atol=1e-4, rtol=1e-4)


def test_shuffled_block_tables_change_nothing(runner):
    tokens = list(range(50))
    first = runner.execute_logits(batch(row("a", tokens, 0, [0, 1, 2, 3])))
    second = runner.execute_logits(batch(row("a", tokens, 0, [31, 7, 19, 2])))
    assert np.array_equal(first, second)


def test_a_neighbour_does_not_reach_a_rows_logits(runner):
    tokens = list(range(20))
    alone = runner.execute_logits(batch(row("a", tokens, 0, [5, 6])))
    beside = runner.execute_logits(
        batch(row("b", [9] * 30, 0, [7, 8]), row("a", tokens, 0, [5, 6]))
    )
    torch.testing.assert_close(beside[1], alone[0], atol=1e-4, rtol=1e-4)


def test_tokens_come_from_the_sampler_with_the_rows_own_key(runner):
    params = SamplingParams(max_tokens=8, temperature=1.5, top_k=40, seed=11)
    work = batch(row("a", [3, 4, 5], 0, [2], params, 6), row("b", [1], 0, [4], params, 2))
    logits = runner.execute_logits(work)
    assert runner.execute(work).sampled == {
        "a": sample(logits[0], params, (), [0] * 6),
        "b": sample(logits[1], params, (), [0] * 2),
    }


def test_an_empty_batch_yields_nothing(runner):
    assert runner.execute(batch()).sampled == {}


def test_batches_beyond_the_declared_sizes_are_refused(runner):
    with pytest.raises(ValueError, match="65 tokens exceeds"):
        runner.execute(batch(row("a", [1] * 65, 0, list(range(5)))))
    with pytest.raises(ValueError, match="5 rows"):
        runner.execute(batch(*(row(str(i), [1], 0, [i]) for i in range(5))))


def test_warming_up_leaves_no_trace(runner):
    assert not runner.state.pages.keys.any()
    assert not runner.state.pages.values.any()


def test_kv_memory_is_counted_in_whole_blocks(model):
    per_block = 2 * 2 * 2 * 20 * 4 * BLOCK  # keys and values, layers, heads, head size, bytes
    assert DecoderRunner.num_blocks_for(model, 10 * per_block + per_block - 1, BLOCK) == 10
    pages = DecoderRunner(model, 3, BLOCK, 1, 16).state.pages
    assert pages.keys.nbytes + pages.values.nbytes == 3 * per_block


def test_the_digest_is_the_models(runner, model):
    assert runner.model_digest == model.digest
    assert len(runner.model_digest) == 32


def test_long_generation_crosses_pages(runner):
    """Token by token over three pages equals one pass over all of it."""
    tokens = np.random.default_rng(0).integers(0, 300, 40).tolist()
    table = [8, 3, 21]
    steps = [
        runner.execute_logits(batch(row("a", [token], position, table)))[0]
        for position, token in enumerate(tokens)
    ]
    whole = runner.execute_logits(batch(row("b", tokens, 0, [1, 2, 4])))[0]
    torch.testing.assert_close(steps[-1], whole, atol=1e-4, rtol=1e-4)


def test_a_row_whose_sampling_raises_fails_alone(runner):
    outside = SamplingParams(max_tokens=8, temperature=0.0, logit_bias=((300, 1.0),))
    rows = [row("a", [1, 2, 3], 0, [3]), row("b", [4], 0, [9], outside), row("c", [5], 0, [4])]
    got = runner.execute(batch(*rows))
    assert set(got.failed) == {"b"}
    assert isinstance(got.failed["b"], IndexError)
    assert got.sampled == runner.execute(batch(rows[0], rows[2])).sampled


def test_the_core_ends_that_request_and_no_other(model):
    """An error while sampling, at the third token only: its neighbour's answer is unchanged."""
    config = CoreConfig(num_blocks=32, max_model_len=512, model_digest=model.digest)
    healthy = SamplingParams(max_tokens=8, temperature=1.0, seed=5, repetition_penalty=1.3)

    def run(*requests):
        core = EngineCore(config, DecoderRunner(model, 32, BLOCK, 256, 2048))
        for request_id, params in requests:
            core.add(Request(request_id, (7, 8, 9), params, namespace="n" * 43))
        tokens, failed = [], []
        while core.has_work():
            report = core.step()
            tokens += [(t.request_id, t.token_id) for t in report.emitted]
            failed += [(f.request_id, f.hook, type(f.error)) for f in report.failed]
        core.check_integrity()
        return tokens, failed

    alone, _ = run(("a", healthy))
    second = run(("b", GREEDY))[0][1][1]
    faulty = replace(GREEDY, bad_words=((second, 300),))  # 300 is outside the vocabulary
    tokens, failed = run(("a", healthy), ("b", faulty))
    assert failed == [("b", "sample", IndexError)]
    assert [token for token in tokens if token[0] == "a"] == alone
    assert len([token for token in tokens if token[0] == "b"]) == 2
