"""Bodies are read into requests, or refused with the code and the path of the first bad field."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol import wire
from engine.protocol.errors import InvalidRequest
from engine.protocol.requests import Chat, EngineFields, EraseRequest, Message, PinRequest
from engine.protocol.strict_json import parse_object
from engine.protocol.wire import (
    Audience,
    parse_chat,
    parse_completion,
    parse_erase,
    parse_pin,
    parse_tokenize,
)

SALT = "A" * 43
USER = [{"role": "user", "content": "hi"}]


def chat(audience=Audience.PUBLIC, **members):
    body = {"model": "m", "messages": USER, **members}
    if audience is Audience.ENGINE:
        body.setdefault("cache_salt", SALT)
    return parse_chat({name: value for name, value in body.items() if value is not ...}, audience)


def completion(audience=Audience.PUBLIC, **members):
    body = {"model": "m", "prompt": "hi", **members}
    if audience is Audience.ENGINE:
        body.setdefault("cache_salt", SALT)
    return parse_completion(
        {name: value for name, value in body.items() if value is not ...}, audience
    )


def refusal(parse, *args, **members):
    with pytest.raises(InvalidRequest) as caught:
        parse(*args, **members)
    return caught.value.param, caught.value.code


ROUTES = pytest.mark.parametrize("parse", [chat, completion])


# --- what is accepted --------------------------------------------------------------------------


def test_a_plain_chat_request_leaves_everything_to_the_server():
    request = chat()
    assert request.messages == (Message("user", "hi"),)
    assert (request.sampling.temperature, request.sampling.top_p) == (1.0, 1.0)
    assert (request.sampling.max_tokens, request.sampling.seed) == (None, None)
    assert not request.delivery.stream
    assert request.cache.enabled
    assert request.engine is None


@ROUTES
def test_what_is_acted_on_arrives(parse):
    request = parse(
        max_tokens=7,
        temperature=0,
        top_p=0.5,
        seed=-(2**63),
        n=1,
        stop=["a", "b"],
        stream=True,
        stream_options={"include_usage": True, "include_obfuscation": False},
        cache="off",
        cache_scope="é" * 64,
        prompt_cache_key="k",
    )
    assert request.sampling.max_tokens == 7
    assert request.sampling.temperature == 0
    assert request.sampling.top_p == 0.5
    assert request.sampling.seed == -(2**63)
    assert request.sampling.stop == ("a", "b")
    assert (request.delivery.stream, request.delivery.include_usage) == (True, True)
    assert (request.cache.scope, request.cache.enabled) == ("é" * 64, False)
    assert request.cache.affinity_key == "k"


@ROUTES
def test_what_openai_has_and_we_ignore_is_accepted(parse):
    parse(
        user="u",
        metadata={"a": "b"},
        store=True,
        prompt_cache_retention="24h",
        prompt_cache_options={"ttl": "30m"},
        safety_identifier="s",
        service_tier="flex",
        parallel_tool_calls=True,
        reasoning_effort="low",
        verbosity="high",
    )


@ROUTES
def test_null_is_the_same_as_leaving_out(parse):
    names = (
        {*wire._CHAT[Audience.PUBLIC]} if parse is chat else {*wire._COMPLETION[Audience.PUBLIC]}
    )
    optional = names - {"model", "messages", "prompt"}
    assert parse(**dict.fromkeys(optional)) == parse()


def test_neutral_values_are_the_same_as_leaving_out():
    assert (
        chat(
            frequency_penalty=0,
            presence_penalty=0.0,
            logit_bias={},
            logprobs=False,
            top_logprobs=0,
            response_format={"type": "text"},
            modalities=["text"],
            tool_choice="none",
        )
        == chat()
    )
    assert completion(best_of=1, echo=False, suffix="") == completion()


def test_text_parts_are_joined_and_developer_is_system():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request = chat(messages=[{"role": "developer", "content": parts}, *USER])
    assert request.messages[0] == Message("system", "a\nb")


def test_our_own_answer_may_be_sent_back_as_the_sdk_dumps_it():
    dumped = {
        "role": "assistant",
        "content": "Hello",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
    }
    assert chat(messages=[*USER, dumped, *USER]).messages[1] == Message("assistant", "Hello")


def test_the_newer_name_of_the_output_limit_means_the_same():
    assert chat(max_completion_tokens=5).sampling.max_tokens == 5
    assert chat(max_completion_tokens=5, max_tokens=5).sampling.max_tokens == 5


@pytest.mark.parametrize("stop", ["a", ["a"]])
def test_one_stop_string_needs_no_list(stop):
    assert chat(stop=stop).sampling.stop == ("a",)


@pytest.mark.parametrize(
    ("prompt", "read"),
    [("", ""), ("hi", "hi"), (["hi"], "hi"), ([1, 2], (1, 2)), ([[1, 2]], (1, 2))],
)
def test_a_prompt_is_text_or_token_ids(prompt, read):
    assert completion(prompt=prompt).prompt == read


def test_an_engine_hears_more():
    request = completion(
        Audience.ENGINE,
        prompt=[5, 0],
        top_k=40,
        stop_token_ids=[2],
        ignore_eos=True,
        request_id="req_1",
        cache_owner="o",
        cache_weight=1000,
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
        cache="off",
        priority=0,
        min_p=0.0,
        min_tokens=0,
        add_special_tokens=True,
    )
    assert request.engine == EngineFields(SALT, "o", 1000, "req_1")
    assert (request.sampling.top_k, request.sampling.stop_token_ids) == (40, (2,))
    assert request.sampling.ignore_eos
    assert request.delivery.continuous_usage_stats
    assert not request.cache.enabled


def test_top_k_off_in_vllms_words_is_off_in_ours():
    assert completion(Audience.ENGINE, top_k=-1).sampling.top_k == 0


@ROUTES
def test_a_tenant_says_how_tokens_are_chosen(parse):
    sampling = parse(
        n=8,
        presence_penalty=-2,
        frequency_penalty=2.0,
        logit_bias={"7": -100, "5": 100, "0": 0.5},
    ).sampling
    assert sampling.n == 8
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (-2, 2)
    assert sampling.logit_bias == ((0, 0.5), (5, 100), (7, -100))
    assert (sampling.logprobs, sampling.prompt_logprobs, sampling.echo) == (None, None, False)


def test_each_route_asks_for_logprobs_in_its_own_way():
    assert chat(logprobs=True).sampling.logprobs == 0
    assert chat(logprobs=True, top_logprobs=20).sampling.logprobs == 20
    assert completion(logprobs=0, echo=True, n=2, best_of=2).sampling.logprobs == 0
    assert completion(logprobs=5).sampling.logprobs == 5
    assert completion(Audience.ENGINE, logprobs=20).sampling.logprobs == 20
    assert completion(echo=True).sampling.echo


@ROUTES
def test_an_engine_hears_all_of_vllms_sampling(parse):
    given = {
        "min_p": 0.1,
        "min_tokens": 3,
        "max_tokens": 3,
        "repetition_penalty": 1.5,
        "bad_words": ("damn", " it"),
        "allowed_token_ids": (3, 1),
        "prompt_logprobs": 20,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    sent = {name: list(v) if isinstance(v, tuple) else v for name, v in given.items()}
    sampling = parse(Audience.ENGINE, **sent).sampling
    assert {name: getattr(sampling, name) for name in given} == given


def test_pin_takes_a_prompt_or_messages():
    body = {"model": "m", "cache_salt": SALT, "pinned": True}
    assert parse_pin({**body, "prompt": [1, 2]}) == PinRequest("m", SALT, (1, 2), pinned=True)
    read = parse_pin({**body, "messages": USER, "pinned": False})
    assert read == PinRequest("m", SALT, Chat((Message("user", "hi"),)), pinned=False)
    assert refusal(parse_pin, body) == ("prompt", "invalid_value")
    assert refusal(parse_pin, {**body, "x": 1}) == ("x", "unknown_parameter")
    missing = {"model": "m", "cache_salt": SALT, "prompt": "x"}
    assert refusal(parse_pin, missing) == ("pinned", "missing_required_parameter")


def test_erase_takes_a_namespace_alone():
    assert parse_erase({"cache_salt": SALT}) == EraseRequest(SALT)
    assert refusal(parse_erase, {}) == ("cache_salt", "missing_required_parameter")
    assert refusal(parse_erase, {"cache_salt": SALT, "model": "m"}) == (
        "model",
        "unknown_parameter",
    )


def test_tokenize_takes_a_prompt_or_messages():
    assert parse_tokenize({"model": "m", "prompt": "x"}).prompt == "x"
    assert parse_tokenize({"model": "m", "messages": USER}).prompt == Chat((Message("user", "hi"),))
    for body in ({"model": "m"}, {"model": "m", "prompt": "x", "messages": USER}):
        assert refusal(parse_tokenize, body) == ("prompt", "invalid_value")


# --- what is refused ---------------------------------------------------------------------------


@ROUTES
@pytest.mark.parametrize(
    "name",
    [
        *("cache_salt", "priority", "kv_transfer_params", "vllm_xargs", "nope", "request_id"),
        *("cache_owner", "cache_weight", "cache_public", "top_k", "stop_token_ids", "ignore_eos"),
        *("min_p", "min_tokens", "repetition_penalty", "bad_words", "allowed_token_ids"),
        *("prompt_logprobs", "include_stop_str_in_output", "skip_special_tokens"),
        *("return_token_ids", "return_tokens_as_token_ids"),
        *("Model", "model ", "__class__"),
    ],
)
def test_a_tenant_cannot_say_what_only_the_gateway_says(parse, name):
    assert refusal(parse, **{name: 0}) == (name, "unknown_parameter")
    assert refusal(parse, **{name: None}) == (name, "unknown_parameter")


@ROUTES
@pytest.mark.parametrize(
    ("members", "param", "code"),
    [
        ({"model": ...}, "model", "missing_required_parameter"),
        ({"model": None}, "model", "invalid_type"),
        ({"model": 3}, "model", "invalid_type"),
        ({"model": ""}, "model", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"n": 9}, "n", "invalid_value"),
        ({"n": 10**9}, "n", "invalid_value"),
        ({"n": 10**4000}, "n", "invalid_value"),
        ({"n": True}, "n", "invalid_type"),
        ({"n": 1.0}, "n", "invalid_type"),
        ({"temperature": -1}, "temperature", "invalid_value"),
        ({"temperature": 2.1}, "temperature", "invalid_value"),
        ({"temperature": 10**4000}, "temperature", "invalid_value"),
        ({"temperature": "1"}, "temperature", "invalid_type"),
        ({"temperature": False}, "temperature", "invalid_type"),
        ({"top_p": 0}, "top_p", "invalid_value"),
        ({"top_p": 2}, "top_p", "invalid_value"),
        ({"seed": 2**63}, "seed", "invalid_value"),
        ({"seed": 1.5}, "seed", "invalid_type"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": True}, "max_tokens", "invalid_type"),
        ({"stop": ["x"] * 100}, "stop", "invalid_value"),
        ({"stop": ""}, "stop", "invalid_value"),
        ({"stop": ["a", ""]}, "stop[1]", "invalid_value"),
        ({"stop": ["a", 1]}, "stop[1]", "invalid_type"),
        ({"stop": {"a": 1}}, "stop", "invalid_type"),
        ({"stream": 1}, "stream", "invalid_type"),
        ({"stream_options": {}}, "stream_options", "invalid_value"),
        ({"stream": True, "stream_options": []}, "stream_options", "invalid_type"),
        (
            {"stream": True, "stream_options": {"include_usage": 1}},
            "stream_options.include_usage",
            "invalid_type",
        ),
        (
            {"stream": True, "stream_options": {"continuous_usage_stats": True}},
            "stream_options.continuous_usage_stats",
            "unknown_parameter",
        ),
        ({"cache": "maybe"}, "cache", "invalid_value"),
        ({"cache": False}, "cache", "invalid_type"),
        ({"cache_scope": ""}, "cache_scope", "invalid_value"),
        ({"cache_scope": "é" * 65}, "cache_scope", "invalid_value"),
        ({"cache_scope": 1}, "cache_scope", "invalid_type"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1", "invalid_value"),
        ({"logit_bias": {"1": "2"}}, "logit_bias.1", "invalid_type"),
        ({"logit_bias": {"1": True}}, "logit_bias.1", "invalid_type"),
        ({"logit_bias": {"01": 1}}, "logit_bias.01", "invalid_value"),
        ({"logit_bias": {"-1": 1}}, "logit_bias.-1", "invalid_value"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x", "invalid_value"),
        ({"logit_bias": {"²": 1}}, "logit_bias.²", "invalid_value"),
        ({"logit_bias": {str(2**31): 1}}, f"logit_bias.{2**31}", "invalid_value"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias." + "9" * 63 + "…", "invalid_value"),
        ({"logit_bias": {str(i): 1 for i in range(301)}}, "logit_bias", "invalid_value"),
        ({"logit_bias": [1]}, "logit_bias", "invalid_type"),
        ({"presence_penalty": 2.1}, "presence_penalty", "invalid_value"),
        ({"presence_penalty": False}, "presence_penalty", "invalid_type"),
        ({"frequency_penalty": -2.1}, "frequency_penalty", "invalid_value"),
        ({"logprobs": "1"}, "logprobs", "invalid_type"),
        ({"metadata": {"a": 1}}, "metadata", "invalid_type"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata", "invalid_value"),
        ({"user": 1}, "user", "invalid_type"),
    ],
)
def test_a_bad_field_is_named(parse, members, param, code):
    assert refusal(parse, **members) == (param, code)


@pytest.mark.parametrize(
    ("messages", "param", "code"),
    [
        (..., "messages", "missing_required_parameter"),
        ([], "messages", "invalid_value"),
        ("hi", "messages", "invalid_type"),
        (["hi"], "messages[0]", "invalid_type"),
        ([{}], "messages[0].role", "missing_required_parameter"),
        ([{"role": "user"}], "messages[0].content", "missing_required_parameter"),
        ([{"role": "user", "content": None}], "messages[0].content", "invalid_type"),
        ([{"role": "user", "content": 1}], "messages[0].content", "invalid_type"),
        ([{"role": "user", "content": []}], "messages[0].content", "invalid_value"),
        ([{"role": "king", "content": ""}], "messages[0].role", "invalid_value"),
        ([{"role": "tool", "content": ""}], "messages[0].role", "unsupported_parameter"),
        ([*USER, {"role": "user", "content": "", "x": 1}], "messages[1].x", "unknown_parameter"),
        (
            [{"role": "assistant", "content": None, "tool_calls": [{}]}],
            "messages[0].tool_calls",
            "unsupported_parameter",
        ),
        (
            [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}],
            "messages[0].content[1].type",
            "unsupported_parameter",
        ),
        (
            [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}],
            "messages[0].content[0].type",
            "unsupported_parameter",
        ),
        (
            [{"role": "user", "content": [{"type": "smell"}]}],
            "messages[0].content[0].type",
            "invalid_value",
        ),
        (
            [{"role": "user", "content": [{"text": "a"}]}],
            "messages[0].content[0].type",
            "missing_required_parameter",
        ),
        (
            [{"role": "user", "content": [{"type": "text"}]}],
            "messages[0].content[0].text",
            "missing_required_parameter",
        ),
        ([{"role": "user", "content": ["a"]}], "messages[0].content[0]", "invalid_type"),
    ],
)
def test_a_bad_message_is_named_by_its_path(messages, param, code):
    assert refusal(chat, messages=messages) == (param, code)


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"tools": [{}]}, "tools"),
        ({"tools": []}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"functions": []}, "functions"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {}}, "audio"),
        ({"web_search_options": {}}, "web_search_options"),
    ],
)
def test_what_chat_has_elsewhere_is_named_as_unsupported(members, param):
    assert refusal(chat, **members) == (param, "unsupported_parameter")


@pytest.mark.parametrize(
    ("members", "param", "code"),
    [
        ({"prompt": ...}, "prompt", "missing_required_parameter"),
        ({"prompt": None}, "prompt", "invalid_type"),
        ({"prompt": []}, "prompt", "invalid_value"),
        ({"prompt": [[]]}, "prompt[0]", "invalid_value"),
        ({"prompt": ["a", "b"]}, "prompt", "unsupported_parameter"),
        ({"prompt": [[1], [2]]}, "prompt", "unsupported_parameter"),
        ({"prompt": [1, -1]}, "prompt[1]", "invalid_value"),
        ({"prompt": [1, 2**31]}, "prompt[1]", "invalid_value"),
        ({"prompt": [1, "a"]}, "prompt[1]", "invalid_type"),
        ({"prompt": [True]}, "prompt[0]", "invalid_type"),
        ({"prompt": {"a": 1}}, "prompt", "invalid_type"),
        ({"echo": 1}, "echo", "invalid_type"),
        ({"best_of": 2}, "best_of", "unsupported_parameter"),
        ({"best_of": 1, "n": 2}, "best_of", "unsupported_parameter"),
        ({"best_of": 9, "n": 8}, "best_of", "invalid_value"),
        ({"logprobs": 6}, "logprobs", "invalid_value"),
        ({"logprobs": -1}, "logprobs", "invalid_value"),
        ({"logprobs": True}, "logprobs", "invalid_type"),
        ({"top_logprobs": 1}, "top_logprobs", "unknown_parameter"),
        ({"suffix": "x"}, "suffix", "unsupported_parameter"),
        ({"messages": USER}, "messages", "unknown_parameter"),
    ],
)
def test_a_bad_completion_field_is_named(members, param, code):
    assert refusal(completion, **members) == (param, code)


@pytest.mark.parametrize(
    ("members", "param", "code"),
    [
        ({"logprobs": 0}, "logprobs", "invalid_type"),
        ({"logprobs": 1}, "logprobs", "invalid_type"),
        ({"top_logprobs": 3}, "top_logprobs", "invalid_value"),
        ({"top_logprobs": 3, "logprobs": False}, "top_logprobs", "invalid_value"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs", "invalid_value"),
        ({"top_logprobs": -1, "logprobs": True}, "top_logprobs", "invalid_value"),
        ({"top_logprobs": True, "logprobs": True}, "top_logprobs", "invalid_type"),
        ({"echo": True}, "echo", "unknown_parameter"),
        ({"best_of": 1}, "best_of", "unknown_parameter"),
    ],
)
def test_a_bad_chat_field_is_named(members, param, code):
    assert refusal(chat, **members) == (param, code)


def test_the_two_names_of_the_output_limit_may_not_differ():
    expected = ("max_completion_tokens", "invalid_value")
    assert refusal(chat, max_tokens=1, max_completion_tokens=2) == expected


@ROUTES
@pytest.mark.parametrize(
    ("salt", "code"),
    [
        (..., "missing_required_parameter"),
        (None, "invalid_type"),
        ("", "invalid_value"),
        ("A" * 42, "invalid_value"),
        ("A" * 43 + "\n", "invalid_value"),
        ("A" * 42 + "=", "invalid_value"),
        (43, "invalid_value"),
        ([SALT], "invalid_value"),
    ],
)
def test_an_engine_refuses_without_a_good_salt(parse, salt, code):
    assert refusal(parse, Audience.ENGINE, cache_salt=salt) == ("cache_salt", code)


@pytest.mark.parametrize(
    ("members", "param", "code"),
    [
        ({"priority": 1}, "priority", "unsupported_parameter"),
        ({"min_p": 1.1}, "min_p", "invalid_value"),
        ({"min_p": "0"}, "min_p", "invalid_type"),
        ({"min_tokens": -1}, "min_tokens", "invalid_value"),
        ({"min_tokens": 3, "max_tokens": 2}, "min_tokens", "invalid_value"),
        ({"repetition_penalty": 0}, "repetition_penalty", "invalid_value"),
        ({"repetition_penalty": 1e-300}, "repetition_penalty", "invalid_value"),
        ({"repetition_penalty": 2.1}, "repetition_penalty", "invalid_value"),
        ({"bad_words": "x"}, "bad_words", "invalid_type"),
        ({"bad_words": ["x", " "]}, "bad_words[1]", "invalid_value"),
        ({"bad_words": ["x" * 257]}, "bad_words[0]", "invalid_value"),
        ({"bad_words": ["x"] * 129}, "bad_words", "invalid_value"),
        ({"allowed_token_ids": []}, "allowed_token_ids", "invalid_value"),
        ({"allowed_token_ids": [1, -1]}, "allowed_token_ids[1]", "invalid_value"),
        ({"allowed_token_ids": "1"}, "allowed_token_ids", "invalid_type"),
        ({"prompt_logprobs": -1}, "prompt_logprobs", "invalid_value"),
        ({"prompt_logprobs": 21}, "prompt_logprobs", "invalid_value"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "invalid_value"),
        ({"include_stop_str_in_output": 1}, "include_stop_str_in_output", "invalid_type"),
        ({"skip_special_tokens": None, "return_token_ids": 1}, "return_token_ids", "invalid_type"),
        ({"kv_transfer_params": {}}, "kv_transfer_params", "unsupported_parameter"),
        ({"vllm_xargs": {}}, "vllm_xargs", "unsupported_parameter"),
        ({"cache_public": "k"}, "cache_public", "unsupported_parameter"),
        ({"cache_scope": "s"}, "cache_scope", "unknown_parameter"),
        ({"nope": 1}, "nope", "unknown_parameter"),
        ({"request_id": "a b"}, "request_id", "invalid_value"),
        ({"request_id": "a\n"}, "request_id", "invalid_value"),
        ({"request_id": "a" * 129}, "request_id", "invalid_value"),
        ({"cache_weight": 0}, "cache_weight", "invalid_value"),
        ({"top_k": -2}, "top_k", "invalid_value"),
        ({"stop_token_ids": [1] * 129}, "stop_token_ids", "invalid_value"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]", "invalid_value"),
    ],
)
@ROUTES
def test_an_engine_is_no_less_strict(parse, members, param, code):
    assert refusal(parse, Audience.ENGINE, **members) == (param, code)


@pytest.mark.parametrize("name", ["x" * 10_000, "a\nb\x1b[31m" * 100])
def test_a_refusal_repeats_little_of_the_client_and_nothing_unprintable(name):
    with pytest.raises(InvalidRequest) as caught:
        chat(**{name: 1})
    assert len(caught.value.param) <= 64
    assert len(caught.value.message) <= 100
    assert (caught.value.param + caught.value.message).isprintable()


def test_no_value_of_the_client_is_repeated():
    for members in (
        {"cache": "SECRET"},
        {"cache_scope": "SECRET" * 100},
        {"messages": [{"role": "SECRET", "content": ""}]},
        {"response_format": {"SECRET": 1}},
    ):
        with pytest.raises(InvalidRequest) as caught:
            chat(**members)
        assert "SECRET" not in caught.value.message


def test_every_field_of_the_openai_sdk_is_in_a_table():
    from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming as Chat
    from openai.types.completion_create_params import CompletionCreateParamsStreaming as Text

    assert set(Chat.__annotations__) <= set(wire._CHAT[Audience.PUBLIC])
    assert set(Text.__annotations__) <= set(wire._COMPLETION[Audience.PUBLIC])


# --- fuzz --------------------------------------------------------------------------------------

JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "m", "user", "text", "on", "off", "none", SALT, "é\u2028"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "name", "include_usage", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
NAMES = sorted(
    {name for tables in (wire._CHAT, wire._COMPLETION) for name in tables[Audience.ENGINE]}
)
BASE = {"model": "m", "messages": USER, "prompt": "hi", "cache_salt": SALT}


@given(
    st.dictionaries(st.sampled_from([*NAMES, "cache_scope", "nope"]), JUNK, max_size=5),
    st.sets(st.sampled_from(sorted(BASE))),
    st.sampled_from([parse_chat, parse_completion]),
    st.sampled_from(Audience),
)
def test_any_body_is_a_request_or_a_named_refusal(members, base, parse, audience):
    body = {name: BASE[name] for name in sorted(base)} | members
    try:
        request = parse(parse_object(json.dumps(body).encode()), audience)
    except InvalidRequest as refused:
        named = (refused.param or "").split("[")[0].split(".")[0]
        assert named in wire_names(parse, audience) | set(body) | {"messages", "prompt"}, named
    else:
        hash(request)
        assert (request.engine is None) == (audience is Audience.PUBLIC)


def wire_names(parse, audience):
    return set((wire._CHAT if parse is parse_chat else wire._COMPLETION)[audience])
