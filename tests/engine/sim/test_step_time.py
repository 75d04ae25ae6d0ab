"""The roofline against figures that its sources give for the same machines."""

import pytest

from engine.core.batch import ScheduledBatch, ScheduledRow
from engine.core.request import SamplingParams
from engine.sim.presets import H100, LLAMA_3_1_8B, LLAMA_3_1_70B, PRESETS, kv_tokens_beside
from engine.sim.step_time import Roofline, StepWork, work_of

ONE_H100 = Roofline(H100, LLAMA_3_1_8B)
EIGHT_H100 = Roofline(H100.times(8), LLAMA_3_1_70B)


def row(tokens, start):
    return ScheduledRow("r", range(tokens), start, ((),), SamplingParams(1), samples=True)


def prefill(tokens):
    return work_of(ScheduledBatch(1, (row(tokens, 0),), tokens))


def decodes(rows, context):
    batch = ScheduledBatch(1, tuple(row(1, context - 1) for _ in range(rows)), rows)
    return work_of(batch)


def test_work_counts_every_pair_of_query_and_key_once():
    work = work_of(ScheduledBatch(1, (row(1, 9), row(3, 4)), 4))
    assert work == StepWork(
        num_rows=2,
        decode_tokens=1,
        prefill_tokens=3,
        decode_pairs=10,
        prefill_pairs=5 + 6 + 7,
        kv_tokens=10 + 7,
    )
    assert (work.num_tokens, work.num_pairs) == (4, 28)


def test_a_token_of_llama_3_1_8b_stores_128_kib():
    assert LLAMA_3_1_8B.kv_bytes_per_token == 131_072


def test_a_prompt_of_8000_tokens_takes_290_ms_on_an_h100():
    assert ONE_H100.seconds(prefill(8_000)) == pytest.approx(0.290, rel=0.02)


def test_a_prompt_of_32768_tokens_takes_1_53_s_for_the_70b_on_eight_h100s():
    assert EIGHT_H100.seconds(prefill(32_768)) == pytest.approx(1.53, rel=0.01)


def test_decode_reads_the_weights_once_for_the_whole_batch():
    alone, many = ONE_H100.seconds(decodes(1, 1)), ONE_H100.seconds(decodes(64, 1))
    assert alone == pytest.approx(16.06e9 / 3.35e12 + 0.3e-3, rel=1e-3)
    assert many == pytest.approx(alone, rel=0.001)


def test_decode_turns_compute_bound_at_the_knee():
    knee = H100.flops / H100.bandwidth  # 2-byte weights: 2N FLOPs per token against 2N bytes
    assert knee == pytest.approx(295, rel=0.01)
    below, above = decodes(int(0.95 * knee), 1), decodes(int(1.05 * knee), 1)
    assert ONE_H100.arithmetic_s(below) < ONE_H100.memory_s(below)
    assert ONE_H100.arithmetic_s(above) > ONE_H100.memory_s(above)


def test_a_step_without_rows_costs_its_overhead():
    assert ONE_H100.seconds(StepWork()) == 0.3e-3


def test_the_pool_beside_the_weights_holds_what_the_arithmetic_says():
    assert kv_tokens_beside(H100, LLAMA_3_1_8B) == int((72e9 - 16.06e9 - 4e9) // 131_072)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_slower_with_more_work(name):
    step_time = PRESETS[name].step_time
    shapes = [StepWork(), decodes(1, 100), decodes(8, 100), decodes(8, 1_000), prefill(8_192)]
    seconds = [step_time.seconds(work) for work in shapes]
    assert seconds[0] > 0
    assert seconds == sorted(seconds)
    assert PRESETS[name].config(max_num_seqs=8, max_num_batched_tokens=512).num_blocks > 500
