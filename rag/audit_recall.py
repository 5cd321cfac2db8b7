"""Whether a knowledge base still holds the answers: given questions, or sentences with a hole made from its own text.

A question counts as answered when one of the first K passages found holds an answer, letter for letter but for case,
width and spaces. Knows nothing of depth (A5).
"""

import json
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from .chunk import sentences
from .document import Document
from .errors import DocumentError
from .words import STOP, length, surfaces

T = TypeVar("T")
K = 5
MOST = 300  # questions asked of one audit
_HOLES = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question and what would answer it."""

    question: str
    answers: tuple[str, ...]


def read_questions(path: Path) -> list[Asked]:
    """Questions of a JSONL file: `{"question": …, "answer": …}`, or `answers`, a list. Raises DocumentError.

    Of more than MOST, that many are taken, spread over the file.
    """
    asked = []
    try:
        lines = path.read_text("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DocumentError(f"{path}: the questions cannot be read ({error}); give a JSONL file in UTF-8") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            question, answers = row["question"], row["answers"] if "answers" in row else row["answer"]
            answers = answers if isinstance(answers, list) else [answers]
            if not answers or not all(isinstance(one, str | int | float) and str(one).strip() for one in answers):
                raise ValueError("a question without answers")
            if not isinstance(question, str) or not question.strip():
                raise ValueError("a question without text")
            asked.append(Asked(question=question, answers=tuple(map(str, answers))))
        except (ValueError, KeyError, TypeError) as error:
            raise DocumentError(
                f'{path}, line {number}: a row is {{"question": …, "answer": …}} or has a list of "answers"'
            ) from error
    if not asked:
        raise DocumentError(f"{path}: there is no question in it")
    return _spread(asked, MOST)


def holes(documents: Iterable[Document], rarity: Callable[[Sequence[str]], dict[str, float]]) -> list[Asked]:
    """A sentence of each of some documents without its rarest word, which is the answer; no chance in it."""
    made = []
    for document in _spread(list(documents), _HOLES):
        spans = [span for span in sentences(document.text) if 8 <= length(document.text[span.start : span.end]) <= 60]
        if not spans:
            continue
        span = spans[len(spans) // 2]
        sentence = document.text[span.start : span.end]
        words = {term: word for term, word in surfaces(sentence) if term not in STOP and len(word) > 1}
        if not words:
            continue
        rare = rarity(list(words))
        word = words[max(sorted(words), key=lambda term: rare[term])]
        folded = fold(sentence)
        at = folded.find(fold(word))
        if at >= 0:
            made.append(Asked(question=f"{folded[:at]}…{folded[at + len(fold(word)) :]}", answers=(word,)))
    return made


def answered(
    asked: Sequence[Asked], search: Callable[[str], Sequence[str]], progress: Callable[[int, int], None] | None = None
) -> list[bool]:
    """For each question, whether one of the passages that `search` gives for it holds an answer."""
    found = []
    for one in asked:
        passages = [fold(text) for text in search(one.question)]
        found.append(any(fold(answer) in text for answer in one.answers if fold(answer) for text in passages))
        if progress:
            progress(len(found), len(asked))
    return found


def fold(text: str) -> str:
    """The text without differences of case, width and spacing."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _spread(rows: Sequence[T], most: int) -> list[T]:
    return [rows[i * len(rows) // most] for i in range(most)] if len(rows) > most else list(rows)
