import pytest

from engine.protocol.errors import InvalidRequest
from engine.protocol.text import chat_template
from engine.protocol.text.chat_template import ChatTemplate, TemplateSyntaxInvalidError

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


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'content': 'x'}) }}",
        "{{ raise_exception.__globals__.json }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ messages[0].content.missing.deeper }}",
        "{{ 1 / 0 }}",
        "{{ 'x' * 10 ** 9 }}",
        "{{ [0] * 1000000000 }}",
        "{{ 10 ** 10000000 }}",
        "{{ '%999999999d' % 1 }}",
        "{% for i in range(99999999) %}x{% endfor %}",
        "{{ lipsum(1000000) }}",
        "{% include 'secrets' %}",
    ],
)
def test_hostile_template_is_a_plain_refusal(source):
    with pytest.raises(InvalidRequest) as caught:
        render(source)
    assert caught.value.message == "The model's chat template cannot render these messages."


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


def test_broken_template_is_named():
    with pytest.raises(TemplateSyntaxInvalidError, match="cannot be compiled"):
        ChatTemplate("{% if %}", {})
