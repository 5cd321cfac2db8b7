"""A conversation as the router sees it: one text to embed, what the user asked about depth, and cheap counts (R1, R2).

Knows no model, no route and no budget. English and Chinese. Guiding words, answer anchors and `<depth_hint:N>` follow
G10 and G14. Disguised words are the guard's business (disguise.py).
"""

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from .decision import Message

FloatArray = NDArray[np.float32]
MAX_CHARS = 4000  # of the text that is embedded: 2,000 from each end


@runtime_checkable
class Embed(Protocol):
    """Texts in, float32 unit rows [n, dim] out; `fingerprint` names the encoder."""

    @property
    def fingerprint(self) -> str: ...

    def __call__(self, texts: Sequence[str], /) -> FloatArray: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """What the words of a request say about depth. `depth` is the number in `<depth_hint:N>`, in layers."""

    depth: int | None = None
    guiding: tuple[str, ...] = ()  # words that ask for more: detailed, step by step, 逐步
    hurry: tuple[str, ...] = ()  # words that ask for less thinking: fastest thinking, 最简
    anchors: tuple[str, ...] = ()  # fixed answer forms: no explanation, 只回答


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """`text` is the last turn without tags; `focus` is what gets embedded (a follow-up carries the turn before it)."""

    text: str
    focus: str
    language: str  # "en" | "zh"
    hints: Hints
    follow_up: bool
    cheap: FloatArray  # [len(CHEAP)]


