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
        """From a header value such as `no-store, max-age=60`; unknown directives are ignored, as HTTP asks.

        Raises `CacheInputError` for a max-age that is not a whole number of seconds.
        """
        words = {
            name.strip().lower(): value.strip().strip('"')
            for name, _, value in (p.partition("=") for p in header.split(","))
        }
        age = words.get("max-age")
        if age is not None and not (age.isascii() and age.isdecimal()):
            raise CacheInputError("Cache-Control: max-age must be a whole number of seconds")
        return cls(
            no_cache="no-cache" in words,
            no_store="no-store" in words,
            max_age_s=None if age is None else min(float(age), LONGEST_S),
        )
