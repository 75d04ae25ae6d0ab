"""Keys as text: format, check, digest."""

import hashlib
import hmac
import re
import string
import zlib
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenancy import api_keys
from tenancy.entities import KeyStatus, Limits

NOW = datetime(2026, 11, 1, tzinfo=UTC)
BASE62 = string.digits + string.ascii_uppercase + string.ascii_lowercase


def minted():
    return api_keys.mint(uuid4(), now=NOW)


def check_of(body):
    """CRC-32 in base62, six digits, written a second time."""
    number, text = zlib.crc32(body.encode()), ""
    while number:
        text = BASE62[number % 62] + text
        number //= 62
    return text.rjust(6, "0")


def test_format():
    key, text = minted()
    match = re.fullmatch(r"eh_live_([0-9A-Za-z]{10})_([0-9A-Za-z]{43})([0-9A-Za-z]{6})", text)
    assert match
    assert match[1] == key.id
    assert match[3] == check_of(text[:-6])
    assert re.fullmatch(api_keys.KEY_PATTERN, text)


def test_a_new_key_is_active_and_has_no_limits():
    tenant_id = uuid4()
    ends = NOW + timedelta(days=1)
    key, _ = api_keys.mint(tenant_id, now=NOW, name="ci", expires_at=ends)
    assert (key.tenant_id, key.name, key.created_at, key.expires_at) == (tenant_id, "ci", NOW, ends)
    assert key.limits == Limits()
    assert key.revoked_at is None


def test_parse_gives_the_id_back():
    key, text = api_keys.mint(uuid4(), now=NOW, environment="test")
    assert api_keys.parse(text) == api_keys.KeyParts(environment="test", id=key.id)


def test_keys_do_not_repeat():
    texts = [minted()[1] for _ in range(200)]
    assert len({text.split("_")[2] for text in texts}) == 200
    assert len({text.split("_")[3] for text in texts}) == 200
    seen = set("".join(text.split("_")[3] for text in texts))
    assert seen == set(BASE62)


@settings(deadline=None)
@given(st.text(max_size=300))
def test_parse_refuses_any_other_text(text):
    assert api_keys.parse(text) is None


@settings(deadline=None)
@given(position=st.integers(0, 67), char=st.sampled_from(BASE62 + "_-. é\n\x00"))
def test_parse_refuses_every_change_of_one_character(position, char):
    """CRC-32 finds every change inside a window of 32 bits, so of one character too."""
    text = "eh_live_AAAAAAAAAA_" + "B" * 43
    text += check_of(text)
    changed = text[:position] + char + text[position + 1 :]
    assert (api_keys.parse(changed) is None) == (changed != text)


def test_parse_refuses_wrong_frames():
    _, text = minted()
    body = text[:-6]
    for wrong in (
        text + "\n",
        " " + text,
        text + "0",
        text[:-1],
        text.upper(),
        text.replace("eh_live", "sk_live"),
        text * 20,
        "",
    ):
        assert api_keys.parse(wrong) is None
    other = body.replace("_live_", "_prod_")
    assert api_keys.parse(other + check_of(other)) is None
    assert api_keys.parse(body + check_of(body)) is not None


def test_digest_is_hmac_sha256_of_the_whole_text():
    _, text = minted()
    pepper = bytes(range(32))
    assert api_keys.digest(pepper, text) == hmac.new(pepper, text.encode(), hashlib.sha256).digest()
    assert api_keys.digest(pepper, text) != api_keys.digest(pepper[::-1], text)


@pytest.mark.parametrize(
    ("expires", "revoked", "expected"),
    [
        (None, None, KeyStatus.ACTIVE),
        (NOW + timedelta(microseconds=1), None, KeyStatus.ACTIVE),
        (NOW, None, KeyStatus.EXPIRED),
        (NOW - timedelta(days=1), None, KeyStatus.EXPIRED),
        (None, NOW, KeyStatus.REVOKED),
        (NOW - timedelta(days=1), NOW, KeyStatus.REVOKED),
    ],
)
def test_status(expires, revoked, expected):
    from dataclasses import replace

    key = replace(minted()[0], expires_at=expires, revoked_at=revoked)
    assert key.status(NOW) is expected
