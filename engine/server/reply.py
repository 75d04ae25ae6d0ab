"""Turns one request's stream of events into one HTTP response, streamed or whole."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import orjson
from starlette.types import Send

from engine.core.batch import Logprobs
from engine.core.request import FinishReason
from engine.protocol import shapes, sse
from engine.protocol.json_lists import JsonLists
from engine.protocol.requests import StreamOptions
from engine.protocol.shapes import OMIT, Head, TokenLogprob, UsageMember
from engine.server import asgi
from engine.server.answers import Dialect, Part
from engine.server.errors import SlowReader, answer
from engine.server.service import EngineService, Ticket
from engine.server.stream import Admitted, Delta, Failed, ListedToken, PromptScored
from engine.server.telling import TokenTeller

JsonObject = dict[str, Any]

_PIECE_BYTES: Final = 1 << 18
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
        self._scores: list[Logprobs] = []  # of the prompt, for its echo
        self._prompt_lists = JsonLists()
        if ticket.sampling.prompt_logprobs is not None:
            self._prompt_lists.append({"prompt_logprobs": [None]})  # the first token has none
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
                    self._take_scores(scores)
                case Failed(error=error):
                    raise error
                case Delta() as delta:
                    answers[delta.choice].append(self._delta(delta))
        await self._send_whole(orjson.dumps(self._body(answers)))

    async def _send_whole(self, body: bytes) -> None:
        """In pieces, each of which must find the client reading: an answer can be very long."""
        length = (b"content-length", str(len(body)).encode("ascii"))
        await asgi.start(self._send, 200, "application/json", [length, *self._headers])
        for start in range(0, len(body), _PIECE_BYTES):
            stop = start + _PIECE_BYTES
            await self._send_body(body[start:stop], more=stop < len(body))

    def _body(self, answers: "Sequence[_Whole]") -> JsonObject:
        echo = _Whole()
        echo.append(self._echo())
        parts = [each.after(echo, index) for index, each in enumerate(answers)]
        body = self._dialect.whole(self._head, parts, self._usage())
        targets = body["choices"] if self._dialect.prompt_in_choices else [body]
        about_prompt = self._about_prompt()
        for target in targets:
            target.update(about_prompt)
        return body

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
                    self._take_scores(scores)
                case Delta() as delta if echo_due:
                    early.append(delta)
                case Delta() as delta:
                    await self._write_delta(delta)
        return True

    def _prompt_is_told(self) -> bool:
        scored = len(self._scores) + 1
        return self._sampling.logprobs is None or scored >= len(self._ticket.prompt_token_ids)

    async def _write_echo(self) -> None:
        echo = self._echo()
        for index in range(self._sampling.n):
            part = replace(echo, index=index)
            await self._write(self._dialect.delta(self._head, part, self._running_usage()))

    async def _write_delta(self, delta: Delta) -> None:
        part = self._delta(delta)
        if part.finish_reason is not None:
            self._unfinished -= 1
        elif not (delta.text or delta.tokens or self._delivery.continuous_usage_stats):
            return  # all of it is held back
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

    def _delta(self, delta: Delta) -> Part:
        """A piece of one choice in words; its tokens count as used from now on."""
        self._output_tokens[delta.choice] = delta.output_tokens
        told, tokens = self._teller.told(delta.tokens), delta.tokens
        return self._part(delta.choice, delta.text, delta.finish_reason, told, tokens)

    def _echo(self) -> Part:
        """The prompt as the beginning of a choice; nothing where no echo was asked for."""
        echo = self._ticket.echo
        if echo is None:
            return self._part(0, "", None, ())
        told = self._teller.echoed(self._ticket.prompt_token_ids, echo, self._scores)
        return self._part(0, echo.text, None, told)

    def _part(
        self,
        index: int,
        text: str,
        reason: FinishReason | None,
        told: Sequence[TokenLogprob],
        tokens: Sequence[ListedToken] = (),
    ) -> Part:
        logprobs = self._teller.logprobs(told) if told or not self._delivery.stream else None
        extras = self._teller.ids(tokens) if tokens or not self._delivery.stream else {}
        return Part(text, None if reason is None else reason.value, index, logprobs, extras)

    def _take_scores(self, scores: Sequence[Logprobs]) -> None:
        if self._sampling.echo:
            self._scores.extend(scores)
        if self._sampling.prompt_logprobs is not None:
            self._prompt_lists.append({"prompt_logprobs": self._teller.prompt_logprobs(scores)})

    def _about_prompt(self) -> JsonObject:
        """What vLLM says about the prompt, where it was asked for."""
        members = self._prompt_lists.whole()
        if self._sampling.return_token_ids:
            members["prompt_token_ids"] = self._ticket.prompt_token_ids
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
        self.finish_reason: str | None = None
        self._texts: list[str] = []
        self._logprobs = JsonLists()
        self._extras = JsonLists()

    def append(self, part: Part) -> None:
        """Take a piece; the last one says why the answer ended."""
        self.finish_reason = part.finish_reason
        self._texts.append(part.text)
        self._logprobs.append(part.logprobs or {})
        self._extras.append(part.extras)

    def after(self, echo: "_Whole", index: int) -> Part:
        """The whole choice, which begins with an echo of the prompt."""
        logprobs, extras = JsonLists(), JsonLists()
        for each in (echo, self):
            logprobs.extend(each._logprobs)  # noqa: SLF001 - of the same class
            extras.extend(each._extras)  # noqa: SLF001
        text = "".join([*echo._texts, *self._texts])  # noqa: SLF001
        return Part(text, self.finish_reason, index, logprobs.whole() or None, extras.whole())
