r"""What a model's tokens are called in answers: engines name them by id, and we know the rest.

A token that is only a part of a character is called `bytes:\xf0\x9f`, as at OpenAI, so that no two
of them look alike. A control token shows its name, and stands for no bytes.
"""

from collections.abc import Sequence

from engine.protocol.shapes import TokenLogprob
from engine.protocol.text.detokenizer import Detokenizer
from engine.protocol.text.tokenizer import TextTokenizer
from gateway.engines.port import ScoredToken


class Spelling:
    """The names and bytes of one model's tokens."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._bytes = tokenizer.token_bytes
        self._control = {control.token_id: control.text for control in tokenizer.control}

    def data(self, token_id: int) -> bytes:
        """Its part of a text, in UTF-8; empty for control tokens and a vocabulary's padding."""
        return self._bytes[token_id] if token_id < len(self._bytes) else b""

    def name(self, token_id: int) -> str:
        """Its text, if it has one of its own."""
        data = self.data(token_id)
        if not data:
            return self._control.get(token_id) or f"token_id:{token_id}"
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def offsets(self, before: Sequence[int]) -> "TextOffsets":
        """For one text, which begins after the tokens `before` it."""
        return TextOffsets(Detokenizer(self._bytes, before))

    def tell(self, scored: ScoredToken, num_top: int, offset: int) -> TokenLogprob:
        """A scored token and the `num_top` likeliest in its place, as answers show them."""
        likeliest = sorted(scored.top, key=lambda each: -each[1])[:num_top]
        return TokenLogprob(
            self.name(scored.token_id),
            self.data(scored.token_id),
            scored.logprob,
            tuple(TokenLogprob(self.name(i), self.data(i), logprob) for i, logprob in likeliest),
            offset,
        )


class TextOffsets:
    """Where each token of one text begins in it, in characters."""

    def __init__(self, detokenizer: Detokenizer) -> None:
        self._detokenizer = detokenizer
        self._position = 0

    def step(self, token_id: int) -> int:
        """Where the next token begins, which is after a character that it cuts off."""
        before = self._position
        self._position += len(self._detokenizer.push(token_id))
        return before + self._detokenizer.num_earlier
