"""Which patterns of a tokenizer are let through: those of published models, none that run away."""

import pytest
from tokenizers import Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import Split

from engine.protocol.errors import InvalidRequest
from engine.protocol.text.patterns import check_pattern
from engine.protocol.text.pretokenizers import PRE_TOKENIZERS
from engine.protocol.text.tokenizer import TextTokenizer

UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
OPTIONAL = r"[^\r\n\p{L}\p{N}]?"
SAFE = [
    *(expression for rule in PRE_TOKENIZERS.values() for expression in rule.expressions),
    rf"{OPTIONAL}{UPPER}*{LOWER}+{ENDINGS}|{OPTIONAL}{UPPER}+{LOWER}*{ENDINGS}|\p{{N}}{{1,3}}",
    rf"{OPTIONAL}{UPPER}*{LOWER}+|{OPTIONAL}{UPPER}+{LOWER}*| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
    "[\u4e00-\u9fa5\u3040-\u309f]+",
    r"\s|[[:punct:]]|\u0041|\x{41}",
    "(?>a|b)c{3}a{,3}{",
    " {2,}",
    r"\p{N}{1,3}+",
    "a{ 2}",
    "",
]
UNSAFE = [
    *("(a+)+b", "(a|b)*", "((a|a))*c", "(?:a?a?)*c", "((a+)?)*", "(?:(?=a+))*", "(a{1,3}){9}"),
    *("((a{1,9}){9}){9}", "(a|b){2,}", "a*a*a*b", "a*(a*a*)b", "(a*|b)(c*)(d*)", "x+(y|z+)w+"),
    *(r"a*a*\d", r"a*\d", "a+b", "a{2,}b", "a+(?!b)", "a+(?=b)", "a?" * 30 + "b", "(a|a)" * 20),
    *("a{0,99}a{0,99}b", r"\s*[\r\n]+", r"\s+(?!\w)|\s+", rf"{UPPER}*{LOWER}+", "a++b", "a**"),
    *(r"(?<=a)b", r"(?<!a)b", r"(a)\1", r"\k<x>", r"(?<x>a\g<x>?b)", r"(?(1)a)", "(?#x)", "(?i)a"),
    # The library repeats a count before `+` without end, reads counts of many digits, and takes
    # braces without a digit for what they are.
    *("a{1}+b", "(?:a{1}+)?", "(?:ab){2}+", "a{1}?b", "a{9999}", "a{0,9999}b", "a+b{}", "a+b{,}"),
    *(
        "[a",
        "[a&&[b]]",
        "[[a]",
        "a)",
        "(a",
        "\\",
        r"\Q",
        r"\G",
        "(?",
        "(" * 9 + ")" * 9,
        "x" * 5000,
    ),
]
# Runs of what repetitions in the safe ones go through, and what they stop at.
RUNS = ["a", "A", "\u01c5", "\u4e00", " ", "\n", "\t", "7", "!", "'", "/", "\u0301", "\x00"]


@pytest.mark.parametrize("pattern", SAFE)
def test_patterns_of_published_models_are_let_through(pattern):
    check_pattern(pattern)
    Regex(pattern)


@pytest.mark.parametrize("pattern", UNSAFE)
def test_patterns_that_could_run_away_are_refused(pattern):
    with pytest.raises(ValueError, match="pattern"):
        check_pattern(pattern)


@pytest.mark.parametrize("pattern", SAFE)
def test_what_is_let_through_does_not_run_away_with_long_runs(pattern):
    """Or the test's time runs out: cubic time would be 10**11 steps."""
    text = "".join(run * 5_000 for run in RUNS)
    pieces = Split(Regex(pattern), "isolated").pre_tokenize_str(text)
    assert "".join(piece for piece, _ in pieces) == text


def test_a_pattern_that_gives_up_on_a_text_refuses_the_request():
    """The library stops a search that takes too long, by a panic."""
    tokenizer = Tokenizer(BPE(vocab={"a": 0}, merges=[]))
    tokenizer.pre_tokenizer = Split(Regex("(a+)+b"), "isolated")
    text = TextTokenizer(tokenizer, tokenizer, (), (b"a",))
    assert text.encode("aaa") == [0, 0, 0]
    for length in (100, 10_000):
        with pytest.raises(InvalidRequest, match="cannot encode this text"):
            text.encode("a" * length)