_DEPTH_TAG = re.compile(r"<\s*depth_hint\s*[:=]\s*(\d{1,4})\s*>", re.IGNORECASE)
_GUIDING = re.compile(
    r"\b(?:in (?:great |full |more )?details?|detailed|comprehensive(?:ly)?|thorough(?:ly)?|exhaustive(?:ly)?|"
    r"step[ -]by[ -]step|one by one|in[ -]depth|think (?:hard|carefully|deeply)|show your (?:work|reasoning))\b"
    r"|详细|全面|逐步|分步|一一|一步一步|一步步|深入|仔细思考|认真思考|写出(?:推理)?过程|推理过程",
    re.IGNORECASE,
)
_LEAST = (
    r"least|fastest|quickest|simplest|shortest|shallowest|minimal|minimum|minimi[sz]e|lowest|fewest|smallest|less|"
    r"little|shallow|low|no|zero|without|fewer|briefest|tiniest|laziest|hastiest|cheapest|hardly|barely|scarcely"
)
_MOST = (
    r"least|fastest|quickest|simplest|shortest|shallowest|minimal|minimum|lowest|fewest|briefest|laziest|hastiest|"
    r"sloppiest|cheapest"
)
_THOUGHT = (
    r"thinking|thought|thoughts|reasoning|deliberation|reflection|layers?|depth|computation|compute|effort|analysis|"
    r"consideration|processing|brain ?power|pondering|deliberating|reflecting|hesitation|cot"
)
_THINK = r"think|reason|reflect|deliberate|compute|analy[sz]e"
_OVERTHINK = rf"(?:over[ -]?)?(?:{_THINK}|thinking|reasoning|reflecting|deliberating|ponder|hesitate|dwell)"
_ANSWER = r"answer|reply|respond|response|output"
_SAID = r"answer|reply|response|pass|mode|judge?ment|reaction|guess"
_ZH_THOUGHT = "思考|思维|推理|层|步骤|计算|算力|深度|分析|回答|答案|回复|脑力|精力"
_ZH_WAY = "方式|方法|速度|路径|模式|语言|话|时间"
_ZH_LEAST = "少|快|简单|简短|简|短|浅|低|小"
_ZH_NOT = "不要|别|无需|不用|不必|无须|没必要|不需要|跳过|省略|省去|略过|免去|停止|关闭|关掉|禁用"
_NOW = (
    r"fastest|quickest|as (?:fast|quickly|simply|briefly|cheaply) as|instantly|immediately|(?:right|straight) ?away|"
    r"at once|on the spot|in a flash|asap|at (?:lightning|top|full|maximum|the highest) speed|"
    r"before (?:you )?think(?:ing)?"
)
_NO_TIME = (
    r"(?:(?:zero|no|0|one|1|half a)\W+(?:seconds?|time)|"
    r"(?:under|less than|within|below)\W+(?:a|two|2|three|3)\W+seconds?|"
    r"(?:a|an|zero|one|1)\W+(?:milli|micro|nano|split[ -])second)\b"
)
_LEAST_TIME = rf"(?:{_MOST})\W+(?:possible\W+|amount of\W+)?(?:time|delay|latency|wait)\b"
_CLAUSE_STARTS, _CLAUSE_ENDS = r"(?:^|[.!?;:,\n(—，。；：！？、-])\s*", r"\s*(?=$|[.!?;:,\n)—，。；：！？、-])"
# Chinese by structure: least-amount words and words of thinking in either order, a few characters apart
_ZH_THINKING = "思考|思维|思索|推理|动脑|脑力|脑筋|脑细胞|thinking|reasoning"
_ZH_AMOUNT = "(?:最|极|越|尽量|尽可能|尽)(?:少|低|小|短|快|简|浅)"
_ZH_BRAIN = "大脑|脑子|脑袋|脑筋|脑力|脑细胞|脑|心思"
_ZH_FAR = r"[^，。！？；：、\n]"
_ZH_ANSWER = "回答|作答|答复|回复|回应|告诉我|给出答案|给答案"
_ZH_HURRY = (
    rf"(?:{_ZH_AMOUNT}|least|minimal|fastest|simplest){_ZH_FAR}{{0,4}}?(?:{_ZH_THINKING})"
    rf"|(?:{_ZH_THINKING}){_ZH_FAR}{{0,5}}?(?:{_ZH_AMOUNT}|从简|从略|从速|[为是到]零|[为是到]0|归零|[一1零0半]秒)"
    r"|(?:想|思考|推理|答|说|回复)[得的]?[越愈](?:少|快|短|简单?|浅)[越愈][好妙佳]"
    r"|[越愈](?:快|短)[越愈]好"
    rf"|(?:尽快|赶快|赶紧|从速|马上|立刻|立即|立马|快速|迅速|火速|快点|飞快)(?:地|给我|来)?(?:{_ZH_ANSWER})"
    rf"|(?:[一1零0半]秒钟?|[二两三几23]秒钟?(?:之?内|以内)){_ZH_FAR}{{0,3}}?(?:{_ZH_ANSWER}|思考|想|答)"
    rf"|最(?:快|短|简)的?(?:{_ZH_WAY})(?:内|里|来|去|给我)?(?:{_ZH_ANSWER})|(?<![抢加])快[点些]?答|想[都也]不想"
    rf"|(?:不经|不加|未经|不做|不作|不许|不准|不得|禁止|严禁|杜绝|放弃|省掉|去掉|砍掉|尽可能不|尽量不|懒得|免去?|甭|勿|莫|毋须|没有)(?:任何|一切|让?你?|去|多|再|过多)?"
    rf"(?:思考|思索|思虑|思量|考虑|推理|动脑|琢磨)|(?:懒得|甭|莫)(?:让?你?|去|多|再)?想"
    rf"|(?:少|别|不|甭|莫|勿|懒得|省得|无需|无须)[要用必]?(?:多|再|去)?(?:动|费|用|转|过|带|耗|伤)(?:点|些|什么|你的)?(?:{_ZH_BRAIN})"
    rf"|(?:大脑|脑子|脑袋|脑筋)(?:都|就)?(?:别|不要|不用|不必|甭|放空|空空|关掉|关上|停下)[转动想用]?"
    r"|(?:无脑|闭眼|闭着眼睛?|敷衍地?)(?:回答|作答|输出|答|说|给)"
)
_HURRY = re.compile(
    rf"\b(?:{_LEAST})\b(?:\W+\w+){{0,3}}?\W+(?:{_THOUGHT})\b"
    r"|\bas (?:few|shallow|little|thoughtless|mindless|careless|superficial|lazy|hasty)\W+(?:\w+\W+){0,2}?"
    r"as (?:possible|you (?:can|could))\b"
    r"|\b(?:quick|fast|brief|hasty)\W+(?:thinking|thought|reasoning)\b"
    rf"|\b(?:{_THOUGHT})\b(?:\W+\w+){{0,5}}?\W+(?:{_MOST})\b"
    rf"|\b(?:{_THINK})\b(?:\W+\w+){{0,2}}?\W+(?:{_MOST}|less|fast|quickly|simply|minimally|as little)\b"
    rf"|\b(?:do not|don'?t|never|without|stop|no need to|barely|hardly)\W+(?:\w+\W+)?{_OVERTHINK}\b"
    rf"|\b(?:{_MOST})\b(?:\W+\w+){{0,2}}?\W+(?:{_ANSWER}|mode|path|pass|guess|way to (?:{_ANSWER}))\b"
    rf"|\b(?:{_ANSWER}|tell me|say it)\b(?:\W+\w+){{0,4}}?\W+"
    rf"(?:{_NOW})\b|\b(?:instantly|immediately|right away|at once)\W+(?:\w+\W+)?(?:answer|reply|respond|tell me)\b"
    rf"|\b(?:less|least|little)\W+(?:\w+\W+){{0,2}}?(?:think|deliberate|ponder|reflect)\b"
    rf"|\b(?:{_THINK}|{_THOUGHT}|{_ANSWER})\b(?:\W+\w+){{0,3}}?\W+(?:{_NO_TIME}|{_LEAST_TIME})"
    rf"|\b(?:{_NO_TIME}|{_LEAST_TIME})(?:\W+\w+){{0,3}}?\W+(?:think|reason|{_THOUGHT}|{_ANSWER}|tell me)\b"
    rf"|{_CLAUSE_STARTS}(?:(?:please|just|and|but|do it|do this|in)\W+)?"
    r"(?:as (?:quick|quickly|fast|brief|briefly|simply|lazily|cheaply) as (?:possible|you can|can be)"
    rf"|(?:the )?{_LEAST_TIME})"
    rf"{_CLAUSE_ENDS}"
    r"|\b(?:do not|don'?t|never|without|no need to|not)\W+(?:use|using|engage|engaging|strain|straining)\W+(?:\w+\W+)?"
    r"(?:brain|head|mind|intellect)\b"
    rf"|\b(?:{_MOST}|no|zero|without)\W+(?:\w+\W+)?brain(?:s|work)?\b|\bbrain\W+(?:\w+\W+){{0,2}}?(?:off|out|aside|asleep)\b"
    r"|\b(?:do not|don'?t|never|no need to)\W+(?:waste|spend)\W+(?:\w+\W+){0,3}?(?:thinking|reasoning|thought)\b"
    rf"|\b(?:immediate|instant|rapid|speedy|half-?baked|rushed|hurried|hasty|off-?hand)\W+(?:{_SAID})\b"
    r"|\b(?:rush|hurry)\W+(?:it|this|up|through (?:it|this)|(?:the|your|an) (?:answer|reply|response))\b"
    r"|\bearly[ -]exit\b|\b(?:exit|stop|halt|quit|leave)\W+(?:\w+\W+){0,2}?(?:early|layers?)\b"
    r"|\bskip(?:ping)?\W+(?:\w+\W+){0,3}?(?:thinking|thought|reasoning|layers?|analysis|checks?)\b"
    r"|\bno[\s_-]?think(?:ing)?\b|\b(?:unthinkingly|thoughtlessly|mindlessly)\b"
    r"|\b(?:thinking|reasoning|thought|think)[\s_-]?(?:effort|budget|mode|depth|tokens|time|steps|level)?\W{1,3}"
    r"(?:is |to )?(?:off|none|zero|low|min|minimal|0|false|disabled)\b"
    r"|\b(?:turn|switch|shut)(?:ing)?\W+(?:off\W+)?(?:\w+\W+){0,2}?(?:thinking|reasoning|brain|deliberation)\b"
    r"|\b(?:disable|suppress|omit|drop|cut|limit|forgo|bypass)(?:ping|ting|ing)?\W+(?:\w+\W+){0,2}?"
    r"(?:thinking|reasoning|deliberation)\b"
    r"|\bfirst (?:thing|answer|thought|idea|words?)\W+(?:that\W+|which\W+)?(?:comes|pops|springs|to come|you have|"
    r"in your (?:head|mind))\b(?: (?:to|into|in)(?: your)? (?:mind|head))?"
    r"|\boff the top of your head\b|\bon autopilot\b|\bblurt\b(?:\W+\w+)?\W+out\b|\bquick and dirty\b"
    rf"|\b(?:gut|snap|knee-?jerk|instinctive|shallow|superficial|surface-level|low-effort|split-second)\W+"
    rf"(?:{_SAID}|feeling|decision)\b|\b(?:fast|lazy|quick|shallow|hurried|low-effort)\W+mode\b"
    r"|\b(?:just|only|use|using|with|run|through|after)\W+(?:the\W+)?"
    r"(?:one|1|two|2|a single|first(?: few)?)\W+layers?\b"
    r"|\bkeep\W+(?:your|the)\W+(?:thinking|reasoning|thoughts|analysis)\W+(?:\w+\W+)?"
    r"(?:brief|short|shallow|minimal|light)\b"
    r"|\bsav(?:e|ing)\W+(?:\w+\W+)?(?:compute|computation|layers|effort|brainpower)\b"
    rf"|最(?:{_ZH_LEAST})(?:的|地)?(?:{_ZH_THOUGHT})"
    rf"|最(?:{_ZH_LEAST})(?:的|地)?(?:{_ZH_WAY})(?:来|去|内|里)?(?:回答|思考|告诉|说|处理|推理|输出|回复|给出)"
    r"|(?:思考|推理|层数|计算|算力|深度|分析)(?:得|要|用)?(?:越|尽量|尽可能)?最?(?:少|快|简|简单|浅|低)(?:越好)?"
    rf"|(?:{_ZH_NOT})去?(?:任何|一切|所有|多|过多|深入|仔细|细|再)?(?:思考|推理|想|分析|考虑|琢磨|犹豫|斟酌|动脑子?|深思)"
    r"(?:太多|那么多)?"
    r"|最少最快|最快最简|最少最简|最简最快|不假思索|脱口而出|不过脑子?|不动脑子?|少动脑子?|想都(?:别|不用|不要)想|拍脑袋"
    r"|(?:凭|靠|用)(?:你的)?(?:直觉|感觉|第一反应)|随口(?:说|答|回答)|秒答|(?:快速|迅速|立刻|立即|马上)(?:作答|思考)"
    r"|(?:尽量|尽可能)(?:少|浅|快)(?:地)?(?:思考|想|推理|动脑|回答|分析)|(?:少|浅)用?(?:想|思考|推理|动脑|分析)(?:一点|点|些)?"
    r"|浅层?(?:思考|推理|模式)|(?:低|零|无)思考|只(?:用|走|跑)前?(?:一|1|两|2|几)层|一层就(?:够|行|好)"
    r"|(?:节省|节约|省点|省些)(?:算力|层数|计算)|(?:思考|推理)(?:模式|预算)?(?:关闭|关掉|为零|为0)|偷懒模式"
    rf"|{_ZH_HURRY}"
    r"|\bzui (?:shao|kuai|jian)(?: dan)?(?: de)? (?:si ?kao|tui ?li|hui ?da)\b|\bbu(?: ?yao)? si ?kao\b",
    re.IGNORECASE,
)
_ANCHOR = re.compile(
    r"\b(?:answer|reply|respond|output|return|give)\b(?:\W+\w+){0,4}?\W+(?:exactly|only|just|in this form|in the form|"
    r"one word|a single|yes or no|true or false|the number|the letter|json)\b"
    r"|\b(?:only|just)\W+(?:answer|reply|respond|output|return|give|the answer|yes|one word|a number)\b"
    r"|\b(?:no|without|skip)\W+(?:any\W+)?(?:explanations?|explaining|comments?|commentary|preamble|extra text)\b"
    r"|\b(?:do not|don'?t)\W+explain\b|\bin one word\b|\byes or no\b"
    r"|只(?:需|要|用|能)?(?:回答|输出|返回|给出|说|写)|不(?:要|用|必|需要)解释|无需解释|仅(?:回答|输出|返回|给出)"
    r"|直接(?:回答|给出|输出)|用一个(?:词|字)回答|回答是或否|是或否",
    re.IGNORECASE,
)
_CJK = re.compile(r"[\u3400-\u9fff]")
_WORD = re.compile(r"[A-Za-z]+(?:'[a-z]+)?|\d+(?:[.,]\d+)*|[\u3400-\u9fff]")


