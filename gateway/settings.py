"""The gateway's settings: `EVENHAND_*` variables over an optional TOML file; unknown names fail.

Only this module and the command line read the environment. Everything else takes values.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from tenancy.datadir import DataDir, default_root

PREFIX = "EVENHAND_"
MIB = 1024 * 1024
CONFIG_VARIABLE = "EVENHAND_CONFIG"
# Names read by other programs of this repository; the gateway only has to know they exist.
FOREIGN_PREFIXES = (
    *("EVENHAND_ENGINE__", "EVENHAND_CPU_KERNELS"),
    *("EVENHAND_ADMIN_", "EVENHAND_TEST_", "EVENHAND_BENCH_"),
)


class SettingsError(Exception):
    """A setting is unknown or wrong; the message names it and never shows a secret value."""


class ConfigurationError(Exception):
    """The settings are right but do not make a gateway; the message says what is missing."""


class GatewaySettings(BaseModel):
    """The gateway process: listeners, replicas, caps on clients, and deadlines in seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65_535)
    admin_host: str = "127.0.0.1"
    admin_port: int = Field(default=8001, ge=0, le=65_535)
    model: str = "smollm2-135m"
    tokenizer: Path | None = None
    engines: tuple[str, ...] = ()
    max_body_bytes: int = Field(default=2 * 1024 * 1024, gt=0)
    max_header_bytes: int = Field(default=16 * 1024, gt=0)
    max_header_fields: int = Field(default=64, gt=0)
    header_timeout_s: float = Field(default=10.0, gt=0)
    body_timeout_s: float = Field(default=30.0, gt=0)
    write_timeout_s: float = Field(default=30.0, gt=0)
    keep_alive_s: int = Field(default=75, gt=0)
    drain_s: float = Field(default=30.0, ge=0)
    upstream_read_timeout_s: float = Field(default=120.0, gt=0)
    capacity_interval_s: float = Field(default=1.0, gt=0)
    capacity_failures: int = Field(default=3, gt=0)
    revision_interval_s: float = Field(default=0.25, gt=0)
    store_silence_s: float = Field(default=10.0, gt=0)
    usage_flush_s: float = Field(default=0.2, gt=0)
    tokenizer_threads: int = Field(default=1, gt=0)


