"""What transformers decodes under a request's options, and how far an engine is from it.

The options are applied by transformers' own processors and warpers, in the documented order;
frequency and presence penalties, which it lacks, by OpenAI's formula. Comparisons are
teacher-forced: the engine chooses every token itself, from its own logits and by its own rules,
and is then given the reference's to go on with.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig, LlamaForCausalLM
from transformers.generation import logits_process as theirs

from engine.core.batch import Logprobs, RunnerOutput, ScheduledBatch
from engine.core.engine_core import CoreConfig, EngineCore
from engine.core.preemption import PreemptionPolicy
from engine.core.request import FinishReason, Request, SamplingParams
from engine.runner.decoder_runner import DecoderRunner
from engine.runner.sampler import uniform

TOLERANCE = 1e-3
GAP = 2e-3  # between the two best logits
MARGIN = 1e-4  # of a drawn point inside its token's share


@dataclasses.dataclass(frozen=True)
class Decoding:
    """A prompt and what follows it, by the reference.

    `logits` [prompt + output - 1, vocabulary] are raw; row p predicts position p + 1. `clear[i]`
    says that no rounding decided output token i: the two best are `GAP` apart, or the drawn point
    is `MARGIN` inside the token's share.
    """

    prompt: tuple[int, ...]
    params: SamplingParams
    output: tuple[int, ...]
    logits: torch.Tensor
    clear: tuple[bool, ...]

    @property
    def finish_reason(self) -> FinishReason:
        stopped = self.output[-1] in self.params.stop_token_ids
        return FinishReason.STOP if stopped else FinishReason.LENGTH


def every_option(greedy: Sequence[int]) -> list[dict[str, Any]]:
    """Sixteen sets of sampling options, which together use every one.

    `greedy` is the prompt's plain continuation, of at least 8 tokens: rules about it must bite.
    """
    stops = frozenset(greedy[:3])
    words = ((greedy[0],), tuple(greedy[1:3]), tuple(greedy[4:7]))
    biases = ((greedy[0], -100.0), (greedy[3], -1.5), (7, 1.0), (250, 2.5))
    return [
        {},
        {"repetition_penalty": 1.7},
        {"frequency_penalty": 0.9, "logit_bias": ((7, 7.0), (9, 6.5))},
        {"presence_penalty": 1.4, "repetition_penalty": 0.8, "logit_bias": ((7, 7.0), (9, 6.5))},
        {"min_tokens": 4, "stop_token_ids": stops},
        {"bad_words": words},
        {"logit_bias": biases},
        {"allowed_token_ids": tuple(range(100, 160, 2))},
        {"temperature": 0.7},
        {"temperature": 1.0, "top_k": 12},
        {"temperature": 0.9, "top_p": 0.6},
        {"temperature": 1.0, "min_p": 0.08},
        {"temperature": 0.9, "min_p": 0.02, "top_k": 30, "top_p": 0.9},
        {"stop_token_ids": frozenset(greedy[5:6])},
        {
            "temperature": 1.2, "top_k": 40, "repetition_penalty": 1.2, "frequency_penalty": 0.5,
            "presence_penalty": 0.5, "logit_bias": biases, "bad_words": words, "min_tokens": 4,
            "stop_token_ids": stops,
        },
        {"frequency_penalty": -0.8, "presence_penalty": -0.5},
    ]  # fmt: skip


@torch.inference_mode()
def decode(model: LlamaForCausalLM, prompt: Sequence[int], params: SamplingParams) -> Decoding:
    """Decode until a stop token or `max_tokens`; the logits of all positions from one pass."""
    model.generation_config.eos_token_id = None  # what ends here, `params` says
    config = GenerationConfig(
        max_new_tokens=params.max_tokens,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=sorted(params.stop_token_ids) or None,
    )
    inputs = torch.tensor([prompt])
    tokens = model.generate(
        inputs,
        attention_mask=torch.ones_like(inputs),
        generation_config=config,
        logits_processor=theirs.LogitsProcessorList([_Picker(params, len(prompt))]),
    )
    output = tokens[0, len(prompt) :].tolist()
    whole = model(tokens[:, :-1], use_cache=False).logits[0].clone()
    clear = tuple(
        pick(whole[len(prompt) - 1 + index], params, prompt, output[:index])[1]
        for index in range(len(output))
    )
    return Decoding(tuple(prompt), params, tuple(output), whole, clear)


class _Picker(theirs.LogitsProcessor):
    """Leaves `generate` one token to choose: ours."""

    def __init__(self, params: SamplingParams, num_prompt: int) -> None:
        self._params = params
        self._num_prompt = num_prompt

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        tokens = input_ids[0].tolist()
        prompt, output = tokens[: self._num_prompt], tokens[self._num_prompt :]
        token, _ = pick(scores[0], self._params, prompt, output)
        only = torch.full_like(scores, -torch.inf)
        only[0, token] = 0
        return only


def pick(
    logits: torch.Tensor, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]
) -> tuple[int, bool]:
    """The reference's next token, and whether it is clear of rounding."""
    if params.temperature == 0:
        best = processed(logits, params, prompt, output).topk(2)
        return int(best.indices[0]), bool(best.values[0] - best.values[1] > GAP)
    shares = distribution(logits, params, prompt, output)
    sums = shares.cumsum(0)
    point = uniform(params.seed, len(output)) * float(sums[-1])
    token = int((sums > point).nonzero()[0, 0])
    bounds = (float(sums[token] - shares[token]), float(sums[token]))
    inner = [bound for bound in bounds if 0 < bound < sums[-1]]
    return token, all(abs(point - bound) > MARGIN for bound in inner)


