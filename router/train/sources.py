"""The public sets behind the classifier, each read into labelled requests. `docs/data.md` says where they come from.

Knows the files' shapes and what each set's requests mean for routing; knows no embedding and no model. A label that a
set cannot give is None: the loss skips it. Sets named "measuring only" are not read here.
"""

import ast
import csv
import gzip
import json
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from .authored import authored


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One labelled request. `depth` is a bucket, 0 shallow to 2 deep; `weak` is whether a weak
    model does as well as a strong one."""

    text: str
    language: str
    source: str
    route: str | None = None
    depth: int | None = None
    cacheable: bool | None = None
    weak: bool | None = None
    split: str = "train"


def split_of(text: str, *, test: int = 20, calibration: int = 10) -> str:
    """The split of a question, fixed by its letters alone (shares in percent)."""
    digit = int(sha256(re.sub(r"\W", "", text.lower()).encode()).hexdigest()[:8], 16) % 100
    return "test" if digit < test else "calibration" if digit < test + calibration else "train"


def _train_or_calibration(text: str) -> str:
    return split_of(text, test=0, calibration=12)


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _lines(path: Path) -> Iterator[Any]:
    with path.open(encoding="utf-8") as file:
        yield from (json.loads(line) for line in file if line.strip())


_STALE = re.compile(
    r"\b(?:now|today|tonight|tomorrow|yesterday|current(?:ly)?|latest|this (?:week|month|year)|"
    r"right now|last (?:night|week|year))\b"
    r"|现在|今天|今晚|明天|昨天|目前|最新|今年|本周|刚刚",
    re.IGNORECASE,
)


def _lasting(text: str) -> bool:
    return _STALE.search(text) is None


_CLINC_ROUTE = {
    "extract": "plug_type exchange_rate timezone food_last calories nutrition_info ingredients_list cook_time "
    "ingredient_substitution "
    "definition measurement_conversion spelling distance gas_type",
    "rag": "travel_suggestion recipe meal_suggestion restaurant_suggestion restaurant_reviews vaccines travel_alert",
    "faq": "order_status order oil_change_how tire_change jump_start restaurant_reservation confirm_reservation "
    "cancel_reservation "
    "accept_reservations reset_settings sync_device schedule_maintenance",
    "direct": "translate calculator",
}
_CLINC_INTENT = {intent: route for route, names in _CLINC_ROUTE.items() for intent in names.split()}
_CLINC_DOMAIN = {"banking": "faq", "credit_cards": "faq", "work": "faq", "travel": "faq"}
# answers that depend on the person or the moment
_PERSONAL_TEXT = (
    "bill_due bill_balance balance spending_history transactions rewards_balance application_status credit_score "
    "credit_limit how_busy confirm_reservation calendar order_status reminder todo_list shopping_list what_song "
    "next_song current_location traffic distance last_maintenance oil_change_when tire_pressure gas mpg "
    "flight_status exchange_rate travel_alert weather date find_phone time share_location timer alarm flip_coin "
    "roll_dice pto_request_status next_holiday meeting_schedule payday income pto_balance pto_used user_name "
    "min_payment timezone uber play_music text make_call schedule_meeting"
)
_PERSONAL = frozenset(_PERSONAL_TEXT.split())


def clinc(root: Path) -> Iterator[Example]:
    data, domains = _json(root / "clinc_oos/data_full.json"), _json(root / "clinc_oos/domains.json")
    domain_of = {intent: domain for domain, intents in domains.items() for intent in intents}
    for part, split in (("train", "train"), ("val", "calibration"), ("test", "test")):
        for text, intent in data[part]:
            route = _CLINC_INTENT.get(intent, _CLINC_DOMAIN.get(domain_of[intent], "direct"))
            yield Example(
                text=text,
                language="en",
                source="clinc",
                route=route,
                depth=1 if route == "rag" else 0,
                cacheable=intent not in _PERSONAL and _lasting(text),
                split=split,
            )


def clinc_oos(root: Path, part: str) -> list[str]:
    """Out-of-scope requests of CLINC; `part` is "train", "val" or "test"."""
    return [text for text, _ in _json(root / "clinc_oos/data_full.json")[f"oos_{part}"]]


def banking(root: Path) -> Iterator[Example]:
    rows: dict[str, list[dict[str, str]]] = {}
    for part in ("train", "test"):
        with (root / f"banking77/{part}.csv").open(encoding="utf-8", newline="") as file:
            rows[part] = list(csv.DictReader(file))
    tested = {row["text"].strip().lower() for row in rows["test"]}
    for part, items in rows.items():
        for row in items:
            if part == "train" and row["text"].strip().lower() in tested:
                continue
            split = "test" if part == "test" else _train_or_calibration(row["text"])
            yield Example(text=row["text"].strip(), language="en", source="banking", route="faq", depth=0, split=split)


def stackfaq_rows(root: Path) -> list[tuple[str, list[str], str]]:
    """(question, rephrasings, answer) of each of the 125 FAQs."""
    rows = _json(root / "stackfaq/stackExchange-FAQ.json")["root"]["qapair"]
    return [(row["question"], _python_list(row["rephr"]), "\n".join(_python_list(row["answer"]))) for row in rows]


def _python_list(value: Any) -> list[str]:
    """Some rows hold a list, others its Python text; stray one-character items are noise."""
    items = ast.literal_eval(value) if isinstance(value, str) and value.startswith("[") else value
    return [str(item).strip() for item in ([items] if isinstance(items, str) else items) if len(str(item).strip()) > 1]


def stackfaq(root: Path) -> Iterator[Example]:
    for question, rephrasings, _ in stackfaq_rows(root):
        for text in (question, *rephrasings):
            yield Example(
                text=text,
                language="en",
                source="stackfaq",
                route="faq",
                depth=0,
                cacheable=True,
                split=split_of(question),
            )


def chitchat(root: Path) -> Iterator[Example]:
    for name, language in (("english", "en"), ("chinese_simplified", "zh")):
        for row in _lines(root / f"ms_chitchat/derived_{name}_friendly.jsonl"):
            for text in row["questions"]:
                yield Example(
                    text=text,
                    language=language,
                    source=f"chitchat_{language}",
                    route="direct",
                    depth=0,
                    cacheable=True,
                    split=split_of(text),
                )


_ROUTELLM_TEST = 40  # percent of RouteLLM's questions kept for its cost curve


def gsm8k(root: Path) -> Iterator[Example]:
    for part in ("train", "test"):
        for row in _lines(root / f"gsm8k/{part}.jsonl"):
            steps = len([line for line in row["answer"].split("\n") if line.strip()]) - 1
            text = row["question"]  # the test part is shared with RouteLLM's table, so its split is the one used there
            split = split_of(text, test=_ROUTELLM_TEST) if part == "test" else _train_or_calibration(text)
            yield Example(
                text=text,
                language="en",
                source="gsm8k",
                route="deep",
                depth=1 if steps <= 2 else 2,
                cacheable=True,
                split=split,
            )


def cmath(root: Path) -> Iterator[Example]:
    for row in _lines(root / "cmath/cmath_dev.jsonl"):
        yield Example(
            text=row["input"],
            language="zh",
            source="cmath",
            route="deep",
            cacheable=True,
            depth=1 if row["grade"] <= 2 and row["reasoning_step"] <= 1 else 2,
            split=split_of(row["input"]),
        )
    for row in _lines(root / "cmath/distractor.jsonl"):
        yield Example(
            text=row["input"],
            language="zh",
            source="cmath_distractor",
            route="deep",
            cacheable=True,
            depth=2,
            split=split_of(row["original"]),
        )


def strategyqa(root: Path) -> Iterator[Example]:
    for part in ("train", "dev"):
        for row in _json(root / f"strategyqa/{part}.json"):
            split = "test" if part == "dev" else _train_or_calibration(row["question"])
            yield Example(
                text=row["question"],
                language="en",
                source="strategyqa",
                route="deep",
                cacheable=True,
                depth=1 if len(row["decomposition"]) <= 2 else 2,
                split=split,
            )


_WIDE_EN = re.compile(
    r"^\W*(?:why|how (?!many|much|long|old|far|tall|big|often))|\bexplain\b|\bdescribe\b", re.IGNORECASE
)
_WIDE_ZH = re.compile(r"为什么|为何|如何|怎么|怎样|原因|影响|简述|介绍|说明|评价|特点|区别|哪些")


def _lookup(text: str, language: str, source: str, *, wide: bool, split: str) -> Example:
    """A question about facts: "rag" when the answer takes more than a name, a number or a date."""
    wide = wide or (_WIDE_EN if language == "en" else _WIDE_ZH).search(text) is not None
    return Example(
        text=text,
        language=language,
        source=source,
        route="rag" if wide else "extract",
        depth=1 if wide else 0,
        cacheable=_lasting(text),
        split=split,
    )


def nq(root: Path) -> Iterator[Example]:
    seen = set()
    for row in _lines(root / "nq_open/NQ-open.dev.jsonl"):
        seen.add(row["question"])
        yield _lookup(row["question"], "en", "nq", wide=False, split=split_of(row["question"]))
    with gzip.open(root / "nq_oracle/qa_data__nq-open-oracle.jsonl.gz", "rt", encoding="utf-8") as file:
        for line in file:
            text = json.loads(line).get("question", "")
            if text and text not in seen:
                yield _lookup(text, "en", "nq", wide=False, split=split_of(text))


def hotpot(root: Path) -> Iterator[Example]:
    for row in _json(root / "hotpot_simplified/hotpot_dev_v1_simplified.json"):
        yield _lookup(row["question"], "en", "hotpot", wide=True, split=split_of(row["question"]))


def clapnq(root: Path) -> Iterator[Example]:
    for name in ("answerable", "unanswerable"):
        for row in _lines(root / f"clapnq/annotated_data__dev__clapnq_dev_{name}.jsonl"):
            yield _lookup(row["input"], "en", "clapnq", wide=name == "answerable", split=split_of(row["input"]))


def squad(root: Path) -> Iterator[Example]:
    for article in _json(root / "squad1_du_test/test-v1.1.json")["data"]:
        for paragraph in article["paragraphs"]:
            for row in paragraph["qas"]:
                long = all(len(a["text"].split()) > 10 for a in row["answers"])
                yield _lookup(row["question"].strip(), "en", "squad", wide=long, split=split_of(row["question"]))


def cmrc(root: Path) -> Iterator[Example]:
    with zipfile.ZipFile(next((root / "cmrc2018_train").glob("*.zip"))) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".json") and "__MACOSX" not in n)
        data = json.loads(archive.read(name))["data"]
    for article in data:
        for paragraph in article["paragraphs"]:
            for row in paragraph["qas"]:
                long = all(len(a["text"]) > 40 for a in row["answers"])
                yield _lookup(row["question"], "zh", "cmrc", wide=long, split=split_of(row["question"]))


def dureader(root: Path) -> Iterator[Example]:
    for part in ("devset__search.dev", "trainset__search.train"):
        for row in _lines(root / f"dureader2_demo/DuReader-2.0__data__demo__{part}.json"):
            yield _lookup(
                row["question"],
                "zh",
                "dureader",
                wide=row["question_type"] != "ENTITY",
                split=split_of(row["question"]),
            )


def pubmedqa(root: Path) -> Iterator[Example]:
    for row in _json(root / "pubmedqa/ori_pqal.json").values():
        yield _lookup(row["QUESTION"], "en", "pubmedqa", wide=True, split=split_of(row["QUESTION"]))


_BELLE = {
    "math": ("deep", 2),
    "code": ("deep", 2),
    "generation": ("deep", 1),
    "brainstorming": ("deep", 1),
    "rewrite": ("direct", 0),
    "classification": ("direct", 0),
    "closed qa": ("direct", 0),
    "summarization": ("direct", 1),
    "extract": ("direct", 0),
}


def belle(root: Path) -> Iterator[Example]:
    for row in _json_or_lines(root / "belle_eval_zh/eval_set.json"):
        text, kind = row["question"], row["class"].replace("\xa0", " ")
        if kind == "open qa":
            yield _lookup(
                text, "zh", "belle", wide=_WIDE_ZH.search(text) is not None or len(text) > 30, split=split_of(text)
            )
        else:
            route, depth = _BELLE[kind]
            yield Example(
                text=text, language="zh", source="belle", route=route, depth=depth, cacheable=True, split=split_of(text)
            )


def _json_or_lines(path: Path) -> list[Any]:
    text = path.read_text(encoding="utf-8")
    return (
        list(json.loads(text))
        if text.lstrip().startswith("[")
        else [json.loads(s) for s in text.split("\n") if s.strip()]
    )


_TASK_DEEP = re.compile(
    r"\b(?:write|create|generate|design|plan|explain|code|program|script|solve|story|poem|essay|recipe|compare|analy[sz]e|ideas?|"
    r"brainstorm|leetcode|strategy|argue|how would|why|list|suggest|describe|compose|invent|advice|come up)\b",
    re.IGNORECASE,
)


def self_instruct(root: Path) -> Iterator[Example]:
    """Instructions of all kinds; editing a given text is `direct`, making or working something out is `deep`."""
    for name in ("seed_tasks", "user_oriented_instructions"):
        for row in _lines(root / f"self_instruct/{name}.jsonl"):
            given = row["instances"][0]["input"].strip()
            text = f"{row['instruction']}\n{given}".strip()
            deep = not row.get("is_classification", False) and _TASK_DEEP.search(row["instruction"]) is not None
            yield Example(
                text=text,
                language="en",
                source="self_instruct",
                route="deep" if deep else "direct",
                depth=1 if deep else 0,
                cacheable=True,
                split=split_of(text),
            )


WEAK, STRONG = "mistralai/Mixtral-8x7B-Instruct-v0.1", "gpt-4-1106-preview"


def routellm_rows(root: Path) -> Iterator[tuple[str, str, bool, bool]]:
    """(table, question, weak right, strong right) of RouteLLM's MMLU and GSM8K tables, less the contaminated ones."""
    folder = root / "routellm_mmlu_gsm8k"
    for path in [*sorted(folder.glob("mmlu_*.csv")), folder / "gsm8k_responses.csv"]:
        table = path.stem.removesuffix("_responses").split("_")[0]
        dirty = {row["eval_prompt"] for row in _lines(folder / f"routellm__evals__{table}__contaminated_prompts.jsonl")}
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                if row["prompt"] not in dirty:
                    yield table, row["prompt"], row[WEAK] == "True", row[STRONG] == "True"


