"""Turns output token ids into text piece by piece, exactly as the whole would decode.

A piece never ends inside a character; the work per token does not depend on what came before.
"""

import codecs
from collections.abc import Sequence
from typing import Final

_LONGEST_PARTIAL: Final = 3  # bytes of a UTF-8 character that is not yet whole


class Detokenizer:
    """Decodes one sequence's output tokens; control tokens have no text.

    `token_bytes[id]` is what a token stands for. A prompt may end inside a character that the
    output completes: then the whole character belongs to the output.
    """

    def __init__(self, token_bytes: Sequence[bytes], prompt_ids: Sequence[int]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._prompt_tail = self._partial_tail(prompt_ids)
        self.num_earlier = 0
        """Characters of the latest text that began before its token: 1 if it cut one off."""

    @property
    def partial(self) -> bool:
        """Whether the latest character is not whole yet."""
        return bool(self._prompt_tail) or self._in_character()

    def push(self, token_id: int) -> str:
        """The text that this token completes; "" while a character is incomplete."""
        data = self._bytes_of(token_id)
        self.num_earlier = 0
        if self._prompt_tail and data:
            if _continues(data):
                _decode(self._decoder, self._prompt_tail)
            self._prompt_tail = b""
        if data and self._in_character():
            return self._go_on(data)
        return _decode(self._decoder, data)

    def _in_character(self) -> bool:
        return bool(self._decoder.getstate()[0])

    def _go_on(self, data: bytes) -> str:
        """What follows a character's first bytes: its first byte completes it, or cuts it off."""
        begun = _decode(self._decoder, data[:1])
        if begun:  # its last character is the one that the first byte is in, if that is whole
            self.num_earlier = len(begun) - (not self._in_character())
        return begun + _decode(self._decoder, data[1:])

    def flush(self) -> str:
        """What is left at the end: U+FFFD for a character that never became whole."""
        return self._decoder.decode(b"", final=True)

    def _bytes_of(self, token_id: int) -> bytes:
        # A model's logits may be wider than its vocabulary: padding rows stand for nothing.
        return self._token_bytes[token_id] if token_id < len(self._token_bytes) else b""

    def _partial_tail(self, prompt_ids: Sequence[int]) -> bytes:
        tail = b""
        for token_id in reversed(prompt_ids):
            data = self._bytes_of(token_id)
            if not data:
                break
            tail = data + tail
            if len(tail) >= _LONGEST_PARTIAL:
                break
        probe = codecs.getincrementaldecoder("utf-8")("replace")
        _decode(probe, tail[-_LONGEST_PARTIAL:])
        return probe.getstate()[0]


def _decode(decoder: codecs.IncrementalDecoder, data: bytes) -> str:
    """What is certain now. Half a surrogate is, though the decoder waits for its third byte."""
    text = decoder.decode(data)
    pending = decoder.getstate()[0]
    if len(pending) == 2 and pending[0] == 0xED and pending[1] >= 0xA0:
        return text + decoder.decode(b"", final=True)
    return text


def _continues(data: bytes) -> bool:
    """Whether the first byte is one that only continues a character."""
    return data[0] & 0xC0 == 0x80
