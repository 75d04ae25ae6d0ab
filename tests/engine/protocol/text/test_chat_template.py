import contextlib

import pytest

from engine.protocol.errors import InvalidRequest
from engine.protocol.text import chat_template
from engine.protocol.text.chat_template import ChatTemplate
from engine.protocol.text.template.program import InvalidTemplateError

HELLO = [{"role": "user", "content": "hello"}]


def render(source, messages=HELLO, **special):
    return ChatTemplate(source, special).render(messages)


def test_renders_messages_special_tokens_and_the_generation_prompt():
    source = (
        "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m.content }}{{ eos_token }}\n"
        "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    assert render(source, bos_token="<s>", eos_token="</s>") == ("<s>[user] hello</s>\n[assistant]")


def test_blocks_are_trimmed_and_loops_controlled_as_in_the_reference():
    source = (
        "{% for m in [1, 2, 3] %}\n  {% if m == 2 %}\n{% continue %}\n  {% endif %}\n{{ m }},"
        "{% endfor %}"
    )
    assert render(source) == "1,3,"


def test_tojson_does_not_escape():
    assert render("{{ messages[0] | tojson }}", [{"content": "<é>"}]) == '{"content": "<é>"}'


def test_template_says_what_it_refuses():
    source = "{{ raise_exception('Only user and assistant roles are supported!') }}"
    with pytest.raises(InvalidRequest) as caught:
        render(source)
    assert caught.value.param == "messages"
    assert "Only user and assistant roles are supported!" in caught.value.message


def test_strftime_now_gives_a_date():
    assert len(render("{{ strftime_now('%Y-%m-%d') }}")) == len("2026-01-01")


CANNOT_RENDER = "The model's chat template cannot render these messages."
TOO_MUCH_WORK = "The model's chat template takes too much work to render these messages."


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ ''['__class__']['__mro__'] }}",
        "{{ ''.strip.__self__.x }}",
        "{{ messages | map(attribute='__class__.__mro__') | list | first | length + 'x' }}",
        "{{ messages | attr('append') }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'content': 'x'}) }}",
        "{{ messages[0].pop('content') }}",
        "{{ raise_exception.__globals__.json }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ self.__init__ }}{{ loop.x.y }}{{ caller.x }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ '{:>999999999}'.format(1) }}",
        "{{ '{x!r}'.format(x=1) }}",
        "{{ messages[0].content.missing.deeper }}",
        "{{ 1 / 0 }}",
        "{{ [0] * 1000000000 }}",
        "{{ '%999999999d' % 1 }}",
        "{{ 'x'.center(1000000000) }}",
        "{{ 'x' | center(1000000000) }}",
        "{{ 'x'.ljust(99999999) ~ 'x'.zfill(99999999) }}",
        "{{ 'x'.encode() }}",
        "{{ 'x'.expandtabs(99999999) }}",
        "{{ 'a\\nb' | indent(999999999) }}",
        "{{ [1] | tojson(indent=999999999) }}",
        "{{ [1] | batch(3, 1000000000) }}",
        "{{ 9223372036854775807 + 1 }}",
        "{{ 1.5 | round(9999999999) }}",
        "{{ ('9' * 5000) | int + '' }}",
        "{{ strftime_now('%Y' * 1000) }}",
        "{{ lipsum(1000000) }}",
        "{{ {[]: 1} }}",
        "{{ {(1, 2): 1} }}",
        "{{ range(1, 2, 0) }}",
        "{{ [messages[0], messages[0]] | sort }}",
        "{{ namespace() }}",
        "{{ range }}",
        "{% set x = 'a' %}{% set x.y = 1 %}",
        "{% for a, b in [1] %}{% endfor %}",
    ],
)
def test_what_no_template_may_do_is_a_plain_refusal(source):
    with pytest.raises(InvalidRequest) as caught:
        render(source)
    assert caught.value.message == CANNOT_RENDER


NESTED = "{% set ns = namespace(x=[0, 1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
NESTED += "{% endfor %}{% set other = namespace(x=[0, 1]) %}{% for i in range(60) %}"
NESTED += "{% set other.x = [other.x, other.x] %}{% endfor %}"
DEEP = "{% set ns = namespace(x=[]) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}{% endfor %}"


def grown(expression, start="'xy'"):
    """A text (or whatever `start` is) that the expression makes longer each time."""
    step = "{% for i in range(60) %}{% set ns.x = EXPRESSION %}{% endfor %}"
    start = "{% set ns = namespace(x=START) %}".replace("START", start)
    return start + step.replace("EXPRESSION", expression)


def repeated(expression):
    """Work that takes its time with a long text, many times over."""
    loop = "{% set long = 'x' * 3000000 %}{% for i in range(3000) %}{{ EXPRESSION }}{% endfor %}"
    return loop.replace("EXPRESSION", expression)


