"""Every setting Shoal has, from keyword arguments, the environment (`SHOAL_*`) and `shoal.toml`, in that order.

The only reader of environment and configuration files; the rest of the package is handed plain values.
"""

import os
from pathlib import Path
from typing import Any, Literal

import platformdirs
from pydantic import Field, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from .errors import RouterError
from .policy import profiles_of


class BadSettings(RouterError, ValueError):
    """A setting has a value it cannot have; the message names the setting and where settings come from."""


class Settings(BaseSettings):
    """All settings; each field is also the variable `SHOAL_<FIELD>` and a key of `shoal.toml`."""

    model_config = SettingsConfigDict(env_prefix="SHOAL_", extra="forbid", frozen=True, protected_namespaces=())

    home: Path = Field(default_factory=lambda: Path(platformdirs.user_cache_dir("shoal", appauthor=False)))
    model: str = "smollm2-135m"
    dtype: str = "auto"
    threads: int | None = Field(default=None, ge=1, le=512)
    router_only: bool = False
    deep: str | None = None
    deep_url: str | None = None
    kb: Path | None = None
    faq: Path | None = None
    classifier: Path | None = None
    redis_url: str | None = None
    cold_log: bool = True
    cache_ttl_s: float = Field(default=24 * 3600.0, gt=0)
    cache_max_bytes: int = Field(default=256 * 1024 * 1024, gt=0)
    trace: Literal["off", "light", "full"] = "light"
    trace_days: float = Field(default=7.0, gt=0)
    trace_max_bytes: int = Field(default=64 * 1024 * 1024, gt=0)
    trace_text: bool = False
    layer_probe: bool = False
    depth_limit: float | None = Field(default=None, ge=0, le=1)
    profile: str = "balanced"
    profiles: dict[str, dict[str, Any]] = Field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    api_key: str | None = Field(default=None, repr=False)
    service: dict[str, Any] = Field(default_factory=dict)
    prices: dict[str, Any] = Field(default_factory=dict)
    ray: dict[str, Any] = Field(default_factory=dict)

    @field_validator("profiles")
    @classmethod
    def _profiles(cls, own: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        try:
            profiles_of(own)
        except RouterError as error:
            raise ValueError(str(error)) from None
        return own

    @property
    def kb_path(self) -> Path:
        return self.kb or self.home / "kb"

    @property
    def faq_path(self) -> Path:
        return self.faq or self.home / "faq"

    @property
    def cold_path(self) -> Path | None:
        return self.home / "cold" if self.cold_log else None

    @property
    def key_path(self) -> Path:
        return self.home / "keys.json"

    @property
    def trace_path(self) -> Path:
        return self.home / "traces.sqlite"

    @property
    def ledger_path(self) -> Path:
        return self.home / "ledger.sqlite"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, _config_file())


def _config_file() -> Path:
    return Path(os.environ.get("SHOAL_CONFIG", "shoal.toml"))


def load_settings(**overrides: Any) -> Settings:
    """Settings with `overrides` first (None means "not given"); raises `BadSettings` naming each wrong field."""
    if "SHOAL_CONFIG" in os.environ and not _config_file().is_file():
        raise BadSettings(f"SHOAL_CONFIG names {_config_file()}, which is not a file")
    try:
        settings = Settings(**{name: value for name, value in overrides.items() if value is not None})
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise BadSettings(f"{wrong} (from arguments, SHOAL_* variables or {_config_file()})") from None
    there = next((path for path in (settings.home, *settings.home.parents) if path.exists()), None)
    if there is not None and not there.is_dir():
        raise BadSettings(f"home: {there} is a file; SHOAL_HOME must name a folder, which is made where there is none")
    return settings
