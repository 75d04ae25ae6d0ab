"""The happy paths over real sockets, with the unmodified OpenAI SDK."""

import openai
import pytest


@pytest.fixture
async def sdk(gateway):
    async with openai.AsyncOpenAI(
        base_url=gateway.url, api_key=gateway.key, max_retries=0
    ) as client:
        yield client


ASK = {"model": "smollm2-135m", "messages": [{"role": "user", "content": "Hi"}]}


async def test_a_whole_chat(gateway, sdk):
    raw = await sdk.chat.completions.with_raw_response.create(**ASK)
    answer = raw.parse()
    assert answer.choices[0].message.content == " two three four one"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == 4
    assert answer.usage.prompt_tokens == len(gateway.upstream.requests[0]["prompt"])
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert raw.headers["x-request-id"].startswith("req_")
    assert raw.headers["x-ratelimit-limit-requests"] == "600"
    assert raw.headers["x-ratelimit-remaining-requests"] == "599"
