"""What the engine core refuses or reports; the server turns each into an answer."""


class CoreError(Exception):
    """Base of every error the engine core raises on purpose."""


class NeverFits(CoreError):  # noqa: N818 - a condition, named as callers say it
    """The prompt and one token exceed the context or an empty pool: waiting cannot help."""

    def __init__(self, num_prompt_tokens: int, max_tokens: int) -> None:
        super().__init__(
            f"a prompt of {num_prompt_tokens} tokens leaves no room for output: "
            f"a sequence holds at most {max_tokens} tokens"
        )
        self.num_prompt_tokens = num_prompt_tokens
        self.max_tokens = max_tokens


class QueueFull(CoreError):  # noqa: N818 - a condition, named as callers say it
    """The waiting queue is at its cap of `dimension` (`requests` or `tokens`): try again later."""

    def __init__(self, dimension: str, limit: int) -> None:
        super().__init__(f"the queue holds its limit of {limit} {dimension}")
        self.dimension = dimension
        self.limit = limit


class DuplicateRequest(CoreError):  # noqa: N818 - a condition, named as callers say it
    """A request with this id has not finished yet."""

    def __init__(self, request_id: str) -> None:
        super().__init__(f"request {request_id} has not finished yet")
        self.request_id = request_id


class RunnerContractError(CoreError):
    """The runner did not answer for a row that asked for a token or for scores."""


class NamespaceInUse(CoreError):  # noqa: N818 - a condition, named as callers say it
    """The namespace cannot be erased: this many requests hold blocks of it."""

    def __init__(self, num_requests: int) -> None:
        super().__init__(f"{num_requests} running requests use the namespace")
        self.num_requests = num_requests


class PinLimit(CoreError):  # noqa: N818 - a condition, named as callers say it
    """More blocks would be pinned than may be; nothing was."""

    def __init__(self, num_blocks: int, limit: int) -> None:
        super().__init__(f"{num_blocks} blocks would be pinned, at most {limit} may be")
        self.num_blocks = num_blocks
        self.limit = limit


class IntegrityError(CoreError):
    """An invariant of the block accounting does not hold: blocks are leaked or wrongly shared."""
