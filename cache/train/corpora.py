"""Questions in groups of the same meaning, from the data sets (C4): the raw material of the scorer and its threshold.

Folders are those of `docs/data.md` under SHOAL_DATA. Reads only train parts of sets that have parts, one half of the
Chinese PAWS pairs (the other half is for measuring), and never what is set apart for measuring.
"""

import csv
import json
import os
import re
import unicodedata
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def data_folder() -> Path:
    """The data folder: SHOAL_DATA, else `../shared/data`."""
    return Path(os.environ.get("SHOAL_DATA", "../shared/data"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Texts that a cache might hold together. Same `group`: same meaning. Same `area`, other group: a hard negative.

    `strict` sets hold true paraphrases; in loose ones (intents) a group is wider than one question.
    """

    name: str
    texts: list[str]
    groups: list[str]
    strict: bool


def plain(text: str) -> str:
    """For telling repeated texts apart from paraphrases."""
    return re.sub(r"[\W_]+", " ", unicodedata.normalize("NFKC", text).lower()).strip()


def akin(one: str, other: str) -> bool:
    """Whether two groups may ask for the same: equal, or of one passage with answers that share a word."""
    if one == other:
        return True
    if one.count(".") < 2 or other.count(".") < 2:
        return False
    (*place, answer), (*second, another) = one.split(".", 2), other.split(".", 2)
    return place == second and bool(
        set(answer.split()) & set(another.split()) or answer in another or another in answer
    )


def _pool(name: str, pairs: Iterator[tuple[str, str]], *, strict: bool) -> Pool:
    seen: dict[str, tuple[str, str]] = {}
    for group, text in pairs:
        if 2 <= len(text) <= 300 and plain(text):
            seen.setdefault(plain(text), (group, text.strip()))
    return Pool(name=name, texts=[t for _, t in seen.values()], groups=[g for g, _ in seen.values()], strict=strict)


def banking(split: str = "train") -> Pool:
    """Bank questions by intent; texts that stand in both splits are dropped from train."""

    def rows(part: str) -> list[tuple[str, str]]:
        with (data_folder() / "banking77" / f"{part}.csv").open(encoding="utf-8") as file:
            return [(row["category"], row["text"]) for row in csv.DictReader(file)]

    test = {plain(text) for _, text in rows("test")}
    kept = [(g, t) for g, t in rows(split) if split == "test" or plain(t) not in test]
    return _pool(f"banking77 {split}", iter(kept), strict=False)


def clinc(split: str = "train") -> Pool:
    """Requests to an assistant by intent, without the out-of-scope ones."""
    data = json.loads((data_folder() / "clinc_oos" / "data_full.json").read_text("utf-8"))
    return _pool(f"clinc {split}", ((intent, text) for text, intent in data[split]), strict=False)


def stackfaq(half: int | None = None) -> Pool:
    """Help questions and their rephrasings; `half` 0 for training, 1 for fitting the threshold, by FAQ."""
    root = json.loads((data_folder() / "stackfaq" / "stackExchange-FAQ.json").read_text("utf-8"))["root"]["qapair"]

    def pairs() -> Iterator[tuple[str, str]]:
        for i, item in enumerate(root):
            if half in (None, i % 2):
                for text in (item["question"], *item["rephr"]):
                    yield str(i), text or ""

    return _pool(f"stackfaq {half}", pairs(), strict=True)


def chitchat(language: str) -> Pool:
    """Small talk in groups, `english` or `chinese_simplified`."""
    path = data_folder() / "ms_chitchat" / f"derived_{language}_friendly.jsonl"

    def pairs() -> Iterator[tuple[str, str]]:
        for i, line in enumerate(path.read_text("utf-8").rstrip("\n").split("\n")):
            for text in json.loads(line)["questions"]:
                yield str(i), text

    return _pool(f"chitchat {language}", pairs(), strict=False)


def _squad_like(name: str, data: dict[str, object]) -> Pool:
    """Reading questions; those of one passage with the same answer are taken as one group."""

    def pairs() -> Iterator[tuple[str, str]]:
        for a, article in enumerate(data["data"]):  # type: ignore[arg-type,var-annotated]
            for p, paragraph in enumerate(article["paragraphs"]):
                for qa in paragraph["qas"]:
                    if qa.get("answers"):
                        yield f"{a}.{p}.{plain(qa['answers'][0]['text'])}", qa["question"]

    return _pool(name, pairs(), strict=False)


def squad() -> Pool:
    """English reading questions."""
    return _squad_like("squad", json.loads((data_folder() / "squad1_du_test" / "test-v1.1.json").read_text("utf-8")))


def cmrc() -> Pool:
    """Chinese reading questions."""
    return _squad_like("cmrc", _cmrc_train())


def _cmrc_train() -> dict[str, Any]:
    path = next((data_folder() / "cmrc2018_train").glob("*.zip"))
    with zipfile.ZipFile(path) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".json") and "MACOSX" not in n)
        found: dict[str, Any] = json.loads(archive.read(name).decode("utf-8"))
    return found


def paws_zh(half: int) -> list[tuple[str, str, int]]:
    """Chinese sentence pairs with exchanged words, label 1 for the same meaning; `half` 0 trains, 1 measures."""
    with (data_folder() / "pawsx_zh2k" / "dev_2k.tsv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [
        (r["sentence1"], r["sentence2"], int(r["label"]))
        for i, r in enumerate(rows)
        if i % 2 == half and r["sentence1"] and r["sentence2"] and r["label"] in ("0", "1")
    ]


def sentences(language: str, limit: int = 6000) -> Pool:
    """Statements: sentences of the reading passages, each a group of its own; `language` is `en` or `zh`."""
    if language == "en":
        data = json.loads((data_folder() / "squad1_du_test" / "test-v1.1.json").read_text("utf-8"))
        cut = re.compile(r"(?<=[a-z)][.])\s+(?=[A-Z])")
    else:
        data = _cmrc_train()
        cut = re.compile(r"(?<=[。！？])")
    texts = [s for a in data["data"] for p in a["paragraphs"] for s in cut.split(p["context"]) if 12 <= len(s) <= 220]
    step = max(1, len(texts) // limit)
    return _pool(f"sentences {language}", ((str(i), text) for i, text in enumerate(texts[::step])), strict=True)