MACRO = "{% macro f(n) %}BODY{% endmacro %}"
ENDLESS = {
    "loop": "{% for i in range(99999999) %}x{% endfor %}",
    "empty loop": "{% for i in range(999) %}{% for j in range(999) %}{% endfor %}{% endfor %}",
    "nested loops": "{% for a in range(99) %}" * 8 + "x" + "{% endfor %}" * 8,
    "huge range": "{{ range(10, -9223372036854775807, -1) }}",
    "filtered loop": "{% for i in range(90000) if i * i < 0 and i in [1, i] %}{% endfor %}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "two macros": MACRO.replace("BODY", "{{ g() }}")
    + "{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}",
    "many calls": MACRO.replace("BODY", "{{ f(n - 1) ~ f(n - 1) if n }}") + "{{ f(30) }}",
    "caller": "{% macro f() %}{% call f() %}{% endcall %}{% endmacro %}{{ f() }}",
    "default": "{% macro f(x=f()) %}{% endmacro %}{{ f() }}",
    "repeated text": "{{ 'x' * 1000000000 }}",
    "repeated by a number first": "{{ 1000000000 * 'x' }}",
    "doubled by +": grown("ns.x + ns.x"),
    "doubled by ~": grown("ns.x ~ ns.x"),
    "doubled by join": grown("ns.x.join([ns.x, ns.x])"),
    "doubled by the join filter": grown("[ns.x, ns.x, ns.x] | join"),
    "doubled by format": grown("'{0}{0}'.format(ns.x)"),
    "doubled by replace": grown("ns.x.replace('x', 'xx')"),
    "doubled by replacing nothing": grown("ns.x | replace('', 'xx')"),
    "doubled list": grown("ns.x + ns.x", "[1]"),
    "doubled by tojson": grown("ns.x | tojson | tojson", "'\"'"),
    "doubled by escape": grown("ns.x | e", "'&' * 1000"),
    "doubled by indent": grown("(ns.x | indent(16, true)) ~ ns.x", "'\\n'"),
    "doubled by string": grown("[ns.x, ns.x] | string"),
    "doubled by a block": "{% set x = 'xy' %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 60,
    "equal lists": NESTED + "{{ ns.x == other.x }}",
    "list in list": NESTED + "{{ ns.x in [other.x] }}",
    "ordered lists": NESTED + "{{ ns.x < other.x }}",
    "printed list": NESTED + "{{ ns.x }}",
    "list as JSON": NESTED + "{{ ns.x | tojson }}",
    "unique lists": NESTED + "{{ [ns.x, other.x] | unique | list | length }}",
    "sorted lists": NESTED + "{{ [ns.x, other.x] | sort | length }}",
    "index of a list": NESTED + "{{ [ns.x].index(other.x) }}",
    "changed lists": NESTED
    + "{% for i in [1, 2] %}{{ loop.changed(ns.x if i == 1 else other.x) }}{% endfor %}",
    "search": repeated("'y' in long"),
    "searches of short texts": "{% set text = 'x' * 2490 %}{% set sought = 'x' * 998 ~ 'yx' %}"
    "{% for i in range(500) %}{{ sought in text }}{% endfor %}",
    "same texts": "{% set a = 'x' * 600000 %}{% set b = 'x' * 600000 %}"
    "{% for i in range(500) %}{{ a is sameas(b) }}{% endfor %}",
    "search from the end": "{% set long = 'x' * 1000000 %}{{ long.rfind('y' ~ long[:500000]) }}",
    "split from the end": "{% set long = 'x' * 1000000 %}{{ long.rsplit('y' ~ long[:500000]) }}",
    "count": repeated("long.count('xxxxxxxxy')"),
    "comparison": repeated("long == long ~ ''"),
    "upper": repeated("long.upper() | length"),
    "strip": "{% set long = 'x' * 1000000 %}{{ long.strip(long[:-1] ~ 'y') | length }}",
    "slices": repeated("long[1:] | length"),
    "pieces": "{{ ('x ' * 800000).split() | length }}",
    "lines": "{{ ('\\n' * 2000000).splitlines() | length }}",
    "characters": "{{ ('x' * 2000000) | list | length }}",
    "arguments": "{{ range(*range(2000000)) }}",
    "dates": "{% for i in range(9999) %}{{ strftime_now('%c' * 60) }}{% endfor %}",
    "output": "{% set x = 'x' * 100000 %}{% for i in range(999) %}{{ x }}{% endfor %}",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_what_does_not_end_is_refused_when_the_model_is_loaded(name):
    with pytest.raises(InvalidTemplateError, match="takes too much work"):
        ChatTemplate(ENDLESS[name], {})


@pytest.mark.parametrize("name", ENDLESS)
def test_what_does_not_end_for_some_messages_is_refused_for_those(name):
    source = "{% if messages[0].content == 'start' %}" + ENDLESS[name] + "{% endif %}ok"
    template = ChatTemplate(source, {})
    assert template.render(HELLO) == "ok"
    with pytest.raises(InvalidRequest) as caught:
        template.render([{"role": "user", "content": "start"}])
    assert caught.value.message == TOO_MUCH_WORK
    assert template.render(HELLO) == "ok"


@pytest.mark.parametrize("use", ["[1] | map(ns.x)", "[1] | select(ns.x)"])
def test_a_name_that_is_a_list_of_many_lists_is_not_spelt_out(use):
    with pytest.raises(InvalidRequest) as caught:
        render(NESTED + "{{ " + use + " }}")
    assert caught.value.message == CANNOT_RENDER


@pytest.mark.parametrize("use", ["x", "x | tojson", "x == [x]", "[x] | sort", "x | string"])
def test_deep_lists_are_refused(use):
    with pytest.raises(InvalidRequest) as caught:
        render(DEEP + "{% set x = ns.x %}{{ " + use + " }}")
    assert caught.value.message == CANNOT_RENDER


def test_names_are_not_looked_for_through_ever_more_scopes():
    nested = "{% with %}" * 80 + "{{ messages }}" + "{% endwith %}" * 80
    with pytest.raises(InvalidTemplateError, match="too much work"):
        ChatTemplate(nested, {})


def test_a_conversation_has_work_by_its_size():
    """Every message may be gone through many times, however many there are."""
    source = "{% for m in messages %}{% for part in m.content.split('\n') %}{{ part | trim }}"
    source += "{% endfor %}{{ m.role ~ ': ' ~ m.content | replace('a', 'b') }}{% endfor %}"
    messages = [{"role": "user", "content": "a line of text\n" * 20}] * 3000
    assert len(render(source, messages)) > 3000 * 500
    assert len(render(source, [{"role": "user", "content": "many words " * 150_000}])) > 3_000_000


def test_output_is_capped(monkeypatch):
    monkeypatch.setattr(chat_template, "_MAX_OUTPUT", 1000)
    source = "{% for i in range(200) %}{{ messages[0].content }}{% endfor %}"
    assert len(render(source)) == 1000
    with pytest.raises(InvalidRequest):
        render(source, [{"content": "hello!"}])


def test_messages_are_data_not_templates():
    text = "{{ 7 * 7 }}{% raw %}"
    assert render("{{ messages[0].content }}", [{"content": text}]) == text
    assert render("{{ messages[0].content | e }}", [{"content": "<b>"}]) == "&lt;b&gt;"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% if %}", "cannot be compiled"),
        ("{% include 'secrets' %}", "it uses Include"),
        ("{% import 'os' as os %}", "it uses Import"),
        ("{% extends 'base' %}", "it uses Extends"),
        ("{% block x %}{% endblock %}", "it uses Block"),
        ("{% for x in y recursive %}{% endfor %}", "a recursive loop"),
        ("{{ 10 ** 10000000 }}", "it uses Pow"),
        ("{{ " + "9" * 5000 + " }}", "beyond reason"),
        ("{{ " + "9" * 20 + " }}", "beyond 64 bits"),
        ("{{ '\\ud800' }}", "surrogate"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "beyond reason"),
        ("{{ " + "not " * 5000 + "1 }}", "beyond reason"),
        ("{{ " + "1+" * 5000 + "1 }}", "beyond reason"),
        ("{{ x" + ".a" * 5000 + " }}", "beyond reason"),
        ("{{ x" + "|trim" * 5000 + " }}", "beyond reason"),
        ("{% if x %}" * 2000 + "{% endif %}" * 2000, "beyond reason"),
        ("{" * 300_000, "longer than"),
        ("{% nothing %}", "cannot be compiled"),
        ("{{ 'open", "cannot be compiled"),
    ],
)
def test_a_template_that_cannot_be_compiled_is_named(source, reason):
    with pytest.raises(InvalidTemplateError, match=reason):
        ChatTemplate(source, {})


@pytest.mark.parametrize(
    "piece", ["{", "{{", "{%", "{#", "}}", "'", " ", "\n", "{% raw %}", "{% if x %}{% endif %}"]
)
def test_any_source_is_read_in_linear_time(piece):
    """Or the test's time runs out."""
    with contextlib.suppress(InvalidTemplateError):
        ChatTemplate((piece * 250_000)[:250_000], {})


def test_an_unknown_filter_or_test_matters_only_where_it_is_used():
    source = "{% if tools %}{{ tools | xmlattr }}{{ 1 is filter }}{% endif %}ok"
    assert render(source) == "ok"
    with pytest.raises(InvalidRequest):
        render("{{ [] | xmlattr }}")