def distribution(
    logits: torch.Tensor, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]
) -> torch.Tensor:
    """Probabilities [vocabulary] in fp64 that the next token is drawn from."""
    scores = processed(logits, params, prompt, output)[None]
    warpers = [theirs.TemperatureLogitsWarper(float(params.temperature))]
    if params.min_p:
        warpers.append(theirs.MinPLogitsWarper(params.min_p))
    if params.top_k:
        warpers.append(theirs.TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        warpers.append(theirs.TopPLogitsWarper(params.top_p))
    for warper in warpers:
        scores = warper(None, scores)
    return scores[0].double().softmax(-1)


def processed(
    logits: torch.Tensor, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]
) -> torch.Tensor:
    """The logits [vocabulary] after every rule that greedy decoding heeds too."""
    everything = torch.tensor([[*prompt, *output]])
    scores = logits.clone()[None]
    if params.allowed_token_ids is not None:
        allowed = list(params.allowed_token_ids)
        scores = theirs.PrefixConstrainedLogitsProcessor(lambda *_: allowed, 1)(everything, scores)
    if params.bad_words:
        words = [list(word) for word in params.bad_words]
        only_output = torch.tensor([list(output)], dtype=torch.int64)
        scores = theirs.NoBadWordsLogitsProcessor(words)(only_output, scores)
    if params.min_tokens and params.stop_token_ids:
        stops = sorted(params.stop_token_ids)
        scores = theirs.MinNewTokensLengthLogitsProcessor(len(prompt), params.min_tokens, stops)(
            everything, scores
        )
    if params.logit_bias:
        biases = {(token,): bias for token, bias in params.logit_bias}
        scores = theirs.SequenceBiasLogitsProcessor(biases)(everything, scores)
    if params.repetition_penalty != 1:
        penalty = theirs.RepetitionPenaltyLogitsProcessor(params.repetition_penalty)
        scores = penalty(everything, scores)
    counts = torch.tensor(list(output), dtype=torch.int64).bincount(minlength=len(logits))
    return scores[0] - params.frequency_penalty * counts - params.presence_penalty * (counts > 0)


@dataclasses.dataclass
class Answer:
    """What an engine made of one request, as its server would see it."""

    tokens: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[Logprobs | None] = dataclasses.field(default_factory=list)
    prompt_logprobs: dict[int, Logprobs] = dataclasses.field(default_factory=dict)
    finish_reason: FinishReason | None = None


class ForcingRunner:
    """A runner whose answers `force` may replace, once it has chosen them itself."""

    def __init__(self, runner: DecoderRunner) -> None:
        self._runner = runner
        self.forced: dict[str, tuple[int, ...]] = {}
        self.chosen: dict[str, list[int]] = defaultdict(list)

    def execute(self, batch: ScheduledBatch) -> RunnerOutput:
        output = self._runner.execute(batch)
        assert not output.failed, output.failed
        index = {row.request_id: len(row.output_token_ids) for row in batch.rows}
        sampled = {}
        for request_id, token in output.sampled.items():
            self.chosen[request_id].append(token.token_id)
            forced = self.forced.get(request_id)
            sampled[request_id] = (
                token
                if forced is None
                else dataclasses.replace(token, token_id=forced[index[request_id]])
            )
        return dataclasses.replace(output, sampled=sampled)


