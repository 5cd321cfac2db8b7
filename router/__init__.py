"""The cognitive router: from a request to an answer with as little thinking as it needs."""

from .decision import Answer, CacheControl, Decision, Message, Piece, Request, Route, Trace
from .errors import InvalidRequest, NoModel, Refused, RemoteFailed, RouterError
from .pipeline import CognitiveRouter

__all__ = [
    "Answer",
    "CacheControl",
    "CognitiveRouter",
    "Decision",
    "InvalidRequest",
    "Message",
    "NoModel",
    "Piece",
    "Refused",
    "RemoteFailed",
    "Request",
    "Route",
    "RouterError",
    "Trace",
]
