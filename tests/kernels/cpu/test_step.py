"""A program's operations are done in order and whole, however their items are dealt out."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kernels.cpu import step
from kernels.cpu.packed import pack
from kernels.cpu.step import (
    Angles,
    Attention,
    Buffer,
    Embed,
    Gate,
    Heads,
    Linear,
    Norm,
    Pages,
    Program,
    Quantize,
)
from kernels.cpu.team import Team
from kernels.layout import BatchLayout, PagedLayer
from kernels.matrix import FloatMatrix

ROOT = Path(step.__file__).parents[2]
MAX_TOKENS = 200


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def matrix(rows, columns, seed=0):
    return pack(FloatMatrix(drawn(rows, columns, seed=seed), "f32"), int8_activations=False)


def filled(width, seed=0, max_tokens=MAX_TOKENS, **options):
    buffer = Buffer(max_tokens, width, **options)
    buffer.values[:] = drawn(max_tokens, width, seed=seed)
    return buffer


@pytest.fixture(scope="module", params=[1, 2, 5])
def team(request):
    return Team(request.param)


@pytest.mark.parametrize("tokens", [1, 5, 63, 64, 65, 130, 200])
def test_matrices_that_share_an_input_write_side_by_side(team, tokens):
    rows = (200, 16, 37)  # panels of 16, the last ones not full
    weights = [drawn(count, 64, seed=count) for count in rows]
    packed = [pack(FloatMatrix(weight, "f32"), int8_activations=False) for weight in weights]
    source, out = filled(64), filled(sum(rows) + 3, seed=1)
    before = out.values.copy()
    Program(team, [Linear(source, packed, out)], MAX_TOKENS).run_rowless(tokens)
    expected = source.values[:tokens] @ np.concatenate(weights).T
    np.testing.assert_allclose(out.values[:tokens, : sum(rows)], expected, atol=1e-4)
    assert np.array_equal(out.values[tokens:], before[tokens:])
    assert np.array_equal(out.values[:, sum(rows) :], before[:, sum(rows) :])


@pytest.mark.parametrize("tokens", [1, 7, 200])
def test_operations_see_what_those_before_them_wrote(team, tokens):
    weight, factor = drawn(64, 64), drawn(64, seed=3)
    x, normed = filled(64), Buffer(MAX_TOKENS, 64)
    packed = pack(FloatMatrix(weight, "f32"), int8_activations=False)
    expected = x.values.copy()
    for _ in range(6):
        scale = np.sqrt(np.square(expected).mean(1, keepdims=True) + np.float32(1e-5))
        expected = expected + (expected / scale * factor) @ weight.T
    ops = [Norm(x, factor, 1e-5, normed), Linear(normed, (packed,), x, add=True)] * 6
    Program(team, ops, MAX_TOKENS).run_rowless(tokens)
    np.testing.assert_allclose(x.values[:tokens], expected[:tokens], rtol=2e-3, atol=1e-3)


def test_more_operations_than_chunks_of_work_and_no_tokens_at_all(team):
    x = filled(32)
    before = x.values.copy()
    program = Program(team, [Norm(x, np.ones(32, np.float32), 0.0, x)] * 300, MAX_TOKENS)
    program.run_rowless(0)
    assert np.array_equal(x.values, before)
    program.run_rowless(3)
    assert not np.array_equal(x.values[:3], before[:3])
    assert np.array_equal(x.values[3:], before[3:])


def test_a_buffer_takes_other_memory(team):
    source, out = filled(64), Buffer(0, 40)
    program = Program(team, [Linear(source, (matrix(40, 64),), out)], MAX_TOKENS)
    results = []
    for tokens in (3, 9):
        out.take(np.empty((tokens, 40), np.float32))
        program.run_rowless(tokens)
        results.append(out.values)
    assert np.array_equal(results[0], results[1][:3])
    with pytest.raises(ValueError, match="more tokens than the buffers"):
        program.run_rowless(10)
    with pytest.raises(ValueError, match="width 40"):
        out.take(np.empty((3, 41), np.float32))


def pages(group=0, kv_heads=2, head_dim=8):
    keys = np.zeros((4, kv_heads, head_dim, 4), np.float32)
    return Pages(keys, np.zeros((4, kv_heads, 4, head_dim), np.float32), PagedLayer(group, 0))


def angles(half=4):
    return Angles(np.ones(half, np.float32), 1.0, Buffer(9, half), Buffer(9, half))


def heads(qkv=64, half=4, place=None):
    place = place or pages()
    return Heads(Buffer(9, qkv), 4, None, None, 1e-5, angles(half), place)


LAYOUT = BatchLayout(
    positions=np.arange(3, dtype=np.int32),
    rows=np.zeros(3, np.int32),
    row_starts=np.array([0, 3], np.int32),
    first_positions=np.zeros(1, np.int32),
    block_tables=np.zeros((1, 1, 1), np.int32),
)
TOKENS = np.arange(3, dtype=np.int32)

MISFITS = {
    "input of another width": Linear(Buffer(9, 64), (matrix(16, 32),), Buffer(9, 16)),
    "output too narrow": Linear(Buffer(9, 64), (matrix(16, 64), matrix(1, 64)), Buffer(9, 16)),
    "nothing to quantise to": Quantize(Buffer(9, 64)),
    "half a gate": Gate(Buffer(9, 64), "silu", Buffer(9, 64)),
    "qkv too narrow": heads(qkv=63),
    "heads that do not divide": Heads(
        Buffer(9, 72), 4, None, None, 0.0, angles(), pages(kv_heads=3, head_dim=8)
    ),
    "no such group": heads(place=pages(group=1)),
    "attention of another group": Attention(Buffer(9, 64), 4, 1.0, pages(group=1), Buffer(9, 32)),
}
TOO_SMALL = {
    "norm to another width": Norm(Buffer(9, 64), np.ones(64, np.float32), 0.0, Buffer(9, 32)),
    "few tokens in": Linear(Buffer(2, 64), (matrix(16, 64),), Buffer(9, 16)),
    "few tokens out": Linear(Buffer(9, 64), (matrix(16, 64),), Buffer(2, 16)),
    "few embedded": Embed(matrix(16, 64), Buffer(2, 64), 1.0),
    "embedded to another width": Embed(matrix(16, 64), Buffer(9, 63), 1.0),
    "angles of another size": heads(half=5),
    "attended of another width": Attention(Buffer(9, 64), 4, 1.0, pages(), Buffer(9, 31)),
}


@pytest.mark.parametrize("name", MISFITS)
def test_parts_that_do_not_fit_are_refused(name):
    with pytest.raises(ValueError, match="do not fit together"):
        Program(Team(1), [MISFITS[name]], 9, num_groups=1).run(TOKENS, LAYOUT)


@pytest.mark.parametrize("name", TOO_SMALL)
def test_buffers_that_are_too_small_are_refused(name):
    with pytest.raises(ValueError, match="more tokens than the buffers"):
        Program(Team(1), [TOO_SMALL[name]], 9, num_groups=1).run(TOKENS, LAYOUT)


@pytest.mark.parametrize(
    ("op", "words"),
    [
        (Embed(matrix(16, 64), Buffer(9, 64), 1.0), "no embedding"),
        (angles(), "do not agree"),
        (heads(), "do not agree"),
        (Attention(Buffer(9, 64), 4, 1.0, pages(), Buffer(9, 32)), "do not agree"),
    ],
)
def test_what_needs_rows_is_not_done_without(op, words):
    with pytest.raises(ValueError, match=words):
        Program(Team(1), [op], 9, num_groups=1).run_rowless(3)


def test_what_fits_is_done():
    place, qkv = pages(), filled(64, max_tokens=9)
    rotation = angles()
    ops = [
        rotation,
        Heads(qkv, 4, None, None, 1e-5, rotation, place),
        Attention(qkv, 4, 1.0, place, Buffer(9, 32)),
    ]
    Program(Team(1), ops, 9, num_groups=1).run(TOKENS, LAYOUT)


def test_a_forked_child_is_refused():
    """In a process of its own: forking one with threads is what must not hang."""
    code = """
import os, numpy as np
from kernels.cpu.step import Buffer, Norm, Program
from kernels.cpu.team import Team
x = Buffer(4, 32)
program = Program(Team(2), [Norm(x, np.ones(32, np.float32), 1.0, x)], 4)
program.run_rowless(4)
child = os.fork()
if not child:
    try:
        program.run_rowless(4)
    except ValueError as error:
        os._exit(7 if "another process" in str(error) else 1)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
program.run_rowless(4)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)