class Engine:
    """A whole engine core over a loaded model; requests given to it share its prefix cache."""

    def __init__(
        self, runner: DecoderRunner, config: CoreConfig, preemption: PreemptionPolicy | None = None
    ) -> None:
        self._runner = ForcingRunner(runner)
        self.core = EngineCore(config, self._runner, preemption)
        self._num_requests = 0

    def answer(self, *requests: tuple[Sequence[int], SamplingParams]) -> list[Answer]:
        """Answers to prompts under their options, all asked for at once."""
        ids = [self._add(prompt, params) for prompt, params in requests]
        return self._run(ids)

    def samples(self, prompt: Sequence[int], *params: SamplingParams) -> list[Answer]:
        """Answers to one prompt asked for as parallel samples."""
        ids = [self._next_id() for _ in params]
        self.core.add(
            *(
                Request(request_id, tuple(prompt), each, namespace="n" * 43)
                for request_id, each in zip(ids, params, strict=True)
            )
        )
        return self._run(ids)

    def difference(self, decodings: Sequence[Decoding]) -> "Difference":
        """How far teacher-forced answers are from the reference's, all asked for at once."""
        ids = [self._add(each.prompt, each.params, each.output) for each in decodings]
        difference = Difference()
        for request_id, expected, answer in zip(ids, decodings, self._run(ids), strict=True):
            difference.add(expected, answer, self._runner.chosen.pop(request_id))
        return difference

    def _next_id(self) -> str:
        self._num_requests += 1
        return str(self._num_requests)

    def _add(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        forced: tuple[int, ...] | None = None,
    ) -> str:
        request_id = self._next_id()
        if forced is not None:
            self._runner.forced[request_id] = forced
        self.core.add(Request(request_id, tuple(prompt), params, namespace="n" * 43))
        return request_id

    def _run(self, ids: Sequence[str]) -> list[Answer]:
        answers = {request_id: Answer() for request_id in ids}
        while self.core.has_work():
            report = self.core.step()
            assert not report.failed, report.failed
            for token in report.emitted:
                answer = answers[token.request_id]
                answer.tokens.append(token.token_id)
                answer.logprobs.append(token.logprobs)
                answer.finish_reason = token.finish_reason
            for prompt in report.scored:
                scores = answers[prompt.request_id].prompt_logprobs
                for position, score in enumerate(prompt.logprobs, prompt.start):
                    assert position not in scores, "scored twice"
                    scores[position] = score
        self.core.check_integrity()
        return list(answers.values())


@dataclasses.dataclass
class Difference:
    """How far teacher-forced answers were from the reference's."""

    tokens: int = 0
    near_ties: int = 0
    mismatches: int = 0
    misranked: int = 0
    scored_positions: int = 0
    largest_logprob_difference: float = 0.0

    def add(self, expected: Decoding, answer: Answer, chosen: Sequence[int]) -> None:
        """Count one request; what is not a matter of degree must be right at once."""
        params, prompt = expected.params, expected.prompt
        assert len(chosen) == len(expected.output)
        assert answer.finish_reason is expected.finish_reason
        self.tokens += len(chosen)
        self.near_ties += expected.clear.count(False)
        self.mismatches += sum(
            ours != reference and clear
            for ours, reference, clear in zip(chosen, expected.output, expected.clear, strict=True)
        )
        logprobs = expected.logits.double().log_softmax(-1)
        for position, ours, token in zip(
            range(len(prompt), len(prompt) + len(chosen)), answer.logprobs, chosen, strict=True
        ):
            self._add_scores(logprobs[position - 1], token, ours, params.logprobs)
        positions = range(1, len(prompt)) if params.prompt_logprobs is not None else range(0)
        assert list(answer.prompt_logprobs) == list(positions)
        for position, ours in answer.prompt_logprobs.items():
            self._add_scores(logprobs[position - 1], prompt[position], ours, params.prompt_logprobs)

    def _add_scores(
        self, reference: torch.Tensor, token: int, ours: Logprobs | None, count: int | None
    ) -> None:
        assert (ours is None) == (count is None)
        if ours is None:
            return
        best = reference.sort(descending=True).values[: len(ours.top)]
        assert ours.token_id == token
        assert len(ours.top) == min(count, len(reference))
        assert len(dict(ours.top)) == len(ours.top)
        at_least = int((reference >= reference[token] + GAP).sum())
        at_most = int((reference >= reference[token] - GAP).sum())
        self.misranked += not at_least < ours.rank <= at_most
        ids = torch.tensor([token, *(i for i, _ in ours.top)])
        values = torch.tensor([ours.logprob, *(p for _, p in ours.top)], dtype=torch.float64)
        gaps = [(values - reference[ids]).abs().max(), *(values[1:] - best).abs()]
        self.scored_positions += 1
        self.largest_logprob_difference = max(self.largest_logprob_difference, *map(float, gaps))
