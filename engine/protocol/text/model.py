"""A model as text sees it: its tokenizer, chat template and limits, loaded without any tensor.

Gateway and engine both load this, so that they agree on every token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os.path import lexists
from pathlib import Path
from typing import Any, Final

from engine.protocol.errors import InvalidRequest
from engine.protocol.requests import Message
from engine.protocol.text import gguf_roles, gguf_vocabulary, hf_vocabulary
from engine.protocol.text.chat_template import PROBE, ChatTemplate
from engine.protocol.text.detokenizer import Detokenizer
from engine.protocol.text.errors import ModelFileError
from engine.protocol.text.gguf import GgufFile
from engine.protocol.text.json_file import read_json
from engine.protocol.text.metadata import Metadata
from engine.protocol.text.model_file import ModelFile
from engine.protocol.text.template.program import InvalidTemplateError
from engine.protocol.text.tokenizer import TextTokenizer, unused_character

# Control tokens that end an answer under these names, whatever else the file declares.
_END_NAMES: Final = frozenset(
    {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|endoftext|>",
        "<end_of_turn>",
        "_<EOT>",
        "< EOT >",
    }
)
# What configurations leave to defaults of the reference implementation's classes.
_CONTEXTS: Final = {"llama": 2_048, "gemma3_text": 131_072, "gemma3": 131_072}
_TEMPLATE_FILE: Final = "chat_template.jinja"
_MAX_TEMPLATE_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class TextModel:
    """Encodes prompts and decodes answers for one model. Safe to share between threads."""

    model_id: str
    context_length: int
    eos_token_ids: frozenset[int]
    tokenizer: TextTokenizer
    template: ChatTemplate | None

    @property
    def vocab_size(self) -> int:
        """Token ids are below this; a model's logits may be wider."""
        return len(self.tokenizer.token_bytes)

    def token_bytes(self, token_id: int) -> bytes:
        """What a token stands for: its bytes, or a control token's name.

        b"" beyond the vocabulary: a model's logits may be wider.
        """
        return self._all_bytes[token_id] if token_id < len(self._all_bytes) else b""

    @cached_property
    def _all_bytes(self) -> tuple[bytes, ...]:
        table = list(self.tokenizer.token_bytes)
        for control in self.tokenizer.control:
            table[control.token_id] = control.text.encode()
        return tuple(table)

    @cached_property
    def max_prompt_bytes(self) -> int:
        """A prompt of more UTF-8 bytes than this has more tokens than the context."""
        return self.context_length * max(map(len, self.tokenizer.token_bytes), default=0)

    def encode(self, text: str) -> list[int]:
        """A completion's prompt; control tokens spelled in it stay ordinary text."""
        return self.tokenizer.encode(text)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """A conversation's prompt; raises InvalidRequest when the template refuses it.

        Control tokens come from the template only, never from what a message says.
        """
        if self.template is None:
            raise InvalidRequest(
                f"The model {self.model_id!r} has no chat template; use /v1/completions.",
                param="messages",
            )
        tokenizer = self.tokenizer
        texts = [text for message in messages for text in (message.content, message.name or "")]
        risky = frozenset(text for text in texts if tokenizer.needs_marks(text))
        marker = unused_character([*texts, self.template.source]) if risky else ""

        def safe(text: str) -> str:
            return tokenizer.mark(text, marker) if text in risky else text

        rendered = self.template.render([_as_mapping(message, safe) for message in messages])
        return tokenizer.encode_rendered(rendered, marker, self._template_parts)

    @cached_property
    def _template_parts(self) -> Mapping[str, tuple[int, ...]]:
        """What the template says by itself, encoded once: no part holds a client's text."""
        try:
            rendered = self.template.render(PROBE) if self.template is not None else ""
        except InvalidRequest:  # it wants another conversation than the shortest
            return {}
        parts = self.tokenizer.inner_parts(rendered)
        return {part: ids for part, ids in parts.items() if PROBE[0]["content"] not in part}

    def word_ids(self, word: str) -> tuple[tuple[int, ...], ...]:
        """The token sequences that spell `word` in the middle of a text and after a space.

        They are what must not be completed for the word never to be said (vLLM's `bad_words`).
        """
        bare = word.lstrip()
        spellings = (self.tokenizer.encode_inner(text) for text in (bare, f" {bare}"))
        return tuple(dict.fromkeys(tuple(ids) for ids in spellings))

    def detokenizer(self, prompt_ids: Sequence[int], *, special: bool = False) -> Detokenizer:
        """Decodes one answer to the given prompt; control tokens have text when `special`."""
        table = self._all_bytes if special else self.tokenizer.token_bytes
        return Detokenizer(table, prompt_ids)


