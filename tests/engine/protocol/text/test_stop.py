import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol.text.stop import StopScanner

SMALL = st.text("abé", max_size=12)


def naive(stop: tuple[str, ...], text: str) -> tuple[str, bool]:
    """The whole text at once: the earliest end wins, then the longest stop string."""
    for end in range(1, len(text) + 1):
        found = [s for s in stop if text[:end].endswith(s)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


def run(stop: tuple[str, ...], pieces: list[str]) -> tuple[list[str], str, bool]:
    scanner = StopScanner(stop)
    sent = []
    stopped = False
    for piece in pieces:
        safe, stopped = scanner.push(piece)
        sent.append(safe)
    return sent, scanner.flush(), stopped


@given(st.lists(SMALL.filter(bool), max_size=4).map(tuple), st.lists(SMALL, max_size=10))
def test_equals_the_whole_text_however_it_is_cut(stop, pieces):
    sent, rest, stopped = run(stop, pieces)
    assert ("".join(sent) + rest, stopped) == naive(stop, "".join(pieces))


@given(
    st.lists(SMALL.filter(bool), min_size=1, max_size=4).map(tuple), st.lists(SMALL, max_size=10)
)
def test_holds_back_only_what_may_become_a_stop(stop, pieces):
    scanner = StopScanner(stop)
    sent = seen = ""
    for piece in pieces:
        safe, stopped = scanner.push(piece)
        sent += safe
        seen += piece
        if stopped:
            return
        held = seen[len(sent) :]
        assert seen.startswith(sent)
        assert not held or any(s.startswith(held) for s in stop)


def test_stop_text_across_tokens_never_leaks():
    assert run(("\n\nUser:",), ["Hello", "\n", "\nUs", "er", ": more"]) == (
        ["Hello", "", "", "", ""],
        "",
        True,
    )


def test_near_miss_is_released():
    sent, rest, stopped = run(("aab",), ["aaa", "c"])
    assert (sent, rest, stopped) == (["a", "aac"], "", False)


def test_held_text_comes_out_at_the_end():
    assert run(("END",), ["the EN"]) == (["the "], "EN", False)


def test_nothing_comes_after_a_stop():
    scanner = StopScanner(("x",))
    assert scanner.push("ax b") == ("a", True)
    assert scanner.push("c") == ("", True)
    assert scanner.flush() == ""


def test_long_repetitive_stop_is_linear():
    scanner = StopScanner(("a" * 20_000 + "b",))
    sent = "".join(scanner.push("a" * 100)[0] for _ in range(400))
    assert len(sent) == 20_000


def test_empty_stop_is_refused():
    with pytest.raises(ValueError, match="empty"):
        StopScanner(("",))


def test_a_stop_string_may_be_part_of_what_is_sent():
    scanner = StopScanner(("STOP", "OP"), include=True)
    assert scanner.push("a ST") == ("a ", False)
    assert scanner.push("OP b") == ("STOP", True)


def test_a_stop_string_in_text_that_is_not_armed_is_text():
    scanner = StopScanner(("abab", "c"))
    assert scanner.push("cab", armed=False) == ("c", False)
    assert scanner.push("ab", armed=False) == ("ab", False)  # complete, yet its end may begin one
    assert scanner.push("ab") == ("", True)
