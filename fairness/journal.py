"""The lines of a pool's event log: a header, then numbered events, each sealed by a digest.

A segment is a header line and one line for every event; sequence numbers go on from segment to
segment. A line is a JSON list whose last item is a digest over the digest of the line before and
the rest of this line, so no line can be changed, dropped or moved unseen. That finds damage and
careless edits; whoever can write the log can also seal it again, and then only what the events say
gives the edit away (`fairness.audit`).
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import Any

from fairness.codec import (
    CodecError,
    Json,
    decode_config,
    decode_event,
    encode_config,
    encode_event,
)
from fairness.events import Event
from fairness.types import PoolConfig

FORMAT = 1
DIGEST_BYTES = 8
_HEADER = "header"
_TAIL = len(',""]') + 2 * DIGEST_BYTES
_DECODE = json.JSONDecoder().decode
_ENCODE = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class LineError(ValueError):
    """A line of a log is not what a log holds; `line` counts from 1 in its segment."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")
        self.line = line
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Header:
    """How a segment begins: `state` is the dispatcher before the event numbered `sequence`.

    `previous` is the digest of the last line before, "" in the first segment. `wall` is the time of
    day, in seconds since 1970, at which the events' clock showed `now`. `state` is a checkpoint.
    """

    pool: str
    segment: int
    incarnation: str
    epoch: int
    sequence: int
    previous: str
    wall: float
    now: float
    policy: str
    config: PoolConfig
    state: dict[str, Json]


@dataclass(frozen=True, slots=True)
class Entry:
    """One event as its line in a segment holds it; `intact` if its digest continues the chain."""

    line: int
    sequence: int
    event: Event
    digest: str
    intact: bool


class Sealer:
    """Writes lines one after the other; `sequence` is the number of the next event."""

    def __init__(self, sequence: int = 1, digest: str = "") -> None:
        self.sequence = sequence
        self.digest = digest

    def header(self, header: Header) -> bytes:
        """The header's line."""
        values: dict[str, Json] = {f.name: getattr(header, f.name) for f in fields(header)}
        values["config"] = encode_config(header.config)
        return self._seal(_ENCODE([_HEADER, {"format": FORMAT} | values]))

    def event(self, event: Event) -> bytes:
        """The event's line, under the next number."""
        line = self._seal(_ENCODE([self.sequence, encode_event(event)]))
        self.sequence += 1
        return line

    def _seal(self, text: str) -> bytes:
        body = text[:-1].encode()
        self.digest = _digest(self.digest, body)
        return b'%b,"%b"]\n' % (body, self.digest.encode())


def read_header(line: bytes, previous: str | None = None) -> tuple[Header, str]:
    """A segment's header and its digest, from its first line. Raises LineError.

    The digest must follow from `previous`, where that is known, else from what the header names.
    """
    body, digest, value = _open(1, line)
    if value[0] != _HEADER or not isinstance(value[1], dict):
        raise LineError(1, "a segment begins with a header")
    values = value[1]
    if values.get("format") != FORMAT:
        raise LineError(1, f"log format {values.get('format')!r}, this program reads {FORMAT}")
    header = _header({name: found for name, found in values.items() if name != "format"})
    if digest != _digest(header.previous if previous is None else previous, body):
        raise LineError(1, "the header's digest is wrong: it was changed, or what is before it")
    return header, digest


def read_entries(digest: str, lines: Iterable[bytes]) -> Iterator[Entry]:
    """The events of the lines after a header that has this digest. Raises LineError.

    After a line that is not intact the chain goes on from the digest which that line names.
    """
    for number, line in enumerate(lines, 2):
        body, named, value = _open(number, line)
        sequence, encoded = value
        if type(sequence) is not int:
            raise LineError(number, f"{sequence!r} is no sequence number")
        try:
            event = decode_event(encoded)
        except CodecError as error:
            raise LineError(number, f"event {sequence}: {error}") from None
        yield Entry(number, sequence, event, named, named == _digest(digest, body))
        digest = named


def digest_of(line: bytes) -> str:
    """The digest that a line names, right or wrong. Raises LineError."""
    return _open(0, line)[1]


def _open(number: int, line: bytes) -> tuple[bytes, str, list[Any]]:
    """A line's sealed part, its digest, and its items before the digest."""
    text = line.removesuffix(b"\n")
    try:
        value = _DECODE(text.decode("ascii"))
    except (ValueError, RecursionError):
        raise LineError(number, "no JSON") from None
    if not isinstance(value, list) or len(value) != 3 or type(value[2]) is not str:
        raise LineError(number, "a line is a list of three items, a digest the last")
    body, tail = text[:-_TAIL], text[-_TAIL:]
    if tail != b',"%b"]' % value[2].encode():
        raise LineError(number, "the digest is not in its place")
    return body, value[2], value[:2]


def _header(values: dict[str, Json]) -> Header:
    kinds = {"epoch": int, "segment": int, "sequence": int, "wall": float, "now": float}
    kinds |= {"pool": str, "incarnation": str, "previous": str, "policy": str}
    kinds |= {"config": dict, "state": dict}
    for name in sorted(kinds.keys() ^ values.keys()):
        problem = "is missing" if name in kinds else "is unknown"
        raise LineError(1, f"header: {name} {problem}")
    for name, wanted in kinds.items():
        found = values[name]
        if type(found) is not wanted and (wanted, type(found)) != (float, int):
            raise LineError(1, f"header: {name} is {found!r}")
    try:
        return Header(**(values | {"config": decode_config(values["config"])}))
    except CodecError as error:
        raise LineError(1, f"header: {error}") from None


def _digest(previous: str, body: bytes) -> str:
    return blake2b(body, digest_size=DIGEST_BYTES, key=previous.encode()).hexdigest()
