"""Passages with questions, from public question answering sets and from JSON lines of the user's own.

Reads files, cleans texts and keeps measuring sets out. Knows no tokens and no model.
"""

import gzip
import json
import random
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import GatedError

REFUSAL = {"en": "I do not know.", "zh": "我不知道。"}
_GUIDING = re.compile(
    r"detailed|in detail|comprehensive|step[- ]by[- ]step|one by one|详细|全面|逐步|分步|一一|一步一步", re.IGNORECASE
)
_HINT = re.compile(r"\s*<depth_hint:\s*(\d{1,3})\s*>\s*")
_SHINGLE = 12  # words in a row that two passages do not share by chance


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question and its answer. `hint`: layers that a `<depth_hint:N>` tag asked for; `guided`: it has words that
    call for length.
    """

    question: str
    answer: str
    hint: int | None = None
    guided: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """What is read before some questions; empty `text` for plain chat. `article` groups passages of one subject."""

    text: str
    asked: tuple[Asked, ...]
    article: str
    source: str
    language: str = "en"


def asked_of(question: str, answer: str) -> Asked:
    """Takes the depth hint out of a question and marks one whose words ask for length (G14)."""
    hint = _HINT.search(question)
    return Asked(
        question=_HINT.sub(" ", question).strip(),
        answer=answer.strip(),
        hint=int(hint[1]) if hint else None,
        guided=bool(_GUIDING.search(question)),
    )


def squad(path: Path, *, source: str, language: str = "en", titles: Sequence[str] = ()) -> list[Passage]:
    """A file of the SQuAD form, zipped or not; only the articles `titles` where given. A question with
    `is_impossible` is refused.
    """
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            raw = json.loads(archive.read(next(n for n in archive.namelist() if n.endswith(".json"))))
    else:
        raw = json.loads(path.read_text("utf-8"))
    found = []
    for article in raw["data"]:
        if titles and article["title"] not in titles:
            continue
        for paragraph in article["paragraphs"]:
            text = paragraph["context"].strip()
            asked = []
            for qa in paragraph["qas"]:
                if qa.get("is_impossible"):
                    asked.append(asked_of(qa["question"], REFUSAL[language]))
                elif qa["answers"] and (answer := min((a["text"] for a in qa["answers"]), key=len)) in text:
                    asked.append(asked_of(qa["question"], answer))
            if asked:
                found.append(
                    Passage(text=text, asked=tuple(asked), article=article["title"], source=source, language=language)
                )
    return found


def fewer_refusals(passages: Iterable[Passage], share: float, draw: random.Random) -> list[Passage]:
    """The passages with about a `share` of their questions without an answer."""
    found = []
    for passage in passages:
        refusal = REFUSAL[passage.language]
        asked = tuple(one for one in passage.asked if one.answer != refusal or share >= 1 or draw.random() < share)
        if asked:
            found.append(replace(passage, asked=asked))
    return found


def natural_questions(path: Path) -> list[Passage]:
    """Real queries with the passage that answers them and a short answer that stands in it."""
    found = []
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            gold = row["ctxs"][0]
            answer = next((a for a in row["answers"] if a in gold["text"]), None)
            if gold.get("isgold") and answer:
                asked = asked_of(row["question"], answer)
                found.append(Passage(text=gold["text"], asked=(asked,), article=gold["title"], source="nq_oracle"))
    return found


def clapnq(path: Path, *, answerable: bool, longest: int = 60) -> list[Passage]:
    """Real queries with one passage and a written answer of at most `longest` words, or none."""
    found = []
    for line in path.read_text("utf-8").rstrip("\n").split("\n"):
        row = json.loads(line)
        answer = row["output"][0]["answer"] if answerable else REFUSAL["en"]
        if answer and len(answer.split()) <= longest:
            text = re.sub(r" ([.,;:?!')])", r"\1", row["passages"][0]["text"]).replace("`` ", '"').replace(" ''", '"')
            asked = asked_of(row["input"], re.sub(r" ([.,;:?!')])", r"\1", answer))
            found.append(
                Passage(text=text.strip(), asked=(asked,), article=row["passages"][0]["title"], source="clapnq")
            )
    return found


def lines(path: Path) -> list[Passage]:
    """JSON lines, each with a `prompt`, or `passages` (text or list) and a `question`, and an `answer`.

    Raises GatedError naming the line that is wrong.
    """
    found = []
    for number, line in enumerate(path.read_text("utf-8").split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise TypeError("it is no JSON object")
            passages = row.get("passages", "")
            text = passages if isinstance(passages, str) else "\n".join(passages)
            question, answer = row["question" if text else "prompt"], row["answer"]
            if not (isinstance(question, str) and isinstance(answer, str) and question.strip() and answer.strip()):
                raise TypeError("question and answer must be text that is not empty")
        except (ValueError, KeyError, TypeError) as error:
            raise GatedError(
                f"{path}, line {number}: {error!r}. Each line needs an answer and either a prompt, or passages and a "
                "question."
            ) from error
        language = "zh" if re.search(r"[\u4e00-\u9fff]", question) else "en"
        asked = (asked_of(question, answer),)
        found.append(Passage(text=text.strip(), asked=asked, article=str(number), source=path.name, language=language))
    if not found:
        raise GatedError(f"{path} holds no examples: give JSON lines with prompt and answer.")
    return found


def shingles(text: str) -> set[str]:
    """Every run of twelve words, lower case, without punctuation."""
    words = re.findall(r"\w+", text.lower())
    return {" ".join(words[at : at + _SHINGLE]) for at in range(len(words) - _SHINGLE + 1)}


def without(passages: Iterable[Passage], measured: Iterable[str]) -> Iterator[Passage]:
    """Passages that share no run of twelve words with any of the texts `measured`."""
    known = set[str]().union(*map(shingles, measured))
    return (passage for passage in passages if known.isdisjoint(shingles(passage.text)))


def unguided(passages: Iterable[Passage]) -> Iterator[Passage]:
    """Passages without the questions that call for length; those with a depth hint stay."""
    for passage in passages:
        asked = tuple(one for one in passage.asked if one.hint is not None or not one.guided)
        if asked:
            yield replace(passage, asked=asked)


def shortened(passage: Passage, longest: int, draw: random.Random) -> Passage | None:
    """The passage cut to sentences around one answer, at most about `longest` characters; None where that fails."""
    if len(passage.text) <= longest:
        return passage
    sentences = [m.group() for m in re.finditer(r".+?(?:[.!?](?=\s)|[。！？]|$)\s*", passage.text, re.DOTALL)]
    first = draw.randrange(len(sentences))
    text = ""
    for sentence in sentences[first:]:
        if text and len(text) + len(sentence) > longest:
            break
        text += sentence
    asked = tuple(one for one in passage.asked if one.answer in text)
    return replace(passage, text=text.strip(), asked=asked) if asked and len(text) <= 2 * longest else None


def mismatched(passages: Sequence[Passage], share: float, draw: random.Random) -> list[Passage]:
    """The passages, a `share` of them with a question more: one of another passage of the same article, to be refused,
    whose answer is not in this one.
    """
    by_article: dict[str, list[Passage]] = {}
    for passage in passages:
        by_article.setdefault(passage.article, []).append(passage)
    found = []
    for passage in passages:
        if draw.random() < share:
            other = draw.choice(by_article[passage.article])
            stray = draw.choice(other.asked)
            if stray.answer not in passage.text and stray.answer != REFUSAL[passage.language]:
                refused = replace(stray, answer=REFUSAL[passage.language])
                passage = replace(passage, asked=(*passage.asked, refused))
        found.append(passage)
    return found


def own_chats(folder: Path) -> list[tuple[list[int], list[int]]]:
    """Prompts and the model's own answers as tokens, from shards of `answers.collect`."""
    import numpy as np

    found = []
    for path in sorted(folder.glob("[0-9]*.npz")):
        with np.load(path) as shard:
            asked, starts = shard["prompts"].tolist(), shard["prompt_starts"].tolist()
            made, ends = shard["tokens"].tolist(), shard["starts"].tolist()
        found += [(asked[starts[at] : starts[at + 1]], made[ends[at] : ends[at + 1]]) for at in range(len(ends) - 1)]
    return found


def contexts(path: Path) -> list[str]:
    """The passages of a file of the SQuAD form."""
    raw: Any = json.loads(path.read_text("utf-8"))
    return [paragraph["context"] for article in raw["data"] for paragraph in article["paragraphs"]]
