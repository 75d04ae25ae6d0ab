"""The cache namespace of a request, from the deployment's secret and the tenant's identity alone.

Architecture 4.2 is the contract. Every field is tagged and length-framed and an absent field is
left out, so two different inputs never encode alike, and absent is not empty.
"""

import hmac
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self
from uuid import UUID

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

INFO = b"evenhand/cache-ns/v1"
MAX_SCOPE_BYTES = 128


class NamespaceKind(StrEnum):
    """Who may share the namespace: all of a tenant, one scope of it, or one request."""

    TENANT = "tenant"
    NARROWED = "narrowed"
    PRIVATE = "private"


@dataclass(frozen=True, slots=True)
class NamespaceKey:
    """The key of one deployment and epoch (K_e); another epoch makes all old blocks unreachable."""

    secret: bytes = field(repr=False)

    @classmethod
    def for_epoch(cls, root: bytes, deployment_id: str, epoch: int) -> Self:
        """Derive from the `cache_ns` root; a deployment id is required, so that two never share."""
        if not deployment_id:
            raise ValueError("a deployment id is required")
        info = INFO + epoch.to_bytes(8, "big")
        hkdf = HKDF(algorithm=SHA256(), length=32, salt=deployment_id.encode(), info=info)
        return cls(hkdf.derive(root))


def _frame(tag: int, value: bytes) -> bytes:
    return tag.to_bytes(1, "big") + len(value).to_bytes(4, "big") + value


def derive(
    key: NamespaceKey,
    *,
    kind: NamespaceKind,
    group_id: UUID,
    generation: int,
    project_id: UUID | None = None,
    scope: str | None = None,
) -> str:
    """The 43-character namespace. Raises ValueError for a scope over 128 bytes or not UTF-8.

    `scope` is given exactly for the kinds below `tenant`: what the client chose, or what names the
    one request.
    """
    if (scope is None) is not (kind is NamespaceKind.TENANT):
        raise ValueError(f"kind {kind} and scope do not go together")
    message = _frame(1, kind.encode()) + _frame(2, group_id.bytes)
    message += _frame(3, generation.to_bytes(8, "big"))
    if project_id is not None:
        message += _frame(4, project_id.bytes)
    if scope is not None:
        raw = scope.encode()
        if len(raw) > MAX_SCOPE_BYTES:
            raise ValueError(f"a scope is at most {MAX_SCOPE_BYTES} bytes")
        message += _frame(5, raw)
    return urlsafe_b64encode(hmac.digest(key.secret, message, "sha256")).rstrip(b"=").decode()
