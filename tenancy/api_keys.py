"""API keys as text: `eh_<env>_<id10>_<secret43><check6>`, minted, parsed and digested without I/O.

Fixed length and alphabet `[A-Za-z0-9_]`, so that secret scanners find a leaked key by `KEY_PATTERN`
and drop a fake one by its check: base62 CRC-32 of everything before it. The database holds only the
HMAC of the whole text under the keyring's pepper.
"""

import hmac
import re
import secrets
import zlib
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from tenancy.entities import ApiKey, Limits

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
KEY_PATTERN = r"eh_(live|test)_([A-Za-z0-9]{10})_[A-Za-z0-9]{43}[A-Za-z0-9]{6}"
MAX_LENGTH = 256

_KEY = re.compile(KEY_PATTERN)
_ID_LENGTH = 10
_SECRET_LENGTH = 43
_CHECK_LENGTH = 6


@dataclass(frozen=True, slots=True)
class KeyParts:
    """What a well-formed key says of itself; nothing here is proof of anything."""

    environment: str
    id: str


def _base62(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, 62)
        digits.append(ALPHABET[digit])
    return "".join(reversed(digits))


def _check(text: str) -> str:
    return _base62(zlib.crc32(text.encode()), _CHECK_LENGTH)


def mint(
    tenant_id: UUID,
    *,
    now: datetime,
    name: str = "",
    expires_at: datetime | None = None,
    environment: str = "live",
) -> tuple[ApiKey, str]:
    """A new key and its text, which exists nowhere else; 256 bits of randomness."""
    key_id = "".join(secrets.choice(ALPHABET) for _ in range(_ID_LENGTH))
    secret = _base62(int.from_bytes(secrets.token_bytes(32), "big"), _SECRET_LENGTH)
    body = f"eh_{environment}_{key_id}_{secret}"
    key = ApiKey(
        id=key_id,
        tenant_id=tenant_id,
        name=name,
        created_at=now,
        expires_at=expires_at,
        revoked_at=None,
        limits=Limits(),
    )
    return key, body + _check(body)


def parse(text: str) -> KeyParts | None:
    """The parts of a key, or None where length, alphabet or check are wrong. Constant work."""
    if len(text) > MAX_LENGTH:
        return None
    match = _KEY.fullmatch(text)
    if match is None or _check(text[:-_CHECK_LENGTH]) != text[-_CHECK_LENGTH:]:
        return None
    return KeyParts(environment=match[1], id=match[2])


def digest(pepper: bytes, text: str) -> bytes:
    """HMAC-SHA256 of the whole key: what is stored, compared and used as a cache key."""
    return hmac.digest(pepper, text.encode(), "sha256")
