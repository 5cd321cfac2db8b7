"""What layer-tokens cost, and what plain token pricing would ask for the same (S5). Pure but for reading the ledger."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from .accounting import Ledger
from .errors import RouterError

SUMS = ("requests", "prompt_tokens", "completion_tokens", "layer_tokens", "full_depth")


class BadPrices(RouterError, ValueError):
    """A price table cannot be read; the message names the field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Per thousand, in any currency: layer-tokens, and for comparison plain tokens read and written.

    Without a price of a layer-token, a token at full depth costs what a plain one does and a shallow one its share.
    """

    layer_tokens: float | None = None
    prompt_tokens: float = 1.0
    completion_tokens: float = 1.0

    def __post_init__(self) -> None:
        for name in ("layer_tokens", "prompt_tokens", "completion_tokens"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0):
                raise BadPrices(f"{name} must be a price of 0 or more for a thousand, not {value!r}")

    def by_depth(self, row: Mapping[str, Any]) -> float:
        if self.layer_tokens is None:
            return self.by_token(row) * row["layer_tokens"] / row["full_depth"] if row["full_depth"] else 0.0
        return float(row["layer_tokens"]) * self.layer_tokens / 1000

    def by_token(self, row: Mapping[str, Any]) -> float:
        """What plain token pricing would ask for the same."""
        prompt = row["prompt_tokens"] * self.prompt_tokens
        return float(prompt + row["completion_tokens"] * self.completion_tokens) / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTable:
    """What everyone pays, and what single tenants pay instead. `currency` is only shown."""

    prices: Prices = Prices()
    tenants: Mapping[str, Prices] = field(default_factory=dict)
    currency: str = ""

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Self:
        """From plain data: the prices, `currency`, and `tenants` by name. Raises `BadPrices` naming what is wrong."""
        own = {name: value for name, value in raw.items() if name not in ("tenants", "currency")}
        try:
            usual = Prices(**own)
            tenants = {name: Prices(**{**own, **theirs}) for name, theirs in raw.get("tenants", {}).items()}
        except (TypeError, AttributeError) as error:
            message = "prices takes layer_tokens, prompt_tokens, completion_tokens, currency and tenants"
            raise BadPrices(f"{message}, tenants a table of the same prices by tenant") from error
        return cls(prices=usual, tenants=tenants, currency=str(raw.get("currency", "")))

    def report(self, ledger: Ledger, by: Sequence[str], **limits: Any) -> list[dict[str, Any]]:
        """`Ledger.report` with `cost` by depth and `plain_cost`, each request at its own tenant's prices."""
        return _folded(self._priced(ledger.report(list(dict.fromkeys((*by, "tenant"))), **limits)), by)

    def _priced(self, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for row in rows:
            prices = self.tenants.get(row["tenant"], self.prices)
            yield {**row, "cost": prices.by_depth(row), "plain_cost": prices.by_token(row)}


def _folded(rows: Iterable[dict[str, Any]], by: Sequence[str]) -> list[dict[str, Any]]:
    """Rows with the same groups added up; the mean depth is weighed by requests. Days in order, else most first."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = tuple(row[name] for name in by)
        kept = found.setdefault(key, {**dict(zip(by, key, strict=True)), **dict.fromkeys((*SUMS, "mean_depth"), 0),
                                      "cost": 0.0, "plain_cost": 0.0})  # fmt: skip
        requests = kept["requests"] + row["requests"]
        mean = (kept["mean_depth"] * kept["requests"] + row["mean_depth"] * row["requests"]) / requests
        kept.update({name: kept[name] + row[name] for name in (*SUMS, "cost", "plain_cost")}, mean_depth=mean)
    return sorted(found.values(), key=lambda row: (row.get("day", ""), -row["layer_tokens"]))
