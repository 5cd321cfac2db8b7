"""Traces that one can keep, read and show (G7): a store, words for every decision, and pages of them."""

from .record import Mode, Record
from .recorder import Recorder
from .store import TraceStore

__all__ = ["Mode", "Record", "Recorder", "TraceStore"]
