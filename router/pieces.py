"""An answer as the stream of pieces that every shell reads, and what must be there once it has ended.

Knows no model and makes no decision.
"""

from collections.abc import Iterator

from .decision import Answer, Piece
from .deep import Chunk, Usage
from .errors import RouterError

NO_RESULT = "the model's stream ended without a result; this is a fault of the model, try again"


def replay(answer: Answer) -> Iterator[Piece]:
    """An answer that is there already, as a stream."""
    yield Piece(text=answer.text, depth=0.0)
    yield last_piece(answer, "")


def last_piece(answer: Answer, text: str) -> Piece:
    """The piece that carries the answer, with what was not shown before."""
    return Piece(text=text, depth=float(answer.trace.depth["max"]), answer=answer, event=answer.event)


def finished(last: Chunk | None) -> tuple[Chunk, Usage]:
    """A model's last chunk and what it used. Raises RouterError where the stream had none."""
    if last is None or last.usage is None:
        raise RouterError(NO_RESULT)
    return last, last.usage


def whole(answer: Answer | None) -> Answer:
    """The answer that ended a stream. Raises RouterError where there was none."""
    if answer is None:
        raise RouterError(NO_RESULT)
    return answer
