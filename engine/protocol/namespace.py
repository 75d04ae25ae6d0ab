"""The wire form of a cache namespace: 43 unpadded base64url characters, nothing else.

The gateway derives it, the engine refuses a request without it; both ask this one rule.
"""

import re
from typing import Final

_NAMESPACE: Final = re.compile(r"[A-Za-z0-9_-]{43}")


def is_namespace(text: object) -> bool:
    """Whether `text` is a string that is a namespace from its first to its very last character."""
    return isinstance(text, str) and _NAMESPACE.fullmatch(text) is not None
