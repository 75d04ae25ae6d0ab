"""The keyring file: made once, whole, private; anything doubtful is refused with its reason."""

import json
import os
import stat
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor

import pytest

from tenancy.errors import KeyringError
from tenancy.keyring import NAMES, Keyring


@pytest.fixture
def path(tmp_path):
    return tmp_path / "keyring.json"


def rewrite(path, change):
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def secrets_of(keyring):
    return [getattr(keyring, name).value for name in NAMES]


def test_create_then_load(path):
    created = Keyring.create(path)
    assert Keyring.load(path) == created
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {len(value) for value in secrets_of(created)} == {32}
    assert len(set(secrets_of(created))) == len(NAMES)
    assert created.epoch == 1
    assert created.deployment_id
    assert list(path.parent.iterdir()) == [path]  # no draft is left behind


def test_two_keyrings_share_nothing(tmp_path):
    one, other = Keyring.create(tmp_path / "a"), Keyring.create(tmp_path / "b")
    assert not set(secrets_of(one)) & set(secrets_of(other))
    assert one.deployment_id != other.deployment_id


def test_create_never_overwrites(path):
    Keyring.create(path)
    before = path.read_bytes()
    with pytest.raises(KeyringError, match="exists already"):
        Keyring.create(path)
    assert path.read_bytes() == before


def test_mode_is_private_whatever_the_umask(path):
    old = os.umask(0)
    try:
        Keyring.create(path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_all_that_start_at_once_agree(path):
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: Keyring.load_or_create(path), range(16)))
    assert len({keyring.deployment_id for keyring in found}) == 1
    assert list(path.parent.iterdir()) == [path]


def test_secrets_stay_out_of_repr(path):
    keyring = Keyring.create(path)
    for value in secrets_of(keyring):
        assert repr(value) not in repr(keyring)
        assert value.hex() not in repr(keyring)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o610, 0o601])
def test_refuses_a_file_open_to_others(path, mode):
    Keyring.create(path)
    path.chmod(mode)
    with pytest.raises(KeyringError, match="chmod 0600"):
        Keyring.load(path)


def test_refuses_links_folders_and_absence(tmp_path, path):
    Keyring.create(path)
    link = tmp_path / "link"
    link.symlink_to(path)
    for wrong in (link, tmp_path, tmp_path / "none"):
        with pytest.raises(KeyringError, match=str(wrong)):
            Keyring.load(wrong)
    with pytest.raises(KeyringError):
        Keyring.load_or_create(tmp_path / "no-such-folder" / "keyring.json")


def test_a_pipe_does_not_hang(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    with pytest.raises(KeyringError, match="regular"):
        Keyring.load(pipe)


def encoded(value):
    return b64encode(value).decode()


@pytest.mark.parametrize(
    ("secret", "reason"),
    [
        (encoded(os.urandom(31)), "32 bytes"),
        (encoded(os.urandom(33)), "32 bytes"),
        (encoded(b""), "32 bytes"),
        (encoded(bytes(32)), "sample"),
        (encoded(b"\xa5" * 32), "sample"),
        (encoded(bytes.fromhex("0123456789abcdef" * 4)), "sample"),
        (encoded(bytes(range(32))), "sample"),
        (encoded(bytes(range(255, 191, -2))), "sample"),
        (encoded(b"correct horse battery staple 42!"), "sample"),
        ("not base64!", "base64"),
        (17, "32 bytes"),
        (None, "32 bytes"),
    ],
)
def test_refuses_secrets_that_are_none(path, secret, reason):
    Keyring.create(path)
    rewrite(path, lambda document: document["keys"]["pepper"].update(secret=secret))
    with pytest.raises(KeyringError, match=reason) as caught:
        Keyring.load(path)
    if isinstance(secret, str) and secret:
        assert secret not in str(caught.value)


def test_refuses_one_secret_for_two_purposes(path):
    Keyring.create(path)
    rewrite(path, lambda d: d["keys"]["kek"].update(secret=d["keys"]["audit"]["secret"]))
    with pytest.raises(KeyringError, match="own"):
        Keyring.load(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(format=2),
        lambda d: d.update(epoch=0),
        lambda d: d.update(epoch=True),
        lambda d: d.update(epoch="1"),
        lambda d: d.update(epoch=2**63),
        lambda d: d.update(deployment_id=""),
        lambda d: d.update(deployment_id=7),
        lambda d: d.update(extra=1),
        lambda d: d.pop("epoch"),
        lambda d: d["keys"].pop("router"),
        lambda d: d["keys"].update(other={"version": 1, "secret": ""}),
        lambda d: d["keys"]["kek"].pop("version"),
        lambda d: d["keys"]["kek"].update(version=0),
        lambda d: d["keys"].update(kek=[]),
        lambda d: d.update(keys=None),
    ],
)
def test_refuses_any_other_shape(path, change):
    Keyring.create(path)
    rewrite(path, change)
    with pytest.raises(KeyringError, match=str(path)):
        Keyring.load(path)


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b"\xff\xfe", b'{"format": 1, "format": 1}', b"[" * 60_000, b" " * 70_000],
)
def test_refuses_what_is_no_keyring(path, raw):
    path.write_bytes(raw)
    path.chmod(0o600)
    with pytest.raises(KeyringError):
        Keyring.load(path)
