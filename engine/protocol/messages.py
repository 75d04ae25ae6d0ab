"""Read one chat message; what is not text is refused by the path of the part that is not."""

from typing import Any, Final

from engine.protocol.checks import (
    Field,
    Table,
    array,
    expect,
    invalid_type,
    invalid_value,
    json_object,
    only,
    read_object,
    text,
    unsupported,
)
from engine.protocol.requests import Message

MAX_NAME_BYTES: Final = 1024
MAX_PARTS: Final = 2**20
_ROLES: Final = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_TOOL_ROLES: Final = frozenset({"tool", "function"})
_OTHER_PARTS: Final = frozenset(
    {"image_url", "input_audio", "video_url", "audio_url", "file", "refusal"}
)


def _role(value: Any, path: str) -> str:
    role: str = expect(value, path, str, "a string")
    if role in _TOOL_ROLES:
        raise unsupported(path, "a tool's message")
    if role not in _ROLES:
        raise invalid_value(path, "it must be 'system', 'developer', 'user' or 'assistant'")
    return _ROLES[role]


def _part_type(value: Any, path: str) -> str:
    kind: str = expect(value, path, str, "a string")
    if kind in _OTHER_PARTS:
        raise unsupported(path, "content other than text")
    if kind != "text":
        raise invalid_value(path, "it must be 'text'")
    return kind


def _part(value: Any, path: str) -> str:
    """The part's type is read first, so that an image is refused as what it is."""
    part = expect(value, path, dict, "an object")
    if part.get("type") is not None:
        _part_type(part["type"], f"{path}.type")
    joined: str = read_object(part, path, _TEXT_PART)["text"]
    return joined


_PARTS: Final = array(_part, MAX_PARTS, empty=False)


def _content(value: Any, path: str) -> str:
    """Text, or text parts joined by line feeds, as vLLM joins them for the same templates."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise invalid_type(path, "a string or an array of content parts", value)
    return "\n".join(_PARTS(value, path))


def read_message(value: Any, path: str) -> Message:
    """A check: the message at `path`, its role and content in our terms."""
    members = read_object(value, path, _MESSAGE)
    return Message(role=members["role"], content=members["content"], name=members.get("name"))


_TEXT_PART: Final[Table] = {
    "type": Field(_part_type, required=True),
    "text": Field(text(), required=True),
    "prompt_cache_breakpoint": Field(json_object),
}
_MESSAGE: Final[Table] = {
    "role": Field(_role, required=True),
    "tool_calls": Field(only()),
    "function_call": Field(only()),
    "tool_call_id": Field(only()),
    "audio": Field(only()),
    "refusal": Field(only()),
    "annotations": Field(only([])),  # our own answers may be sent back as they were dumped
    "content": Field(_content, required=True),
    "name": Field(text(MAX_NAME_BYTES)),
}
