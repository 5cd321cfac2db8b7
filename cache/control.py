"""Request controls (C5): `no-cache`, `no-store`, `max-age` as in an HTTP Cache-Control header. Pure."""

from dataclasses import dataclass

from .errors import CacheInputError

LONGEST_S = 2.0**31  # what HTTP takes a longer max-age for


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What a request allows: `no_cache` forbids answering from the cache, `no_store` forbids keeping the answer."""

    no_cache: bool = False
    no_store: bool = False
    max_age_s: float | None = None

    @classmethod
    def parse(cls, header: str) -> "Control":
        """From a header value such as `no-store, max-age=60`; unknown directives are ignored, as HTTP asks, and of
        several ages the shortest counts.

        Raises `CacheInputError` for a max-age that is not a whole number of seconds.
        """
        parts = [part.partition("=") for part in header.split(",")]
        words = [(name.strip().lower(), value.strip().strip('"')) for name, _, value in parts]
        names, ages = {name for name, _ in words}, [value for name, value in words if name == "max-age"]
        if not all(age.isascii() and age.isdecimal() for age in ages):
            raise CacheInputError("Cache-Control: max-age must be a whole number of seconds")
        return cls(
            no_cache="no-cache" in names,
            no_store="no-store" in names,
            max_age_s=min(LONGEST_S, *map(float, ages)) if ages else None,
        )
