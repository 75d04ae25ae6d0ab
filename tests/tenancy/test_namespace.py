"""The namespace against a second implementation, OpenSSL's vectors and adversarial pairs."""

import hashlib
import hmac
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenancy.namespace import NamespaceKey, NamespaceKind, derive

ROOT = bytes(range(32))
DEPLOYMENT = "deployment-1"
GROUP = UUID("11111111-2222-3333-4444-555555555555")
PROJECT = UUID("aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee")
KEY = NamespaceKey.for_epoch(ROOT, DEPLOYMENT, 1)
TENANT, NARROWED, PRIVATE = NamespaceKind.TENANT, NamespaceKind.NARROWED, NamespaceKind.PRIVATE


def sha(key, *parts):
    return hmac.new(key, b"".join(parts), hashlib.sha256).digest()


def reference(root, deployment, epoch, kind, group, generation, project, scope):
    """Architecture 4.2, written down a second time from the standard library alone."""
    prk = sha(deployment.encode("utf-8"), root)
    k_e = sha(prk, b"evenhand/cache-ns/v1", epoch.to_bytes(8, "big"), b"\x01")
    fields = [(1, kind.encode()), (2, group.bytes), (3, generation.to_bytes(8, "big"))]
    if project is not None:
        fields.append((4, project.bytes))
    if scope is not None:
        fields.append((5, scope.encode("utf-8")))
    message = b"".join(
        tag.to_bytes(1, "big") + len(value).to_bytes(4, "big") + value for tag, value in fields
    )
    return urlsafe_b64encode(sha(k_e, message)).decode().rstrip("=")


# Made with `openssl dgst -sha256 -mac HMAC` for each of the three steps.
VECTORS = [
    (1, TENANT, 1, None, None, "5suixeXGIyI1mu9F26zBDowXgDjPkptY-RIk6QH1lao"),
    (1, NARROWED, 1, None, "team-7", "oQ53gLTRmybY5rqYcIeDXb3chLQKb45wTUjFy2tsl1w"),
    (1, NARROWED, 1, None, "", "KrAP07jsdHC4OlF_QMOJ-qnR4Jy7CVm-gh8v_Y5YMJg"),
    (1, NARROWED, 1, PROJECT, "größe", "Iy-Pu1_AOUpCkRzK4GL-vh68GF8Q1Pn0SkacBONysj0"),
    (1, PRIVATE, 1, None, "req-1", "olMsm-4tDsge7ZyPFSe2dyUsRf08-3o7rRvwYIxRcK8"),
    (1, TENANT, 2, None, None, "ieHWSPskPss3BSJYeVhXzbxlG1kxUEMMa6OiQMLwekM"),
    (2, TENANT, 1, None, None, "bebtvv_BPC7IpF0hJMFFVUl8eIqJD3OyKOhbmfzXJTk"),
]


@pytest.mark.parametrize(("epoch", "kind", "generation", "project", "scope", "expected"), VECTORS)
def test_golden_vectors(epoch, kind, generation, project, scope, expected):
    key = NamespaceKey.for_epoch(ROOT, DEPLOYMENT, epoch)
    found = derive(
        key,
        kind=kind,
        group_id=GROUP,
        generation=generation,
        project_id=project,
        scope=scope,
    )
    assert found == expected


def test_epoch_key_is_the_one_openssl_derives():
    expected = "dc232dcd9625187c241bfb38ebd89b55c928b80ba4dd84ad3002e2345ad84f44"
    assert KEY.secret.hex() == expected


scopes = st.text(max_size=32).filter(lambda text: len(text.encode("utf-8", "ignore")) <= 128)
inputs = st.one_of(
    st.tuples(st.just(TENANT), st.none()),
    st.tuples(st.sampled_from([NARROWED, PRIVATE]), scopes),
)


@settings(deadline=None)
@given(
    root=st.binary(min_size=32, max_size=32),
    deployment=st.text(min_size=1, max_size=40),
    epoch=st.integers(0, 2**64 - 1),
    kind_scope=inputs,
    group=st.uuids(),
    generation=st.integers(0, 2**64 - 1),
    project=st.none() | st.uuids(),
)
def test_equals_the_second_implementation(
    root, deployment, epoch, kind_scope, group, generation, project
):
    kind, scope = kind_scope
    found = derive(
        NamespaceKey.for_epoch(root, deployment, epoch),
        kind=kind,
        group_id=group,
        generation=generation,
        project_id=project,
        scope=scope,
    )
    assert found == reference(root, deployment, epoch, kind, group, generation, project, scope)
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", found)
    assert len(urlsafe_b64decode(found + "=")) == 32


identities = st.tuples(
    inputs,
    st.sampled_from([GROUP, PROJECT]),
    st.integers(0, 2),
    st.sampled_from([None, GROUP, PROJECT]),
)


@settings(deadline=None)
@given(identities, identities)
def test_different_identities_never_share(one, other):
    def name(identity):
        (kind, scope), group, generation, project = identity
        return derive(
            KEY,
            kind=kind,
            group_id=group,
            generation=generation,
            project_id=project,
            scope=scope,
        )

    assert (name(one) == name(other)) == (one == other)


def test_fields_cannot_flow_into_each_other():
    """A scope that spells another field's frame is still a scope; absent is not empty."""
    forged = "\x04\x00\x00\x00\x10" + "a" * 16
    as_scope = derive(KEY, kind=NARROWED, group_id=GROUP, generation=1, scope=forged)
    with_project = derive(
        KEY,
        kind=NARROWED,
        group_id=GROUP,
        generation=1,
        project_id=UUID(bytes=b"a" * 16),
        scope="",
    )
    tenant = derive(KEY, kind=TENANT, group_id=GROUP, generation=1)
    empty = derive(KEY, kind=NARROWED, group_id=GROUP, generation=1, scope="")
    private = derive(KEY, kind=PRIVATE, group_id=GROUP, generation=1, scope="")
    assert len({as_scope, with_project, tenant, empty, private}) == 5


def test_deployments_and_epochs_are_apart():
    keys = {
        NamespaceKey.for_epoch(ROOT, deployment, epoch).secret
        for deployment in ("a", "b")
        for epoch in (1, 2)
    }
    assert len(keys) == 4
    with pytest.raises(ValueError, match="deployment id"):
        NamespaceKey.for_epoch(ROOT, "", 1)


@pytest.mark.parametrize(
    ("kind", "scope"),
    [(TENANT, ""), (NARROWED, None), (PRIVATE, None), (NARROWED, "x" * 129), (NARROWED, "ß" * 65)],
)
def test_refuses_scopes_that_do_not_fit(kind, scope):
    with pytest.raises(ValueError, match="scope"):
        derive(KEY, kind=kind, group_id=GROUP, generation=1, scope=scope)


def test_refuses_lone_surrogates():
    with pytest.raises(UnicodeEncodeError):
        derive(KEY, kind=NARROWED, group_id=GROUP, generation=1, scope="\ud800")


def test_the_key_does_not_show_itself():
    assert KEY.secret.hex() not in repr(KEY)
    assert str(KEY.secret) not in repr(KEY)
