"""A peer: llama.cpp's server on the same file, asked over HTTP as ours is.

Run as `python -m benchmarks.peer_llamacpp MODEL` by an interpreter that has `xllamacpp`. Its slots
are as many as our sequences, each with room for a prompt and its answer; all else is its default.
"""

import http.client
import importlib.metadata
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from urllib.parse import urlsplit

import xllamacpp

from benchmarks.peer_protocol import answer_rounds

SLOTS = 16
TOKENS_PER_SLOT = 512


def main() -> None:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = sys.argv[1]
    parameters.n_parallel = SLOTS
    parameters.n_ctx = SLOTS * TOKENS_PER_SLOT
    parameters.port = 0
    server = xllamacpp.Server(parameters)
    address = urlsplit(server.listening_address).netloc

    def complete(prompts: list[list[int]], new_tokens: int) -> int:
        with ThreadPoolExecutor(len(prompts)) as threads:
            return sum(threads.map(lambda prompt: ask(address, prompt, new_tokens), prompts))

    answer_rounds(f"xllamacpp {importlib.metadata.version('xllamacpp')}", complete)


def ask(address: str, prompt: list[int], new_tokens: int) -> int:
    """One completion; the number of tokens it generated."""
    body = {
        "prompt": prompt,
        "n_predict": new_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": False,
    }
    connection = http.client.HTTPConnection(address)
    connection.request(
        "POST", "/completion", json.dumps(body), {"content-type": "application/json"}
    )
    reply = connection.getresponse()
    document = json.loads(reply.read())
    connection.close()
    if reply.status != HTTPStatus.OK:
        raise RuntimeError(document)
    if document["tokens_evaluated"] != len(prompt):
        raise RuntimeError(f"the prompt became {document['tokens_evaluated']} tokens")
    return int(document["tokens_predicted"])


if __name__ == "__main__":
    main()
