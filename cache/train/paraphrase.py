# ruff: noqa: E501, SIM905  (word lists stay whole)
"""Rule-made paraphrases for sets that have none: wraps, synonyms, articles, order of clauses, typing habits (C4)."""

import random
import re

_EN_WRAPS = (
    "can you tell me {}", "please tell me {}", "hi, {}", "hello, {}", "could you explain {}", "i would like to know {}", "do you know {}",
    "i want to know {}", "{} please", "{} thanks", "quick question: {}", "i was wondering {}", "any idea {}", "help me with this: {}",
)  # fmt: skip
_ZH_WRAPS = (
    "请问{}",
    "你好，{}",
    "我想知道{}",
    "能告诉我{}吗",
    "请告诉我{}",
    "麻烦问一下，{}",
    "想了解一下{}",
    "{}，谢谢",
    "有人知道{}吗",
    "求助：{}",
)
_EN_SYNONYMS = [
    tuple(group.split("/"))
    for group in """buy/purchase/get;begin/start/commence;big/large;show/display/present;make/create/produce;use/utilize/employ/apply;
    help/assist/aid;quick/fast/rapid;get/obtain/receive;need/require;many/numerous/lots of;kind/type/sort;movie/film;picture/image/photo;
    allow/enable/let/permit;allows/enables/lets/permits;provide/offer/supply/give;provides/offers/supplies/gives;located/situated/found;
    main/primary/principal;important/significant/key;famous/well-known/renowned;job/work/occupation;whole/entire;error/issue/problem;
    fix/solve/resolve/repair;change/modify/alter/update;find/locate/discover;choose/select/pick;try/attempt;end/finish/conclude;
    kid/child;company/firm/business;area/region;build/construct;built/constructed;made/created/produced;used/utilized/employed;
    often/frequently;about/regarding/concerning;also/additionally/as well;because/since/as;method/approach/way/technique;
    tool/utility;quickly/rapidly/swiftly;easily/simply/effortlessly;different/various/diverse;includes/contains/comprises;include/contain/comprise;
    support/back;supports/handles;popular/widely used/common;library/package;platform/service;designed/built/intended/made;
    state-of-the-art/cutting-edge/leading;perform/carry out/do/execute;result/outcome;name/title;called/named/known as;
    which/what;wrote/authored;won/received;died/passed away;think/believe;say/state;said/stated;happen/occur;happened/occurred;
    purpose/goal/aim;reason/cause;annual/yearly;home/house;city/town;large/big;approximately/about/around/roughly;usually/typically/generally""".replace("\n", "").split(";")
]  # fmt: skip
_EN = {w.strip(): [o.strip() for o in g if o.strip() != w.strip()] for g in _EN_SYNONYMS for w in g}
_ZH_SYNONYMS = [
    tuple(g.split("/"))
    for g in "怎么/如何/怎样;什么时候/何时;哪里/哪儿/何处;为什么/为何;什么/啥;购买/买;开始/起始;使用/用/利用;帮助/协助;需要/要;可以/能/能够;因为/由于;"
    "但是/不过/可是;许多/很多/大量;著名/知名/有名;位于/坐落于;主要/首要;获得/取得/得到;担任/出任;建立/创建/成立;去世/逝世;出生/生于;谁/哪位;"
    "多少/几;认为/觉得;方法/办法/方式;问题/疑问;目前/现在/当前;和/与/以及;通常/一般".split(";")
]
_ZH = {w: [o for o in g if o != w] for g in _ZH_SYNONYMS for w in g}
_DROP = re.compile(r"\b(?:the|a|an)\b ", re.IGNORECASE)
_OF = re.compile(r"\bthe (\w+) of ((?:the )?\w+)\b")


def paraphrase(text: str, rng: random.Random) -> str:
    """Another way to ask the same, by one to four small changes."""
    if re.search(r"[\u3400-\u9fff]", text):
        return _chinese(text, rng)
    words = text.split(" ")
    for i, word in enumerate(words):
        core = word.lower().strip(".,?!;:")
        if core in _EN and rng.random() < 0.6:
            words[i] = word.lower().replace(core, rng.choice(_EN[core]))
    out = " ".join(words)
    if rng.random() < 0.4:
        out = _OF.sub(r"\2's \1", out)
    if rng.random() < 0.25:
        out = _DROP.sub("", out)
    if rng.random() < 0.3:
        out = (
            out.replace("What is", "What's")
            .replace("do not", "don't")
            .replace("it is", "it's")
            .replace("cannot", "can't")
        )
    if rng.random() < 0.3 and ", " in out:
        head, _, tail = out.rstrip("?.! ").partition(", ")
        out = f"{tail[:1].upper()}{tail[1:]}, {head[:1].lower()}{head[1:]}"
    if rng.random() < 0.3:
        out = out.lower()
    if rng.random() < 0.4:
        out = out.rstrip("?.! ")
    if rng.random() < 0.35:
        out = rng.choice(_EN_WRAPS).format(out[:1].lower() + out[1:])
    if rng.random() < 0.1 and len(out) > 12:
        i = rng.randrange(3, len(out) - 3)
        out = out[:i] + out[i + 1 :]
    return out


def _chinese(text: str, rng: random.Random) -> str:
    out = text
    for word, others in _ZH.items():
        if len(word) > 1 and word in out and rng.random() < 0.6:
            out = out.replace(word, rng.choice(others), 1)
    if rng.random() < 0.3 and "，" in out:
        head, _, tail = out.rstrip("？。?").partition("，")
        out = f"{tail}，{head}"
    if rng.random() < 0.4:
        out = out.rstrip("？。?！")
    if rng.random() < 0.2:
        out = out.replace("的", "", 1)
    if rng.random() < 0.4:
        out = rng.choice(_ZH_WRAPS).format(out)
    return out