def language_of(text: str) -> str:
    """ "zh" when at least a fifth of the letters are Chinese characters, else "en"."""
    letters = sum(ch.isalpha() for ch in text)
    return "zh" if letters and 5 * len(_CJK.findall(text)) >= letters else "en"


def read_hints(text: str) -> tuple[str, Hints]:
    """The text without depth tags, and what it asked for. Of several tags the last one counts."""
    tags = _DEPTH_TAG.findall(text)
    text = _DEPTH_TAG.sub(" ", text).strip() if tags else text.strip()
    plain = unicodedata.normalize("NFKC", text).replace("\u2019", "'")
    return text, Hints(
        depth=int(tags[-1]) if tags else None,
        guiding=_found(_GUIDING, plain),
        hurry=_found(_HURRY, plain),
        anchors=_found(_ANCHOR, plain),
    )


def _found(pattern: re.Pattern[str], text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(match.group(0).lower() for match in pattern.finditer(text)))


# A turn that only makes sense after the one before it ("commit it", "and in winter?", "为什么呢").
_FOLLOW = re.compile(
    r"^\W*(?:and|but|so|then|also|what about|how about|why(?: not)?\W*$|how so|continue|go on|go ahead|more|again|"
    r"yes|no|ok(?:ay)?|sure|do (?:it|that|so)|explain|elaborate|rewrite|same)\b"
    r"|\b(?:this|that|these|those)\b(?!\s+(?:days?|weeks?|months?|years?|morning|evening|time))"
    r"|\b(?:it|them|they|he|she|him|her|his|its|their|the (?:former|latter|above|same|"
    r"previous|first|second|last) ?(?:one)?|your (?:previous|last) (?:answer|response|reply))\b"
    r"|^(?:那|那么|然后|还有|继续|接着|再|而|为什么呢?[？?]?$|怎么说|具体点|好的?|可以|是的|对|不)"
    r"|它|他|她|这个|那个|这些|那些|上面|刚才|前面|之前说|呢[？?]?$",
    re.IGNORECASE,
)
_SHORT = {"en": 12, "zh": 16}  # words; characters