class FairnessSettings(BaseModel):
    """How a pool grants, and where that is recorded.

    Prices are service units per token, times seconds. `slack` is in a tenant's largest requests,
    `urgent_share` of the pool's service. `event_log` is a directory, "off", or None for the data
    directory's own.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    policy: Literal["vtc", "fcfs"] = "vtc"
    w_p: float = Field(default=1.0, ge=0, le=1_000)
    w_c: float = Field(default=0.1, ge=0, le=1_000)
    w_q: float = Field(default=2.0, ge=0, le=1_000)
    lookahead: int = Field(default=1, ge=0)
    load_factor: float = Field(default=1.25, ge=1)
    max_passes: int = Field(default=8, ge=0, le=1_000)
    slack: float = Field(default=1.0, ge=0, le=10)
    urgent_share: float = Field(default=0.05, ge=0, le=1)
    t_min: float | None = Field(default=None, gt=0)
    t_max: float | None = Field(default=None, gt=0)
    ttl: float = Field(default=120.0, gt=0, lt=600)
    flush_interval: float = Field(default=0.1, gt=0)
    event_log: Literal["off"] | Path | None = None
    segment_bytes: int = Field(default=16 * MIB, ge=64 * 1024)
    keep_bytes: int = Field(default=1024 * MIB, ge=0)

    @property
    def longest_deadline_s(self) -> float:
        """`t_max`, or three quarters of the time to live."""
        return 0.75 * self.ttl if self.t_max is None else self.t_max

    @property
    def shortest_deadline_s(self) -> float:
        """`t_min`, or two seconds where the longest deadline allows them."""
        return min(2.0, self.longest_deadline_s) if self.t_min is None else self.t_min

    @model_validator(mode="after")
    def _cached_never_dearer(self) -> "FairnessSettings":
        if self.w_c > self.w_p:
            raise ValueError("w_c must not exceed w_p: a cache hit may only lower a charge")
        return self

    @model_validator(mode="after")
    def _event_log_named(self) -> "FairnessSettings":
        if self.event_log == Path():  # an empty value, which would mean wherever it was started
            raise ValueError("event_log must name a directory, or be off")
        return self

    @model_validator(mode="after")
    def _deadlines_in_order(self) -> "FairnessSettings":
        if self.shortest_deadline_s > self.longest_deadline_s:
            raise ValueError("t_min must not exceed t_max: a deadline lies between them")
        if self.longest_deadline_s >= self.ttl:
            raise ValueError("t_max must be below ttl: a deadline may not outlast the wait")
        return self


class Settings(BaseSettings):
    """All the gateway reads. Raise `SettingsError` through `load`, never construct from a route."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True
    )

    data_dir: Path = Field(default_factory=default_root)
    database_url: str | None = None
    keyring_file: Path | None = None
    log_format: Literal["text", "json"] = "text"
    gateway: GatewaySettings = GatewaySettings()
    fairness: FairnessSettings = FairnessSettings()

    @property
    def effective_database_url(self) -> str:
        """`DATABASE_URL`, else SQLite in the data directory."""
        return self.database_url or DataDir(self.data_dir).database_url

    @property
    def effective_keyring_file(self) -> Path:
        """`KEYRING_FILE`, else the keyring in the data directory."""
        return self.keyring_file or DataDir(self.data_dir).keyring_path

    @property
    def event_log_dir(self) -> Path | None:
        """Where each pool's event log has its folder; None where nothing is recorded."""
        chosen = self.fairness.event_log
        if chosen == "off":
            return None
        return DataDir(self.data_dir).event_log_path if chosen is None else Path(chosen)

    @property
    def admin_socket(self) -> Path:
        """Where the running gateway answers local administration (0600). Raises DataDirError."""
        return DataDir(self.data_dir).gateway_socket

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments win over the environment, which wins over the TOML file."""
        del dotenv_settings, file_secret_settings
        table = InitSettingsSource(settings_cls, init_kwargs=_config_file(os.environ))
        return init_settings, env_settings, table


def _config_file(environ: Mapping[str, str]) -> dict[str, Any]:
    path = environ.get(CONFIG_VARIABLE)
    if not path:
        return {}
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{CONFIG_VARIABLE}={path}: {error}") from error


def _known(name: str) -> bool:
    if name == CONFIG_VARIABLE or name.startswith(FOREIGN_PREFIXES):
        return True
    top, _, rest = name.removeprefix(PREFIX).lower().partition("__")
    field = Settings.model_fields.get(top)
    if field is None:
        return False
    nested = field.annotation
    if isinstance(nested, type) and issubclass(nested, BaseModel):
        return not rest or rest in nested.model_fields
    return not rest


def load(**overrides: Any) -> Settings:
    """Settings from arguments, environment and file. Raises `SettingsError` naming the culprit."""
    unknown = sorted(n for n in os.environ if n.startswith(PREFIX) and not _known(n))
    if unknown:
        raise SettingsError(f"unknown settings: {', '.join(unknown)}")
    try:
        return Settings(**overrides)
    except ValueError as error:
        raise SettingsError(_without_values(error)) from error


def _without_values(error: ValueError) -> str:
    """Where and why, without pydantic's echo of the value: a value may be a secret."""
    details = getattr(error, "errors", None)
    if details is None:
        return str(error)
    return "; ".join(f"{_name(item['loc'])}: {item['msg']}" for item in details())


def _name(location: tuple[int | str, ...]) -> str:
    """A setting as its variable is called."""
    return PREFIX + "__".join(str(part).upper() for part in location)
