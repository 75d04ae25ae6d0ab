"""Our evaluation of templates against Jinja's own, which is the reference for what they mean."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.protocol.errors import InvalidRequest
from engine.protocol.text.chat_template import ChatTemplate
from tests.engine.protocol.text import jinja_sandbox

FOLDER = Path(__file__).parent / "templates"
TEMPLATES = sorted(FOLDER.glob("*.jinja"))
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
THOUGHT = "<think>\nhm\n</think>\n\nFine."
CONVERSATIONS = {
    "one": [("user", "Hello\n there ")],
    "system": [("system", " Be brief. "), ("user", "Hi")],
    "long": [
        ("system", "Be brief."),
        ("user", "Hi"),
        ("assistant", THOUGHT),
        ("user", "  And?\nMore\n\nlines "),
        ("assistant", THOUGHT),
    ],
    "tools": [("user", "go"), ("tool", "1"), ("tool", "2"), ("assistant", "done")],
    "odd": [("user", "a"), ("system", "é<|im_end|>🙂"), ("user", "")],
    "disorder": [("assistant", "I was first")],
    "many": [("user" if i % 2 == 0 else "assistant", f"turn {i}") for i in range(60)],
}


def as_messages(turns):
    return [{"role": role, "content": content} for role, content in turns]


def by_jinja(source, messages):
    try:
        return jinja_sandbox.render(source, messages, **SPECIAL)
    except Exception:  # noqa: BLE001 - whatever a template does wrong
        return None


def by_us(source, messages):
    try:
        return ChatTemplate(source, SPECIAL).render(messages)
    except InvalidRequest:
        return None


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_templates_of_every_family_give_what_jinja_gives(path, conversation):
    source, messages = path.read_text(), as_messages(CONVERSATIONS[conversation])
    assert by_us(source, messages) == by_jinja(source, messages)


def test_each_template_renders_some_of_the_conversations():
    for path in TEMPLATES:
        rendered = [by_us(path.read_text(), as_messages(turns)) for turns in CONVERSATIONS.values()]
        assert sum(text is not None for text in rendered) >= 3, path


MESSAGES = [
    {"role": "system", "content": "Be brief; be kind. ", "name": "s"},
    {"role": "user", "content": "  Hello,\nworld\n"},
    {"role": "assistant", "content": "<think>a</think>b"},
]
SNIPPETS = (FOLDER / "constructs.txt").read_text().strip().split("\n")


@pytest.mark.parametrize("source", SNIPPETS)
def test_every_construct_means_what_jinja_says(source):
    assert by_us(source, MESSAGES) == by_jinja(source, MESSAGES)


ATOMS = ["1", "-2", "2.5", "true", "none", "''", "'ab'", "'a b,c'", "[]", "[1, 2]", "('x',)"]
ATOMS += ["{'k': 'v'}", "missing", "messages", "messages[0]", "messages[0].content", "loop"]
PATTERNS = ["({a}) {op} ({b})", "({a}){post}", "({a}) if ({b}) else ({c})", "[{a}, {b}]"]
OPERATORS = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", ">=", "in", "not in"]
OPERATORS += ["and", "or"]
POSTFIXES = [".strip()", ".split(',')", ".role", "['k']", "[0]", "[1:]", "[::-1]", " | length"]
POSTFIXES += [" | upper", " | trim", " | tojson", " | list", " | first", " | last", " | string"]
POSTFIXES += [" | default('d')", " | join('-')", " | sort", " | int", " is defined", " is string"]
POSTFIXES += [" is none", " is mapping", " is iterable", " | reverse | list", ".items() | list"]
POSTFIXES += [".replace('a', 'xy')", ".startswith('a')", " | unique | list", " | sum", " is odd"]


def grown(inner):
    return st.builds(
        lambda pattern, a, b, c, op, post: pattern.format(a=a, b=b, c=c, op=op, post=post),
        st.sampled_from(PATTERNS),
        inner,
        inner,
        inner,
        st.sampled_from(OPERATORS),
        st.sampled_from(POSTFIXES),
    )


@settings(max_examples=200, deadline=None)
@given(st.recursive(st.sampled_from(ATOMS), grown, max_leaves=6))
def test_any_expression_means_what_jinja_says_or_is_refused(expression):
    source = f"{{{{ {expression} }}}}"
    ours, theirs = by_us(source, MESSAGES), by_jinja(source, MESSAGES)
    if ours is not None and theirs is not None:
        assert ours == theirs
