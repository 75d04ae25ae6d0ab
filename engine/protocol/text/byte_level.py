"""GPT-2's way of writing any byte as a printable character, and the way back."""

from typing import Final


def _byte_to_char() -> dict[int, str]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    mapping = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(0x100) if byte not in mapping)
    return mapping | {byte: chr(0x100 + rank) for rank, byte in enumerate(others)}


_CHAR_TO_BYTE: Final = {ord(char): byte for byte, char in _byte_to_char().items()}


def token_bytes(token: str) -> bytes:
    """The bytes a byte-level token stands for; characters outside the alphabet are themselves."""
    translated = token.translate(_CHAR_TO_BYTE)
    try:
        return translated.encode("latin-1")
    except UnicodeEncodeError:
        return token.encode()
