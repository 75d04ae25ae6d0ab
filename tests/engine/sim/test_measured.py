from dataclasses import astuple, replace

import numpy as np
import pytest

from engine.sim.measured import Linear, MeasuredStep, fit, measured_cpu, measured_steps

TRUE = Linear(0.02, 0.003, 0.004, 2e-6, 1e-5)
SHAPES = [(1, 1, 63), (8, 1, 255), (16, 1, 1023), (1, 64, 0), (1, 512, 0), (1, 512, 1024)]


def steps(model):
    unmeasured = [MeasuredStep(*shape, seconds=1.0) for shape in SHAPES]
    return [replace(step, seconds=model.seconds(step.work)) for step in unmeasured]


def test_the_fit_recovers_a_linear_machine():
    assert astuple(fit(steps(TRUE))) == pytest.approx(astuple(TRUE))


def test_no_price_is_negative():
    backwards = Linear(0.02, 0.003, 0.004, 0.0, -1e-6)
    found = fit(steps(backwards))
    assert found.per_kv_token_s == 0
    assert min(found.per_step_s, found.per_row_s, found.per_token_s, found.per_pair_s) >= 0


def test_too_few_steps_are_refused():
    with pytest.raises(ValueError, match="fewer"):
        fit(steps(TRUE)[:3])


def test_the_fit_is_close_to_every_measured_step_of_this_machine_class():
    model = measured_cpu()
    errors = [model.seconds(step.work) / step.seconds - 1 for step in measured_steps()]
    assert max(map(abs, errors)) < 0.12
    assert np.median(np.abs(errors)) < 0.05