def is_follow_up(text: str, history: Sequence[Message]) -> bool:
    """True when an earlier user turn exists and this one is short and leans on it."""
    if not any(m.role == "user" for m in history):
        return False
    words = len(_WORD.findall(text))
    return words <= 3 or (words <= _SHORT[language_of(text)] and _FOLLOW.search(text) is not None)


def read(messages: Sequence[Message]) -> Features:
    """Features of the last turn of a conversation. Never fails on odd text; costs tens of microseconds."""
    text, hints = read_hints(messages[-1].content)
    history = messages[:-1]
    follow_up = is_follow_up(text, history)
    focus = text
    if follow_up:
        before = next(m.content for m in reversed(history) if m.role == "user")
        focus = f"{read_hints(before)[0]}\n{text}"
    if len(focus) > MAX_CHARS:
        focus = focus[: MAX_CHARS // 2] + "\n" + focus[-MAX_CHARS // 2 :]
    return Features(
        text=text,
        focus=focus,
        language=language_of(focus),
        hints=hints,
        follow_up=follow_up,
        cheap=cheap_of(focus, hints, bool(history)),
    )


def _has(pattern: str) -> Callable[[str], float]:
    compiled = re.compile(pattern, re.IGNORECASE)
    return lambda text: float(compiled.search(text) is not None)


_PATTERNS: Mapping[str, Callable[[str], float]] = {
    "what": _has(r"\bwhat\b|什么|啥"),
    "which": _has(r"\bwhich\b|哪"),
    "who": _has(r"\bwho(?:se|m)?\b|谁"),
    "when": _has(r"\bwhen\b|\bwhat (?:year|date|time|day)\b|何时|什么时候|哪一?年|几月|几点"),
    "where": _has(r"\bwhere\b|哪里|哪儿|何处|什么地方"),
    "why": _has(r"\bwhy\b|为什么|为何|原因|怎么会"),
    "how": _has(r"\bhow\b|怎么|如何|怎样|怎么办"),
    "how_much": _has(r"\bhow (?:many|much|long|far|old|big|tall)\b|多少|几[个只本元天次年岁倍分]|多[大长远高重]"),
    "yes_no": _has(r"^\W*(?:is|are|was|were|do|does|did|can|could|will|would|should|has|have)\b|吗[？?]?\s*$|是否"),
    "imperative": _has(
        r"^\W*(?:please )?(?:write|create|generate|make|give|list|explain|describe|compare|translate|summari[sz]e|"
        r"rewrite|classify|extract|design|plan|implement|solve|find|compose|draft|suggest|tell)\b|^请|^给|^写|^将|^把|^编写"
    ),
    "compare": _has(
        r"\b(?:compare|difference|versus|vs|better|pros and cons|trade-?offs?)\b|比较|区别|优缺点|对比|异同"
    ),
    "plan": _has(r"\b(?:plan|strategy|design|roadmap|itinerary|schedule|steps?)\b|计划|方案|规划|设计|步骤|策略"),
    "reason": _has(
        r"\b(?:prove|derive|deduce|calculate|solve|reason|logic|therefore|suppose|assume|if)\b|证明|推导|计算|求|假设|如果|推理"
    ),
    "create": _has(
        r"\b(?:story|poem|essay|article|blog|email|letter|song|script|speech)\b|故事|诗|文章|作文|邮件|歌词|剧本|演讲"
    ),
    "edit": _has(
        r"\b(?:translate|summari[sz]e|rewrite|paraphrase|classify|correct|proofread|extract)\b|翻译|总结|概括|改写|分类|提取|润色|摘要"
    ),
    "code": _has(
        r"```|\b(?:python|java(?:script)?|c\+\+|sql|html|function|algorithm|code|regex|bug|api)\b|代码|编程|程序|函数|算法"
    ),
    "math": _has(
        r"\d\s*[-+*/×÷=^<>]\s*\(?\d|\b(?:equation|sum|average|percent|ratio|probability|integral)\b|方程|平均|百分|概率|一共|剩下|还剩|面积"
    ),
    "choices": _has(r"\n\s*\(?[A-D][.．、)]\s*\S"),
    "i": _has(r"\b(?:i|my|me|mine|we|our)\b|我"),
    "you": _has(r"\b(?:you|your|u|ur)\b|你|您"),
    "greeting": _has(
        r"^\W*(?:hi|hello|hey|good (?:morning|evening|night)|bye|thanks?|thank you)\b|^你好|^您好|谢谢|再见|早上好|晚安"
    ),
    "support": _has(
        r"\b(?:account|card|payment|order|refund|password|transfer|balance|bill|invoice|delivery|log ?in|"
        r"subscription)\b"
        r"|账户|账号|帐号|银行卡|支付|订单|退款|密码|转账|余额|发票|快递|物流|登录|会员|客服"
    ),
    "now": _has(
        r"\b(?:now|today|tonight|tomorrow|yesterday|current(?:ly)?|latest|this (?:week|month|year))\b"
        r"|现在|今天|明天|昨天|目前|最新|今年|本周"
    ),
    "context": _has(r"\b(?:following|given|below|above)\b.*[:\n]|以下|下面|下列|给定|根据.{0,12}(?:文|段)"),
    "question_mark": _has(r"[?？]"),
}
_COUNTS = (
    "log_chars",
    "log_words",
    "log_sentences",
    "log_lines",
    "digit_share",
    "log_numbers",
    "cjk_share",
    "upper_share",
    "punctuation_share",
    "guiding",
    "hurry",
    "anchors",
    "history",
)
CHEAP: tuple[str, ...] = (*_COUNTS, *_PATTERNS)


def cheap_of(text: str, hints: Hints, history: bool) -> FloatArray:
    """Counts and pattern flags of one text, [len(CHEAP)], each roughly between 0 and 2."""
    text = unicodedata.normalize("NFKC", text)
    size = max(1, len(text))
    counts = (
        np.log1p(len(text)) / 4,
        np.log1p(len(_WORD.findall(text))) / 3,
        np.log1p(len(re.findall(r"[.!?。！？](?:\s|$)|[。！？]", text))) / 2,
        np.log1p(text.count("\n")) / 2,
        sum(ch.isdigit() for ch in text) / size,
        np.log1p(len(re.findall(r"\d+(?:[.,]\d+)*", text))) / 2,
        len(_CJK.findall(text)) / size,
        sum(ch.isupper() for ch in text) / size,
        sum(not ch.isalnum() and not ch.isspace() for ch in text) / size,
        float(bool(hints.guiding)),
        float(bool(hints.hurry)),
        float(bool(hints.anchors)),
        float(history),
    )
    return np.array([*counts, *(flag(text) for flag in _PATTERNS.values())], dtype=np.float32)
