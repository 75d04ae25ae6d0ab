"""The native decoder computes what the decoder in torch computes, and no batch changes a row."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.model.native import NativeDecoder
from engine.model.torch_decoder import TorchDecoder
from kernels.cpu.library import chosen_variant
from kernels.reference import ReferenceKernels
from tests.support.drawn_weights import FORMATS, DrawnWeights, Sequences, config

PAGE = 8
LENGTHS = (50, 1, 17, 33, 24)
# Prompts in chunks beside decoding rows, rows that pause, and all of them decoding.
BATCHES = (
    {0: 30, 1: 1, 2: 9},
    {0: 12, 2: 1, 3: 20},
    {0: 1, 2: 1, 3: 1, 4: 17},
    {0: 1, 2: 1, 3: 1, 4: 1},
    {4: 1},
)
MAX_TOKENS = 64
TOLERANCE = 1e-4

avx2 = pytest.mark.skipif(chosen_variant() != "avx2", reason="8-bit activations need AVX2")


def run(decoder, batches=BATCHES, seed=0):
    """The logits of every token of every batch: {(sequence, position): [vocabulary]}."""
    sequences = Sequences(
        decoder.config, PAGE, LENGTHS, len(decoder.page_groups.windows), seed=seed
    )
    state = decoder.open(sequences.num_pages, PAGE, MAX_TOKENS)
    found = {}
    for counts in batches:
        token_ids, layout = sequences.batch(counts)
        state.forward(token_ids, layout)
        logits = state.logits(np.arange(len(token_ids)))
        names = list(counts)
        for token, (row, position) in enumerate(zip(layout.rows, layout.positions, strict=True)):
            found[names[row], int(position)] = logits[token].copy()
    return found


def furthest(found, expected):
    assert found.keys() == expected.keys()
    return max(float(np.abs(found[at] - expected[at]).max()) for at in expected)


FEATURES = {
    "plain": config(),
    "windows in two groups": config((12, 12, None, None)),
    "windows in three groups": config((5, 12, None)),
    "qkv bias": config(qkv_bias=True),
    "all biases": config(qkv_bias=True, o_bias=True),
    "norms of heads": config(qk_norm=True),
    "gemma": config(
        (7, None), qk_norm=True, post_norms=True, embedding_scale=9.5, activation="gelu_tanh"
    ),
    "one head to each": config(num_heads=2, num_kv_heads=2),
    "nine heads to one": config(num_heads=9, num_kv_heads=1, head_dim=32),
}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("feature", FEATURES)
def test_it_computes_what_torch_computes(feature, tied):
    weights = DrawnWeights(FEATURES[feature], tied=tied)
    expected = run(TorchDecoder(weights, ReferenceKernels()))
    assert furthest(run(NativeDecoder(weights, 2)), expected) < TOLERANCE


@pytest.mark.parametrize("kind", FORMATS)
def test_it_computes_with_every_format(kind):
    weights = DrawnWeights(config((None,)), (kind,))
    expected = run(TorchDecoder(weights, ReferenceKernels()))
    assert furthest(run(NativeDecoder(weights, 2)), expected) < TOLERANCE


@pytest.mark.parametrize(
    "change",
    [
        {"norm_eps": 0.1},
        {"attention_scale": 0.3},
        {"layer_ropes": (0, 0, 0)},
        {"layer_windows": ()},
    ],
)
def test_the_comparison_would_see_a_difference(change):
    layer_windows = (None,) * 3 if "layer_windows" in change else config().layer_windows
    other = dataclasses.replace(config(), **{**change, "layer_windows": layer_windows})
    expected = run(TorchDecoder(DrawnWeights(config(layer_windows)), ReferenceKernels()))
    if "layer_windows" in change:
        other = config((3, 3, 3))
    assert furthest(run(NativeDecoder(DrawnWeights(other), 2)), expected) > 100 * TOLERANCE


modes = pytest.mark.parametrize("mode", ["none", pytest.param("activations-int8", marks=avx2)])


@modes
def test_neither_batch_nor_threads_change_a_bit_of_a_row(mode):
    weights = DrawnWeights(config())
    together = run(NativeDecoder(weights, 3, mode))
    one_by_one = [{row: 1} for row, length in enumerate(LENGTHS) for _ in range(length)]
    alone = run(NativeDecoder(weights, 1, mode), one_by_one)
    for at, logits in together.items():
        assert np.array_equal(logits, alone[at]), at


schedules = st.lists(
    st.dictionaries(st.integers(0, len(LENGTHS) - 1), st.integers(1, 12), min_size=1), max_size=12
)


@settings(max_examples=15, deadline=None)
@given(schedules)
def test_no_schedule_changes_a_bit_of_a_row(schedule):
    decoder = NativeDecoder(DrawnWeights(config((6, None), qk_norm=True)), 2)
    left = dict(enumerate(LENGTHS))
    batches = []
    for wanted in schedule:
        counts = {row: min(count, left[row]) for row, count in wanted.items() if left[row]}
        left = {row: length - counts.get(row, 0) for row, length in left.items()}
        batches += [counts] if counts else []
    batches += [{row: length} for row, length in left.items() if length]
    whole = run(decoder, [{row: length} for row, length in enumerate(LENGTHS)])
    for at, logits in run(decoder, batches).items():
        assert np.array_equal(logits, whole[at]), at


@avx2
def test_8_bit_activations_are_near_and_not_the_same():
    formats = tuple(kind for kind in FORMATS if kind.startswith("w"))
    weights = DrawnWeights(config(), formats)
    exact = run(NativeDecoder(weights, 2))
    near = run(NativeDecoder(weights, 2, "activations-int8"))
    scale = float(np.std(np.stack(list(exact.values()))))
    error = np.sqrt(np.mean([np.square(near[at] - exact[at]).mean() for at in exact]))
    assert 1e-4 < error / scale < 0.05


@avx2
def test_the_digest_tells_the_modes_apart():
    weights = DrawnWeights(config())
    exact = NativeDecoder(weights, 1)
    assert exact.digest == weights.digest()
    assert NativeDecoder(weights, 1, "activations-int8").digest != exact.digest


@pytest.mark.skipif(chosen_variant() == "plain", reason="it is what runs here anyway")
def test_without_avx2_it_computes_the_same_and_refuses_8_bits():
    """Which library runs is decided once a process, so this takes another one."""
    environment = {**os.environ, "EVENHAND_CPU_KERNELS": "plain"}
    root = Path(__file__).parents[3]
    code = (
        "import pytest, sys; from kernels.cpu.library import chosen_variant;"
        "assert chosen_variant() == 'plain';"
        "sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', sys.argv[1], '-k',"
        "'computes_with_every_format or (gemma and True) or refuse_8_bits or neither_batch']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, __file__],
        check=False,
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(chosen_variant() == "avx2", reason="AVX2 is there")
def test_other_processors_refuse_8_bits():
    with pytest.raises(ValueError, match="needs the kernels for AVX2"):
        NativeDecoder(DrawnWeights(config()), 1, "activations-int8")


@pytest.fixture(scope="module")
def decoder():
    return NativeDecoder(DrawnWeights(config((None, 12))), 2)


@pytest.fixture
def sequences(decoder):
    return Sequences(decoder.config, PAGE, (20, 20), 2)


def test_pages_are_copied_in_one_piece(decoder, sequences):
    state = decoder.open(sequences.num_pages, PAGE, MAX_TOKENS)
    state.forward(*sequences.batch({0: 20, 1: 20}))
    keys, values = state.pages.keys.copy(), state.pages.values.copy()
    state.copy_pages([1, 2], [2, 3])  # page 2 is read before it is written
    for before, after in ((keys, state.pages.keys), (values, state.pages.values)):
        assert np.array_equal(after[:, [2, 3]], before[:, [1, 2]])
        assert np.array_equal(after[:, 4:], before[:, 4:])
    state.clear_page(5)
    assert not state.pages.keys[:, 5].any()
    assert not state.pages.values[:, 5].any()


@pytest.mark.parametrize("pages", [([0], [99]), ([-1], [0]), ([99], [0])])
def test_pages_that_do_not_exist_are_not_copied(decoder, sequences, pages):
    state = decoder.open(sequences.num_pages, PAGE, MAX_TOKENS)
    with pytest.raises(ValueError, match="one is not among"):
        state.copy_pages(*pages)


def test_what_cannot_be_computed_is_refused_and_writes_nothing(decoder, sequences):
    state = decoder.open(sequences.num_pages, PAGE, 8)
    token_ids, layout = sequences.batch({0: 8})
    wrong_token = token_ids.copy()
    wrong_token[3] = decoder.config.vocab_size
    no_page = np.full_like(layout.block_tables, sequences.num_pages)
    too_many, long_layout = sequences.batch({1: 9})
    for bad_ids, bad_layout, words in (
        (wrong_token, layout, "no embedding"),
        (-token_ids - 1, layout, "no embedding"),
        (token_ids, dataclasses.replace(layout, block_tables=no_page), "page does not exist"),
        (token_ids, dataclasses.replace(layout, block_tables=-no_page), "page does not exist"),
        (token_ids, dataclasses.replace(layout, block_tables=no_page[:1]), "2 block tables"),
        (token_ids, dataclasses.replace(layout, positions=layout.positions + 1), "do not agree"),
        (token_ids, dataclasses.replace(layout, rows=layout.rows + 1), "do not agree"),
        (token_ids[:5], layout, "shape"),
        (too_many, long_layout, "more tokens than the buffers"),
    ):
        with pytest.raises(ValueError, match=words):
            state.forward(bad_ids, bad_layout)
    assert not state.pages.keys.any()
    assert not state.pages.values.any()
    state.forward(token_ids, layout)
    assert state.pages.keys.any()


def test_logits_are_of_tokens_of_the_latest_batch(decoder, sequences):
    state = decoder.open(sequences.num_pages, PAGE, MAX_TOKENS)
    state.forward(*sequences.batch({0: 5}))
    every = state.logits(np.arange(5))
    some = state.logits(np.array([4, 1]))
    assert np.array_equal(some, every[[4, 1]])
    assert state.logits(np.array([], np.int64)).shape == (0, decoder.config.vocab_size)
    for tokens in ([5], [-1]):
        with pytest.raises(ValueError, match="5 tokens"):
            state.logits(np.array(tokens))
