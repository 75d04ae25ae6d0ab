"""How many samples and waiting prompt tokens the engine takes on, decided before any work is done.

Everything here runs on the event loop's thread and awaits nothing, so a burst of arrivals can
never pass a cap between its check and its count.
"""

from typing import Final

from engine.protocol.checks import invalid_value
from engine.server.errors import EngineBusy


class Places:
    """Counts what is taken: samples until they end, prompt tokens until they begin to run."""

    def __init__(self, max_samples: int, max_tokens: int) -> None:
        self.max_samples: Final = max_samples
        self.max_tokens: Final = max_tokens
        self.samples = 0
        self.tokens = 0

    def take(self, num_samples: int) -> "Place":
        """Room for one request's samples, which counts until `release`.

        Raises EngineBusy, or InvalidRequest for more samples than there are places at all.
        """
        if num_samples > self.max_samples:
            raise invalid_value("n", f"this engine has places for at most {self.max_samples}")
        if self.samples + num_samples > self.max_samples:
            raise EngineBusy
        self.samples += num_samples
        return Place(self, num_samples)

    def take_tokens(self, num_tokens: int) -> None:
        """Raises EngineBusy, and then takes nothing."""
        if self.tokens + num_tokens > self.max_tokens:
            raise EngineBusy
        self.tokens += num_tokens


class Place:
    """One request's share; `release` in the end gives all of it back, once."""

    __slots__ = ("_places", "_samples", "_tokens")

    def __init__(self, places: Places, num_samples: int) -> None:
        self._places: Final = places
        self._samples = num_samples
        self._tokens = 0

    def prompt(self, num_tokens: int) -> None:
        """The prompt has this many tokens and waits. Raises EngineBusy; the place is still held."""
        self._places.take_tokens(num_tokens)
        self._tokens = num_tokens

    def began(self) -> None:
        """The prompt runs and waits no more."""
        self._places.tokens -= self._tokens
        self._tokens = 0

    def release(self) -> None:
        """Nothing of the request is left; idempotent."""
        self.began()
        self._places.samples -= self._samples
        self._samples = 0
