"""Everything the tenancy package raises on purpose, under one base."""


class TenancyError(Exception):
    """Base of this package's errors; the text is one line, safe to show to an administrator."""


class InvalidValueError(TenancyError):
    """A value outside what its field allows."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class NotFoundError(TenancyError):
    """No tenant, plan or key goes by that name."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"no {kind} {name!r}")
        self.kind = kind
        self.name = name


class SlugTakenError(TenancyError):
    """Another tenant already has the slug."""

    def __init__(self, slug: str) -> None:
        super().__init__(f"tenant {slug!r} exists already")
        self.slug = slug


class StoreUnavailableError(TenancyError):
    """The database did not answer or did not accept us; nothing was written."""


class SchemaMissingError(TenancyError):
    """The database answers but has not been migrated."""

    def __init__(self) -> None:
        super().__init__("the database has no schema yet: run `evenhand migrate`")


class DatabaseUrlError(TenancyError):
    """A database URL of a kind that is not supported."""


class KeyringError(TenancyError):
    """The keyring file is missing, open to others, or holds secrets that must not be used."""


class DataDirError(TenancyError):
    """The data directory cannot be made or used."""
