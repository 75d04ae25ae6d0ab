"""`evenhand top` beside the running product: what its engine says of itself is there."""

import json

import openai

from tests.support.stack import run_cli


def test_the_replica_and_its_engine(stack):
    with openai.OpenAI(base_url=stack.url, api_key=stack.new_key("seen-in-top")) as sdk:
        model = sdk.models.list().data[0].id
        sdk.completions.create(model=model, prompt="Hello", max_tokens=4)
    done = run_cli("top", "--json", "--interval", "0.1", EVENHAND_DATA_DIR=str(stack.data_dir))
    assert done.returncode == 0, done.stderr
    (pool,) = json.loads(done.stdout)["pools"]
    (replica,) = pool["replicas"]
    assert replica["up"]
    assert (replica["granted"], replica["running"], replica["waiting"]) == (0, 0, 0)
    assert replica["slots"] == 16
    assert replica["kv_usage"] == 0
    assert (replica["preemptions"], replica["preempted"]) == (0, 0)
    assert replica["prefix_queried_tokens"] > 0
    assert pool["log_backlog"] == 0
    assert pool["spread"] <= pool["spread_bound"]
