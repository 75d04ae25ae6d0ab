"""Reads a pool's event log from segment to segment and says whether the pool kept its promises.

Three things are looked at. The lines: numbers, digests, and that every segment goes on where the
one before ended. The replay: a fresh dispatcher, fed with the inputs, must have exactly the logged
effects and come to every later checkpoint. And a book that shares nothing with the dispatcher
(`audit_book`), which holds grants, charges, passes, deadlines and gaps to docs/fairness.md: a fault
of the dispatcher itself shows only there.

Nobody can see from a log alone that its last events are gone, if what is left was sealed again.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from fairness import audit_inputs, checkpoint
from fairness.audit_book import Book
from fairness.audit_effects import Effects
from fairness.audit_opening import opened
from fairness.audit_report import Degraded, Place, Report
from fairness.audit_windows import Tallies
from fairness.checkpoint import CheckpointError
from fairness.codec import is_input
from fairness.events import (
    DegradedOff,
    DegradedOn,
    Effect,
    Event,
    Granted,
    Input,
    Pinned,
    Restarted,
)
from fairness.journal import Entry, Header, LineError, read_entries, read_header
from fairness.policy import VtcPolicy
from fairness.replay import Replay, restored


class Auditor:
    """Takes a log's segments in order, then `finish` gives the report.

    `span` and `window_s` choose what the figures are about, in seconds since 1970; all of the log
    that is given is checked.
    """

    def __init__(
        self,
        *,
        span: tuple[float | None, float | None] = (None, None),
        window_s: float | None = None,
    ) -> None:
        self._report = Report()
        self._tallies = Tallies(self._report, span, window_s)
        self._chain = _Chain(self._report)
        self._replay: Replay | None = None
        self._book: Book | None = None
        self._effects: Effects | None = None
        self._header: Header | None = None
        self._input: tuple[Input, Place] | None = None
        self._group: list[tuple[Effect, Place]] = []
        self._place = Place(0, 0, None, "nothing", None)
        self._missing: dict[str, float] = {}
        self._reported: set[tuple[str, str]] = set()
        self._wall = 0.0

    def segment(self, number: int, lines: Iterable[bytes], *, last: bool) -> None:
        """The next segment, as it is in its file; the last may end in half a line."""
        report, source = self._report, iter(lines)
        report.segments.append(number)
        line = 1
        try:
            header, digest = read_header(next(source, b""))
            if self._chain.link(number, header, digest):
                self._degrade(self._wall, header.wall, "part of the log is missing")
                self._lose()
            self._begin(header)
            for entry in read_entries(digest, self._whole(source, number, last=last)):
                line = entry.line
                self._entry(entry)
        except LineError as error:
            report.breach("damage", Place(number, error.line, None, "a line", None), error.problem)
            self._chain.lost()
            self._lose()
        self._end_segment(number, line, last=last)

    def finish(self) -> Report:
        """What was found."""
        if self._book is not None:
            for tenant in self._book.backlogged.values():
                if (head := self._book.head(tenant)) is not None:
                    self._tallies.waited(tenant, head, self._book.now)
        self._tallies.finish()
        for reason, start in self._missing.items():
            self._report.degraded.append(Degraded(start, None, reason))
        return self._report

    # --- lines --------------------------------------------------------------------------------

    def _whole(self, lines: Iterator[bytes], number: int, *, last: bool) -> Iterator[bytes]:
        for count, line in enumerate(lines, 2):
            if line.endswith(b"\n"):
                yield line
            elif last:
                self._report.open_end = True
                return
            else:
                raise LineError(count, f"segment {number} ends in half a line")

    def _begin(self, header: Header) -> None:
        """A segment begins: what is replayed must have come to its checkpoint."""
        place = Place(header.segment, 1, header.sequence, "checkpoint", header.wall)
        report, before = self._report, self._header
        self._header = header
        state = header.state
        if self._replay is not None:
            state = checkpoint.dump(self._replay.dispatcher)
            if different := _difference(state, header.state):
                report.breach("checkpoints", place, f"replayed, {different}")
        same = before is not None and (before.config, before.policy) == (
            header.config,
            header.policy,
        )
        if before is not None and not same and header.epoch == before.epoch:
            report.breach("segments", place, "the settings changed without a restart")
        try:
            if self._replay is None or not same:
                self._replay = Replay(restored(header, state))
                self._replay.now = header.now
            if self._book is None or not same:
                self._open(header, state)
        except (CheckpointError, KeyError, TypeError, ValueError) as error:
            report.breach("checkpoints", place, str(error))
            self._lose()
        report.pool, report.policy = header.pool, header.policy
        report.max_passes = header.config.max_passes
        report.urgent_share_allowed = header.config.urgent_share_milli / 1_000

    def _open(self, header: Header, state: dict[str, Any]) -> None:
        self._tallies.at(header.wall)
        self._tallies.restart()
        self._book = opened(header.config, state, self._tallies)
        fair = header.policy == VtcPolicy.name
        self._effects = Effects(self._book, self._complain, fair=fair)

    def _lose(self) -> None:
        """What the pool was is not known from here to the next checkpoint."""
        self._replay = self._book = self._effects = self._input = None
        self._group.clear()

    def _entry(self, entry: Entry) -> None:
        event = entry.event
        header = self._header
        if header is None:
            raise AssertionError("an entry before a header")
        wall = event.now - header.now + header.wall
        place = Place(header.segment, entry.line, entry.sequence, event, wall)
        if not self._chain.entry(entry, place):
            self._lose()
        if isinstance(event, Restarted):
            self._chain.epoch = event.epoch
        if self._replay is not None and (problem := self._replay.take(event)) is not None:
            self._report.breach("replay", place, problem)
            self._replay = None
        if is_input(event):
            self._end_group()
            self._input = (event, place)  # type: ignore[assignment]
        elif self._input is not None:
            self._group.append((event, place))  # type: ignore[arg-type]

    def _end_segment(self, number: int, line: int, *, last: bool) -> None:
        """All that an input leads to is in its own segment; only the log's end may lack some."""
        owed = self._replay.owed if self._replay is not None else ()
        if owed and last:
            self._report.open_end = True
            self._input = None
        elif owed:
            place = Place(number, line + 1, self._chain.sequence, owed[0], None)
            self._report.breach("replay", place, "this effect of the last input is missing")
            self._replay = None
        self._end_group()

    # --- the book -----------------------------------------------------------------------------

    def _end_group(self) -> None:
        """An input and all its effects are known: take them into the book."""
        if self._input is None:
            return
        event, place = self._input
        self._wall = place.at or 0.0
        self._tallies.at(self._wall)
        self._note_degraded(event)
        if self._book is not None and self._effects is not None:
            self._place = place
            audit_inputs.take(self._book, event, [effect for effect, _ in self._group])
            self._measure(self._book)
            for effect, where in self._group:
                self._place = where
                self._effects.take(effect)
                self._tallies.noted(effect, self._book)
                if isinstance(effect, Granted | Pinned):
                    self._measure(self._book)
            self._place = place
            self._effects.finish()
            self._tallies.spread(self._book)
        self._input = None
        self._group.clear()

    def _measure(self, book: Book) -> None:
        """Hold the tenants that changed to their bounds."""
        fair = self._report.policy == VtcPolicy.name
        for name in sorted(book.changed):
            tenant = book.tenants.get(name)
            if tenant is None or not tenant.backlogged:
                continue
            above = tenant.raw - book.floor * tenant.terms.weight_milli
            if fair and (above > tenant.above or -above > tenant.below):
                self._complain("bound", f"{name} is {above} from the floor, times its weight")
            gap = book.gaps.moved(name, tenant.served)
            self._tallies.gap(tenant, gap)
            pair = (name, gap.other or "")
            if gap.gap_norm > gap.bound_norm and pair not in self._reported:
                self._reported.add(pair)
                self._complain("gap", f"{name} and {gap.other}: {gap.gap_norm} of {gap.bound_norm}")
        book.changed.clear()
        self._report.largest_request = max(self._report.largest_request, book.largest.value)

    def _complain(self, check: str, problem: str) -> None:
        if self._tallies.inside:
            self._report.breach(check, self._place, problem)

    def _note_degraded(self, event: Event) -> None:
        match event:
            case DegradedOn(reason=reason):
                self._missing.setdefault(reason, self._wall)
            case DegradedOff(reason=reason):
                if reason in self._missing:
                    self._degrade(self._missing.pop(reason), self._wall, reason)
            case Restarted(epoch=epoch):
                for reason, start in self._missing.items():
                    self._degrade(start, self._wall, reason)
                self._missing.clear()
                self._degrade(self._wall, self._wall, f"restart, epoch {epoch}")
            case _:
                pass

    def _degrade(self, start: float, end: float, reason: str) -> None:
        self._report.degraded.append(Degraded(start, end, reason))


