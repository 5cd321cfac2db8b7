"""Training of the router's classifier: `python -m shoal.router.train`. Never imported at run time."""

from .run import Report, train_from_jsonl, train_shipped

__all__ = ["Report", "train_from_jsonl", "train_shipped"]
