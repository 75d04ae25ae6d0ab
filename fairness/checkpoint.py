"""A dispatcher's whole state as JSON values, and back: what a segment of the event log begins with.

A dispatcher made of a checkpoint answers every later event as the one it was taken of would have.
Policies that keep books of their own are controls and are not kept.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from fairness.caps import caps
from fairness.counters import Account, Ticket
from fairness.credits import Replica
from fairness.dispatcher import Dispatcher
from fairness.policy import Policy
from fairness.prefixes import PrefixIndex
from fairness.types import MissReason, PoolConfig, ReplicaCapacity, TenantTerms

VERSION = 1

State = dict[str, Any]

# What is kept of an account; its queue and the sums over it come from the tickets.
_ACCOUNT = (
    *("in_flight", "unsettled", "open_output", "service", "uncharged_tokens", "reach_raw"),
    *("dip_raw", "blocked", "backlogged_since", "service_then", "mean_output"),
)


_FIELDS = {cls: [one.name for one in fields(cls)] for cls in (Ticket, TenantTerms, ReplicaCapacity)}


class CheckpointError(ValueError):
    """The values are not a checkpoint of this version; the message says where."""


def dump(dispatcher: Dispatcher) -> State:
    """The state between two events, as values that JSON keeps exactly."""
    pool, granter = dispatcher.pool, dispatcher.granter
    return {
        "version": VERSION,
        "now": pool.now,
        "floor": pool.ledger.floor,
        "credit": pool.ledger.credit,
        "service": pool.service,
        "arrivals": pool.num_arrivals,
        "stopped_at": granter.stopped_at,
        "misfits": granter.tallies.misfits,
        "overtakes_max": granter.tallies.overtakes_max,
        "missed": {reason.value: count for reason, count in granter.tallies.missed.items()},
        "pinned": None if pool.pinned is None else pool.pinned.request,
        "lane": {
            "level": pool.lane.level,
            "served": pool.lane.served,
            "grants": pool.lane.grants,
        },
        "rates": {"samples": list(pool.rates.samples), "window": _listed(pool.rates.window)},
        "prefixes": list(pool.prefixes),
        "accounts": [_account(account) for account in pool.ledger.accounts.values()],
        "replicas": [_replica(replica) for replica in pool.replicas.values()],
        "tickets": [_ticket(ticket) for ticket in pool.tickets.values()],
    }


def load(config: PoolConfig, policy: Policy, state: Mapping[str, Any]) -> Dispatcher:
    """The dispatcher that `dump` saw. Raises CheckpointError."""
    if state.get("version") != VERSION:
        raise CheckpointError(f"checkpoint version {state.get('version')!r}, not {VERSION}")
    try:
        return _load(config, policy, state)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"not a checkpoint: {error}") from error


def _load(config: PoolConfig, policy: Policy, state: Mapping[str, Any]) -> Dispatcher:
    dispatcher = Dispatcher(config, policy)
    pool, granter = dispatcher.pool, dispatcher.granter
    pool.now = state["now"]
    pool.service = state["service"]
    pool.num_arrivals = state["arrivals"]
    pool.prefixes = PrefixIndex(state["prefixes"])
    pool.lane.level = state["lane"]["level"]
    pool.lane.served = state["lane"]["served"]
    pool.lane.grants = state["lane"]["grants"]
    pool.rates.samples.extend(state["rates"]["samples"])
    pool.rates.refresh()
    if state["rates"]["window"] is not None:
        started, then = state["rates"]["window"]
        pool.rates.window = (started, then)
    granter.stopped_at = state["stopped_at"]
    granter.tallies.misfits = state["misfits"]
    granter.tallies.overtakes_max = state["overtakes_max"]
    granter.tallies.missed = {MissReason(name): n for name, n in state["missed"].items()}
    _load_accounts(dispatcher, state)
    _load_replicas(dispatcher, state)
    return dispatcher


def _load_accounts(dispatcher: Dispatcher, state: Mapping[str, Any]) -> None:
    """Accounts with their queues, so that ranks are right when accounts are taken in."""
    pool, ledger = dispatcher.pool, dispatcher.pool.ledger
    ledger.floor, ledger.credit = state["floor"], state["credit"]
    accounts = {}
    for kept in state["accounts"]:
        terms = TenantTerms(**kept["terms"])
        account = Account(
            kept["tenant"], terms, caps(terms, ledger.credit, pool.config), kept["raw"]
        )
        for name in _ACCOUNT:
            setattr(account, name, kept[name])
        accounts[account.tenant] = account
    for kept in state["tickets"]:
        ticket = Ticket(**{**kept, "prefix": tuple(kept["prefix"]), "stamp": 0})
        pool.tickets[ticket.request] = ticket
        if kept["stamp"]:
            pool.wait(accounts[ticket.tenant], ticket)
    for account in accounts.values():
        account.first = pool.head(account)
        ledger.add(account)


def _load_replicas(dispatcher: Dispatcher, state: Mapping[str, Any]) -> None:
    pool = dispatcher.pool
    for kept in state["replicas"]:
        replica = Replica(kept["id"], ReplicaCapacity(**kept["capacity"]), kept["accepting"])
        pool.replicas[replica.id] = replica
        for request in kept["held"]:
            replica.hold(pool.tickets[request])
    if state["pinned"] is not None:
        ticket = pool.tickets[state["pinned"]]
        pool.pin(ticket, pool.replicas[ticket.pinned_to or ""])
        pool.watch_expiry(ticket)


def _account(account: Account) -> State:
    kept: State = {"tenant": account.tenant, "terms": _fields(account.terms), "raw": account.raw}
    for name in _ACCOUNT:
        kept[name] = getattr(account, name)
    return kept


def _replica(replica: Replica) -> State:
    return {
        "id": replica.id,
        "capacity": _fields(replica.capacity),
        "accepting": replica.accepting,
        "held": list(replica.held),
    }


def _ticket(ticket: Ticket) -> State:
    kept = _fields(ticket)
    kept["prefix"], kept["stamp"] = list(ticket.prefix), int(bool(ticket.stamp))
    return kept


def _fields(value: Ticket | TenantTerms | ReplicaCapacity) -> State:
    """As `asdict`, which copies each value deeply: a gateway waits while this is done."""
    return {name: getattr(value, name) for name in _FIELDS[type(value)]}


def _listed(window: tuple[float, int] | None) -> list[float] | None:
    return None if window is None else list(window)