class _Chain:
    """Whether lines follow one another: numbers, digests, and segments."""

    def __init__(self, report: Report) -> None:
        self.sequence: int | None = None
        self.epoch = 0
        self._report = report
        self._digest: str | None = None
        self._segment: int | None = None
        self._line = 1
        self._incarnations: set[str] = set()

    def link(self, number: int, header: Header, digest: str) -> bool:
        """A segment begins; true if something is missing before it."""
        report = self._report
        here = Place(number, 1, header.sequence, "header", header.wall)
        if header.segment != number:
            report.breach("segments", here, f"the header is that of segment {header.segment}")
        missing = self._is_missing(number, header, here)
        if not missing and self._digest not in {None, header.previous}:
            report.breach("digests", here, "it does not go on from the last line before")
        if not missing and self.sequence is not None and header.epoch != self.epoch:
            report.breach("segments", here, f"epoch {header.epoch} after {self.epoch}")
        if report.first_sequence is None:
            report.first_sequence = header.sequence
        self._segment, self._digest, self.epoch = number, digest, header.epoch
        self.sequence, self._line = header.sequence, 1
        self._incarnations.add(header.incarnation)
        report.incarnations = len(self._incarnations)
        return missing

    def entry(self, entry: Entry, place: Place) -> bool:
        """A line; false if lines before it are missing or it is not in its place."""
        report = self._report
        if not entry.intact:
            report.breach("digests", place, "its digest does not follow from the line before")
        right = entry.sequence == self.sequence
        if not right:
            report.breach("numbering", place, f"event {self.sequence} should be here")
        self.sequence, self._digest, self._line = entry.sequence + 1, entry.digest, entry.line
        report.events += 1
        report.last_sequence = entry.sequence
        return right

    def lost(self) -> None:
        """Where the segment ends is not known."""
        self._digest = None

    def _is_missing(self, number: int, header: Header, here: Place) -> bool:
        report = self._report
        if self._segment is None:
            if number == 1 and header.sequence != 1:
                report.breach("numbering", here, "the first segment begins with event 1")
            return False
        if number != self._segment + 1:
            report.breach("segments", here, f"after segment {self._segment} others are missing")
            return True
        if header.sequence != self.sequence:
            end = Place(self._segment, self._line + 1, self.sequence, "nothing", None)
            problem = f"events are missing: the next segment begins with {header.sequence}"
            report.breach("numbering", end, problem)
            return True
        return False


def _difference(replayed: Any, logged: Any, path: str = "") -> str | None:
    """The first place where two JSON values differ, in words; None if they are equal."""
    if replayed == logged:
        return None
    if isinstance(replayed, dict) and isinstance(logged, dict) and replayed.keys() == logged.keys():
        pairs = [(f"{path}.{key}", replayed[key], logged[key]) for key in replayed]
    elif isinstance(replayed, list) and isinstance(logged, list) and len(replayed) == len(logged):
        pairs = [(f"{path}[{i}]", *pair) for i, pair in enumerate(zip(replayed, logged))]  # noqa: B905
    else:
        return f"{path.lstrip('.')} is {replayed!r}, not {logged!r}"
    return next(found for one in pairs if (found := _difference(one[1], one[2], one[0])))