def load_text_model(path: Path, model_id: str | None = None) -> TextModel:
    """From a GGUF file, or a folder with tokenizer.json and config.json; raises ModelFileError.

    `model_id` defaults to the file's stem or the folder's name.
    """
    if path.is_dir():
        return _from_folder(path, model_id or path.resolve().name)
    return _from_gguf(path, model_id or path.stem)


def _as_mapping(message: Message, safe: Any) -> dict[str, str]:
    fields = {"role": message.role, "content": safe(message.content)}
    return fields if message.name is None else {**fields, "name": safe(message.name)}


def _from_gguf(path: Path, model_id: str) -> TextModel:
    with GgufFile.open(path) as file:
        metadata = Metadata(path, file.metadata)
    architecture = metadata.text("general.architecture")
    tokenizer = gguf_vocabulary.build(metadata)
    roles = gguf_roles.declared_ids(metadata)
    tokens = metadata.texts("tokenizer.ggml.tokens")
    special = {
        f"{name}_token": tokens[roles[role]]
        for name, role in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
        if role in roles
    }
    source = metadata.text("tokenizer.chat_template", "")
    ends = {roles[role] for role in ("eos", "eot", "eom") if role in roles}
    return TextModel(
        model_id=model_id,
        context_length=_positive(path, metadata.integer(f"{architecture}.context_length")),
        eos_token_ids=_ends(tokenizer, ends),
        tokenizer=tokenizer,
        template=_template(path, source, special),
    )


def _from_folder(path: Path, model_id: str) -> TextModel:
    config_path = path / "config.json"
    config = read_json(config_path)
    settings = _optional_json(path / "tokenizer_config.json")
    tokenizer = hf_vocabulary.build(path / "tokenizer.json")
    special = {
        name: text
        for name in ("bos_token", "eos_token", "unk_token", "pad_token")
        if (text := _token_text(settings.get(name))) is not None
    }
    ids = {control.text: control.token_id for control in tokenizer.control}
    generation = _optional_json(path / "generation_config.json")
    declared = generation.get("eos_token_id", config.get("eos_token_id"))
    ends = _declared_ends(config_path, declared)
    if special.get("eos_token") in ids:
        ends.add(ids[special["eos_token"]])
    return TextModel(
        model_id=model_id,
        context_length=_positive(config_path, _context(config)),
        eos_token_ids=_ends(tokenizer, ends),
        tokenizer=tokenizer,
        template=_template(path, _template_source(path, settings), special),
    )


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if lexists(path) else {}  # a link to nothing is there, and damaged


def _context(config: Mapping[str, Any]) -> Any:
    """What a config.json says, in `text_config` where Gemma 3 nests it, or its family's default."""
    kind, inner = config.get("model_type"), config.get("text_config")
    fields = inner if kind == "gemma3" and isinstance(inner, dict) else config
    stated = fields.get("max_position_embeddings")
    return _CONTEXTS.get(str(kind)) if stated is None else stated


def _positive(path: Path, context_length: Any) -> int:
    if not isinstance(context_length, int) or isinstance(context_length, bool):
        raise ModelFileError(path, "does not say how long the model's context is")
    if context_length < 1:
        raise ModelFileError(path, f"gives the impossible context length {context_length}")
    return context_length


def _ends(tokenizer: TextTokenizer, declared: set[int]) -> frozenset[int]:
    named = {control.token_id for control in tokenizer.control if control.text in _END_NAMES}
    return frozenset(declared | named)


def _declared_ends(path: Path, declared: Any) -> set[int]:
    ids = declared if isinstance(declared, list) else [] if declared is None else [declared]
    if not all(isinstance(token_id, int) and token_id >= 0 for token_id in ids):
        raise ModelFileError(path, "has an eos_token_id that is not a token id")
    return set(ids)


def _token_text(value: Any) -> str | None:
    """Special tokens are written as a string or as an object with `content`."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _template_source(path: Path, settings: Mapping[str, Any]) -> str:
    if lexists(path / _TEMPLATE_FILE):
        return _template_text(path / _TEMPLATE_FILE)
    source = settings.get("chat_template")
    if isinstance(source, list):  # several named templates
        named = [item for item in source if isinstance(item, dict)]
        source = next((item.get("template") for item in named if item.get("name") == "default"), "")
    return source if isinstance(source, str) else ""


def _template_text(path: Path) -> str:
    with ModelFile(path) as file:
        if file.size > _MAX_TEMPLATE_BYTES:
            raise ModelFileError(path, "is too large for a chat template")
        try:
            return file.read(0, file.size).decode()
        except UnicodeDecodeError as error:
            raise ModelFileError(path, "is not UTF-8 text") from error


def _template(path: Path, source: str, special: Mapping[str, str]) -> ChatTemplate | None:
    if not source:
        return None
    try:
        return ChatTemplate(source, special)
    except InvalidTemplateError as error:
        raise ModelFileError(path, f"its chat template {error}") from error
