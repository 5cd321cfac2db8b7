"""What one request is charged: reserved before the work, written down and settled after it, whatever happens (S5)."""

import logging
import sqlite3

from ..accounting import Ledger, QuotaExceeded
from ..decision import Answer, Request
from .keys import ApiKey
from .shared_limits import SharedLimits

log = logging.getLogger("shoal.service")
CONTEXT = 1024  # tokens that passages and the chat template may add to what was sent


class Meter:
    """Used by one worker thread."""

    def __init__(
        self,
        ledger: Ledger,
        key: ApiKey,
        request: Request,
        *,
        total: int,
        max_tokens: int,
        shared: SharedLimits | None = None,
    ) -> None:
        self._ledger, self._key, self._request, self._shared = ledger, key, request, shared
        self._most = float(total) * (_most_tokens(request) + (request.max_tokens or max_tokens))
        self._reserved: float | None = None

    @property
    def _id(self) -> str:
        return self._request.request_id or ""

    def open(self) -> None:
        """Reserves what the request may cost at most, for a prepaid key: of what this ledger and, where processes
        share a Redis, all of them have left. Raises `QuotaExceeded`.
        """
        if not self._key.quota:
            return
        balance = self._ledger.balance(self._key.id)
        if balance is None or balance.granted != self._key.quota:
            self._ledger.grant(self._key.id, self._key.quota)
        self._ledger.reserve(self._key.id, self._most, self._id)
        if self._shared is not None:
            granted, ledger, spent = self._key.quota, self._ledger.id, self._spent()
            held = self._shared.hold(self._key.id, self._id, self._most, granted=granted, ledger=ledger, spent=spent)
            if held is False:
                self._ledger.release(self._id)
                raise QuotaExceeded.by(self._most)
        self._reserved = self._most

    def close(self, answer: Answer | None) -> None:
        """Settles. A ledger that cannot be written costs the operator a row, not the caller the answer."""
        try:
            self._ledger.settle(
                self._id,
                tenant=self._request.tenant,
                account=self._key.id,
                answer=answer,
                reserved=self._reserved,
            )
            if self._shared is not None and self._reserved is not None:
                self._shared.settle(self._key.id, self._id, self._reserved, ledger=self._ledger.id, spent=self._spent())
        except sqlite3.Error as error:
            log.error("the ledger could not be written: %s", type(error).__name__)

    def _spent(self) -> float:
        balance = self._ledger.balance(self._key.id)
        return balance.spent if balance is not None else 0.0


def _most_tokens(request: Request) -> int:
    """No fewer than the prompt has: a token is at least one byte."""
    return CONTEXT + sum(len(message.content.encode()) for message in request.messages)
