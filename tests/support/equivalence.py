"""Runs prompts through the engine core on the reference's own tokens and compares every logit."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from engine.core.batch import RunnerOutput, SampledToken, ScheduledBatch
from engine.core.engine_core import CoreConfig, EngineCore
from engine.core.preemption import PreemptionPolicy
from engine.core.request import Request, SamplingParams
from engine.runner.decoder_runner import DecoderRunner
from tests.support.decoding import Decoding

LOGIT_TOLERANCE = 1e-3
GAP = 2e-3


@dataclasses.dataclass(frozen=True)
class Case:
    """A prompt, what the reference goes on with, and the logits [output, vocabulary] of that."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    logits: torch.Tensor

    @classmethod
    def of(cls, decoding: Decoding) -> "Case":
        """The output's part of a decoding, however it was chosen."""
        return cls(decoding.prompt, decoding.output, decoding.logits[len(decoding.prompt) - 1 :])


@dataclasses.dataclass(frozen=True)
class Difference:
    """How far the engine was from the reference."""

    largest_logit_difference: float
    mismatches_beyond_gap: int
    tokens: int
    near_ties: int


@torch.inference_mode()
def reference_case(model: PreTrainedModel, prompt: Sequence[int], num_tokens: int) -> Case:
    """Greedy tokens; the logits of each from one pass over everything, without a cache."""
    model.generation_config.eos_token_id = None  # an end token ends nothing here
    greedy = GenerationConfig(max_new_tokens=num_tokens, do_sample=False, pad_token_id=0)
    inputs = torch.tensor([prompt])
    tokens = model.generate(
        inputs, attention_mask=torch.ones_like(inputs), generation_config=greedy
    )
    output = tokens[0, len(prompt) :].tolist()
    assert len(output) == num_tokens
    whole = model(tokens[:, :-1], use_cache=False, logits_to_keep=num_tokens)
    logits = whole.logits[0].clone()
    assert not ((logits.argmax(-1) != torch.tensor(output)) & _clear(logits)).any()
    return Case(tuple(prompt), tuple(output), logits)


@torch.inference_mode()
def forced_case(model: PreTrainedModel, tokens: Sequence[int], num_prompt: int) -> Case:
    """A prompt and given tokens after it, whatever the model would say; one pass over them."""
    logits = model(torch.tensor([tokens[:-1]]), use_cache=False).logits[0, num_prompt - 1 :]
    return Case(tuple(tokens[:num_prompt]), tuple(tokens[num_prompt:]), logits.clone())


class TeacherForcedRunner:
    """Answers with the reference's tokens and keeps the logits computed for each of them."""

    def __init__(self, runner: DecoderRunner) -> None:
        self._runner = runner
        self._output: dict[str, tuple[int, ...]] = {}
        self.logits: dict[str, dict[int, torch.Tensor]] = {}

    def expect(self, request_id: str, output: tuple[int, ...]) -> None:
        self._output[request_id] = output
        self.logits[request_id] = {}

    def execute(self, batch: ScheduledBatch) -> RunnerOutput:
        tokens = {}
        logits = self._runner.execute_logits(batch)
        sampled = [row for row in batch.rows if row.samples]
        for row, values in zip(sampled, torch.from_numpy(logits), strict=True):
            index = len(row.output_token_ids)
            self.logits[row.request_id][index] = values
            tokens[row.request_id] = SampledToken(self._output[row.request_id][index])
        return RunnerOutput(tokens)


class Comparison:
    """One engine over one runner; prompts given to `run` share its prefix cache."""

    def __init__(
        self, runner: DecoderRunner, config: CoreConfig, preemption: PreemptionPolicy | None = None
    ) -> None:
        self.runner = runner
        self._runner = TeacherForcedRunner(runner)
        self.core = EngineCore(config, self._runner, preemption)
        self._runs = 0

    def run(self, cases: Sequence[Case]) -> Difference:
        """All cases at once, as far as the engine has room for them."""
        self._runs += 1
        ids = [f"{self._runs}-{index}" for index in range(len(cases))]
        for request_id, case in zip(ids, cases, strict=True):
            self._runner.expect(request_id, case.output)
            params = SamplingParams(max_tokens=len(case.output), temperature=0.0)
            self.core.add(Request(request_id, case.prompt, params, namespace="n" * 43))
        while self.core.has_work():
            self.core.step()
        return worst(
            [
                _compare(case, self._runner.logits.pop(request_id))
                for request_id, case in zip(ids, cases, strict=True)
            ]
        )


def worst(differences: Sequence[Difference]) -> Difference:
    """The largest difference and the sums of the counts."""
    return Difference(
        max(difference.largest_logit_difference for difference in differences),
        sum(difference.mismatches_beyond_gap for difference in differences),
        sum(difference.tokens for difference in differences),
        sum(difference.near_ties for difference in differences),
    )


def _compare(case: Case, computed: dict[int, torch.Tensor]) -> Difference:
    ours = torch.stack([computed[index] for index in range(len(case.output))])
    clear = _clear(case.logits)
    differs = ours.argmax(-1) != case.logits.argmax(-1)
    return Difference(
        float((ours - case.logits).abs().max()),
        int((differs & clear).sum()),
        len(case.output),
        int((~clear).sum()),
    )


def _clear(logits: torch.Tensor) -> torch.Tensor:
    """For each row whether its two largest logits are further apart than rounding could be."""
    top = logits.topk(2).values
    return (top[:, 0] - top[:, 1]) > GAP


def reference_from_gguf(path: Path) -> LlamaForCausalLM:
    """Transformers' Llama with weights dequantised by the gguf package.

    What `from_pretrained(gguf_file=...)` builds, in seconds instead of a minute or more.
    """
    reader = gguf.GGUFReader(path)

    def field(name: str):
        return reader.fields[f"llama.{name}"].contents()

    config = LlamaConfig(
        vocab_size=len(reader.fields["tokenizer.ggml.tokens"].data),
        hidden_size=field("embedding_length"),
        intermediate_size=field("feed_forward_length"),
        num_hidden_layers=field("block_count"),
        num_attention_heads=field("attention.head_count"),
        num_key_value_heads=field("attention.head_count_kv"),
        max_position_embeddings=field("context_length"),
        rms_norm_eps=field("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": field("rope.freq_base")},
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    weights = {}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        weights[_transformers_name(tensor.name)] = torch.from_numpy(
            _half_split(tensor.name, values, config)
        )
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    rotary = type(model.model.rotary_emb)(config)
    model.load_state_dict(weights, assign=True)
    model.model.rotary_emb = rotary  # its frequencies are a buffer that no file holds
    return model.eval()


def _transformers_name(name: str) -> str:
    tops = {"token_embd": "embed_tokens", "output_norm": "norm"}
    stem = name.removesuffix(".weight")
    if stem in tops:
        return f"model.{tops[stem]}.weight"
    _, layer, part = stem.split(".")
    parts = {
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
    }
    return f"model.layers.{layer}.{parts[part]}.weight"


def _half_split(name: str, values: np.ndarray, config: LlamaConfig) -> np.ndarray:
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for part, count in heads.items():
        if f".{part}." in name:
            pairs = values.reshape(count, -1, 2, values.shape[1])
            return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(values.shape))
    return np.array(values, dtype=np.float32)
