"""Turns one request's stream of events into one HTTP response, streamed or whole."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final

import orjson
from starlette.types import Send

from engine.core.batch import Logprobs
from engine.core.request import FinishReason
from engine.protocol import shapes, sse
from engine.protocol.requests import StreamOptions
from engine.protocol.shapes import OMIT, Head, TokenLogprob, UsageMember
from engine.server import asgi
from engine.server.answers import Dialect, Part
from engine.server.errors import SlowReader, answer
from engine.server.service import EngineService, Ticket
from engine.server.stream import Admitted, Delta, Failed, ListedToken, PromptScored
from engine.server.telling import TokenTeller

JsonObject = dict[str, Any]

_SSE_HEADERS: Final = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))


class Reply:
    """One response. `stream` or `whole` is called once."""

    def __init__(
        self,
        service: EngineService,
        dialect: Dialect,
        ticket: Ticket,
        delivery: StreamOptions,
        send: Send,
    ) -> None:
        self._dialect = dialect
        self._ticket = ticket
        self._sampling = ticket.sampling
        self._delivery = delivery
        self._send = send
        self._write_deadline_s = service.limits.write_deadline_s
        self._teller = TokenTeller(service.text, dialect, ticket.sampling)
        self._cached_tokens = 0
        self._output_tokens = [0] * ticket.sampling.n
        self._unfinished = ticket.sampling.n
        self._scores: list[Logprobs] = []
        self._head = Head(dialect.id_prefix + ticket.request_id, int(time.time()), service.model_id)
        self._headers = ((b"x-request-id", ticket.request_id.encode("ascii")),)

    # --- whole ---------------------------------------------------------------------------------

    async def whole(self) -> None:
        """One JSON body at the end."""
        answers = [_Whole() for _ in range(self._sampling.n)]
        while any(each.finish_reason is None for each in answers):
            match await self._ticket.stream.next():
                case Admitted(num_cached_tokens=cached):
                    self._cached_tokens = cached
                case PromptScored(logprobs=scores):
                    self._scores.extend(scores)
                case Failed(error=error):
                    raise error
                case Delta() as delta:
                    self._output_tokens[delta.choice] = delta.output_tokens
                    answers[delta.choice].append(delta)
        await asgi.send_json(self._send, 200, self._body(answers), self._headers)

    def _body(self, answers: "Sequence[_Whole]") -> JsonObject:
        parts = [self._choice(index, answer) for index, answer in enumerate(answers)]
        body = self._dialect.whole(self._head, parts, self._usage())
        targets = body["choices"] if self._dialect.prompt_in_choices else [body]
        for target in targets:
            target.update(self._about_prompt())
        return body

    def _choice(self, index: int, whole: "_Whole") -> Part:
        text = self._echo_text() + "".join(whole.texts)
        told = [*self._echoed(), *self._teller.told(whole.tokens)]
        return self._part(index, text, str(whole.finish_reason), told, whole.tokens)

    # --- streamed ------------------------------------------------------------------------------

    async def stream(self) -> None:
        """Server-sent events; the first when the request is admitted."""
        first = await self._ticket.stream.next()
        if isinstance(first, Failed):
            raise first.error
        if isinstance(first, Admitted):
            self._cached_tokens = first.num_cached_tokens
        await asgi.start(self._send, 200, sse.CONTENT_TYPE, [*_SSE_HEADERS, *self._headers])
        for index in range(self._sampling.n):
            await self._write(self._opening(index))
        if await self._write_events():
            if self._delivery.include_usage:
                await self._write(self._dialect.closing(self._head, self._usage()))
            await self._end(sse.DONE)

    def _opening(self, index: int) -> JsonObject:
        chunk = self._dialect.opening(self._head, index, self._running_usage())
        target = chunk["choices"][0] if self._dialect.prompt_in_choices else chunk
        target.update(self._about_prompt())
        return chunk

    async def _write_events(self) -> bool:
        """Until every answer has ended; False after a failure, which is then the last event.

        An echo comes before any answer, and waits for its scores: answers that begin earlier wait.
        """
        echo_due = self._ticket.echo is not None
        early: list[Delta] = []
        while self._unfinished:
            if echo_due and self._prompt_is_told():
                echo_due = False
                await self._write_echo()
                for delta in early:
                    await self._write_delta(delta)
                continue
            match await self._ticket.stream.next():
                case Failed(error=error):
                    await self._write(answer(error).body)
                    await self._end(b"")
                    return False
                case PromptScored(logprobs=scores):
                    self._scores.extend(scores)
                case Delta() as delta if echo_due:
                    early.append(delta)
                case Delta() as delta:
                    await self._write_delta(delta)
        return True

    def _prompt_is_told(self) -> bool:
        scored = len(self._scores) + 1
        return self._sampling.logprobs is None or scored >= len(self._ticket.prompt_token_ids)

    async def _write_echo(self) -> None:
        for index in range(self._sampling.n):
            part = self._part(index, self._echo_text(), None, self._echoed())
            await self._write(self._dialect.delta(self._head, part, self._running_usage()))

    async def _write_delta(self, delta: Delta) -> None:
        self._output_tokens[delta.choice] = delta.output_tokens
        reason = None
        if delta.finish_reason is not None:
            reason = delta.finish_reason.value
            self._unfinished -= 1
        elif not (delta.text or delta.tokens or self._delivery.continuous_usage_stats):
            return  # all of it is held back
        told = self._teller.told(delta.tokens)
        part = self._part(delta.choice, delta.text, reason, told, delta.tokens)
        await self._write(self._dialect.delta(self._head, part, self._running_usage()))

    async def _write(self, payload: JsonObject) -> None:
        await self._send_body(sse.encode(orjson.dumps(payload)), more=True)

    async def _end(self, body: bytes) -> None:
        await self._send_body(body, more=False)

    async def _send_body(self, body: bytes, *, more: bool) -> None:
        """Raises SlowReader when the client lets the deadline pass without reading."""
        try:
            async with asyncio.timeout(self._write_deadline_s):
                await self._send({"type": "http.response.body", "body": body, "more_body": more})
        except TimeoutError:
            raise SlowReader from None

    # --- both ----------------------------------------------------------------------------------

    def _part(
        self,
        index: int,
        text: str,
        reason: str | None,
        told: Sequence[TokenLogprob],
        tokens: Sequence[ListedToken] = (),
    ) -> Part:
        logprobs = self._teller.logprobs(told) if told or not self._delivery.stream else None
        extras = self._teller.ids(tokens) if tokens or not self._delivery.stream else {}
        return Part(text, reason, index, logprobs, extras)

    def _echo_text(self) -> str:
        return "" if self._ticket.echo is None else self._ticket.echo.text

    def _echoed(self) -> list[TokenLogprob]:
        if self._ticket.echo is None:
            return []
        return self._teller.echoed(self._ticket.prompt_token_ids, self._ticket.echo, self._scores)

    def _about_prompt(self) -> JsonObject:
        """What vLLM says about the prompt, where it was asked for."""
        members: JsonObject = {}
        if self._sampling.return_token_ids:
            members["prompt_token_ids"] = self._ticket.prompt_token_ids
        if self._sampling.prompt_logprobs is not None:
            members["prompt_logprobs"] = self._teller.prompt_logprobs(self._scores)
        return members

    def _usage(self) -> JsonObject:
        prompt_tokens = len(self._ticket.prompt_token_ids)
        return shapes.usage(prompt_tokens, sum(self._output_tokens), self._cached_tokens)

    def _running_usage(self) -> UsageMember:
        if self._delivery.continuous_usage_stats:
            return self._usage()
        return None if self._delivery.include_usage else OMIT


class _Whole:
    """One answer as it is collected."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.tokens: list[ListedToken] = []
        self.finish_reason: FinishReason | None = None

    def append(self, delta: Delta) -> None:
        self.texts.append(delta.text)
        self.tokens.extend(delta.tokens)
        self.finish_reason = delta.finish_reason
