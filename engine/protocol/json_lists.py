"""Objects of lists that come in pieces and are strung together, kept as the JSON they become.

An answer of many tokens, with twenty others beside each, is a million values. Written as they
come, they leave nothing to do at the end that would hold up the event loop, and little to keep.
"""

from typing import Any

import orjson


class JsonLists:
    """Pieces of one object, such as a choice's `logprobs`; all have the same members."""

    __slots__ = ("_lists", "_others")

    def __init__(self) -> None:
        self._lists: dict[str, list[bytes]] = {}
        self._others: dict[str, Any] = {}

    def append(self, piece: dict[str, Any]) -> None:
        """Add the items of each list to those of its name; a member that is no list just stays."""
        for name, value in piece.items():
            if not isinstance(value, list):
                self._others[name] = value
                continue
            written = self._lists.setdefault(name, [])
            if value:
                written.append(orjson.dumps(value)[1:-1])

    def extend(self, later: "JsonLists") -> None:
        """Add all pieces of another."""
        self._others |= later._others  # noqa: SLF001 - of the same class
        for name, written in later._lists.items():  # noqa: SLF001
            self._lists.setdefault(name, []).extend(written)

    def whole(self) -> dict[str, Any]:
        """The object, for orjson to write."""
        lists = {name: b"[%b]" % b",".join(written) for name, written in self._lists.items()}
        return {name: orjson.Fragment(text) for name, text in lists.items()} | self._others
