"""What 8-bit activations cost in agreement with exact arithmetic, the same tokens given to both."""

import json

import pytest

from benchmarks.agreement import measure


@pytest.mark.prove
def test_eight_bit_activations_agree_with_exact_arithmetic(smollm2):
    answers, text = measure(smollm2)
    figures = {"own_answers": answers.document(), "real_text": text.document()}
    print(json.dumps({"int8_agreement": figures}))
    assert answers.judged >= 5 * 64
    assert answers.share >= 0.98
    for found in (answers, text):
        assert found.rms_error < 0.05 * found.logit_deviation