def routellm(root: Path) -> Iterator[Example]:
    for table, prompt, weak, strong in routellm_rows(root):
        text = prompt.removesuffix("\nAnswer:")
        # exam questions would drown the other deep requests: a tenth of them carries a route
        routed = table == "gsm8k" or sha256(text.encode()).digest()[0] < 26
        yield Example(
            text=text,
            language="en",
            source=f"routellm_{table}",
            route="deep" if routed else None,
            depth=1 if weak else 2,
            cacheable=True,
            weak=weak or not strong,
            split=split_of(text, test=_ROUTELLM_TEST),
        )


def written(root: Path) -> Iterator[Example]:
    for text, language, route, depth, split in authored():
        yield Example(
            text=text,
            language=language,
            source=f"authored_{language}",
            route=route,
            depth=depth,
            cacheable=None if route == "faq" else _lasting(text),
            split=split,
        )


SOURCES: dict[str, Callable[[Path], Iterator[Example]]] = {
    "clinc": clinc,
    "banking": banking,
    "stackfaq": stackfaq,
    "chitchat": chitchat,
    "gsm8k": gsm8k,
    "cmath": cmath,
    "strategyqa": strategyqa,
    "nq": nq,
    "hotpot": hotpot,
    "clapnq": clapnq,
    "squad": squad,
    "cmrc": cmrc,
    "dureader": dureader,
    "pubmedqa": pubmedqa,
    "belle": belle,
    "self_instruct": self_instruct,
    "routellm": routellm,
    "authored": written,
}
