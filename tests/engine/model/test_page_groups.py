from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.model.page_groups import page_groups

WINDOWS = st.lists(st.sampled_from([None, 4096, 512]), min_size=1, max_size=40)


def test_a_uniform_model_is_one_group():
    groups = page_groups([None] * 30)
    assert groups.windows == (None,)
    assert groups.layers_per_group == 30
    assert [(layer.group, layer.index) for layer in groups.layers] == [(0, i) for i in range(30)]


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        ([128] * 4, ((128,), 4)),
        ([128, None] * 3, ((128, None), 3)),
        (([128] * 5 + [None]) * 3, ((128, None, 128, 128, 128, 128), 3)),
        ([128, 128, None], ((128, 128, None), 1)),
        ([8, None, 128, 8, None, 128], ((8, None, 128), 2)),
    ],
)
def test_groups_of_equal_size_in_order_of_their_first_layer(windows, expected):
    groups = page_groups(windows)
    size = expected[1]
    assert groups.layers_per_group == size
    assert sorted(map(str, groups.windows)) == sorted(map(str, expected[0]))
    firsts = [windows.index(window) for window in dict.fromkeys(groups.windows)]
    assert firsts == sorted(firsts)


@given(WINDOWS)
def test_every_group_is_full_and_of_one_window(windows):
    groups = page_groups(windows)
    assert [layer.window for layer in groups.layers] == windows
    assert all(layer.window == groups.windows[layer.group] for layer in groups.layers)
    places = [(layer.group, layer.index) for layer in groups.layers]
    assert sorted(places) == [
        (group, index)
        for group in range(len(groups.windows))
        for index in range(groups.layers_per_group)
    ]


@given(WINDOWS)
def test_no_larger_size_would_do(windows):
    counts, size = Counter(windows).values(), page_groups(windows).layers_per_group
    fitting = [n for n in range(1, len(windows) + 1) if all(count % n == 0 for count in counts)]
    assert size == max(fitting)
