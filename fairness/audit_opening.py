"""Opens the audit's book with the checkpoint that a segment begins with.

Only the first segment's is taken on trust: what is before it is gone. Every later one is compared
with the replayed state.
"""

from collections.abc import Mapping
from typing import Any

from fairness.audit_accounts import Replica, Request, Tenant
from fairness.audit_book import Book, Watcher
from fairness.audit_limits import limits_of
from fairness.types import PoolConfig, ReplicaCapacity, TenantTerms

_OF_TENANT = ("service", "in_flight", "unsettled", "open_output", "blocked")
_OF_REQUEST = (
    *("request", "tenant", "arrival", "enqueued_at", "prompt_tokens", "max_output_tokens"),
    *("sequences", "charged", "corrected", "replica", "passes", "overtakes", "deadline", "left_s"),
    "missed",
)


def opened(config: PoolConfig, state: Mapping[str, Any], watcher: Watcher) -> Book:
    """A book that goes on from the state. Raises KeyError and TypeError where it is none."""
    book = Book(config, watcher)
    book.now, book.floor, book.credit = state["now"], state["floor"], state["credit"]
    book.arrivals, book.room = state["arrivals"], state["lane"]["level"]
    for kept in state["accounts"]:
        book.take_in(_tenant(book, kept))
    for kept in state["tickets"]:
        _take_request(book, kept)
    for kept in state["replicas"]:
        held = {name: book.requests[name] for name in kept["held"]}
        capacity = ReplicaCapacity(**kept["capacity"])
        book.replicas[kept["id"]] = Replica(capacity, kept["accepting"], held)
    if state["pinned"] is not None:
        _take_pin(book, state)
    for kept in state["accounts"]:
        if kept["backlogged_since"] is not None:
            book.mark_backlogged(book.tenants[kept["tenant"]])
    return book


def _tenant(book: Book, kept: Mapping[str, Any]) -> Tenant:
    terms = TenantTerms(**kept["terms"])
    limits = limits_of(terms, book.credit, book.config)
    tenant = Tenant(kept["tenant"], terms, limits, kept["raw"])
    for name in _OF_TENANT:
        setattr(tenant, name, kept[name])
    tenant.above, tenant.below = kept["reach_raw"], kept["dip_raw"]
    return tenant


def _take_request(book: Book, kept: Mapping[str, Any]) -> None:
    request = Request(**{name: kept[name] for name in _OF_REQUEST})
    request.output = kept["output_tokens"]
    request.lent, request.spent = kept["urgent_cost"], kept["urgent_spent"]
    book.requests[request.request] = request
    if kept["stamp"]:
        book.queue(request)


def _take_pin(book: Book, state: Mapping[str, Any]) -> None:
    (kept,) = (one for one in state["tickets"] if one["request"] == state["pinned"])
    book.pinned, book.pinned_to = book.requests[state["pinned"]], kept["pinned_to"]
    book.watch_expiry(book.pinned)
