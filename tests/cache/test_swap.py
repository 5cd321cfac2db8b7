import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.cache import same_question
from shoal.cache.swap import Swap
from shoal.rag.embed import default_embedder


def test_synonyms_pass_and_names_do_not() -> None:
    swap = Swap(default_embedder())
    assert swap.conflict("How do I buy a used car?", "How do I purchase a used car?") is None
    assert swap.conflict("Who first discovered radium?", "Who first discovered oxygen?") == "exchanged: oxygen / radium"
    assert swap.conflict("镭是谁发现的", "氧气是谁发现的") is not None


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("Is coffee good for me?", "Is coffee bad for me?"),
        ("What is nitrate used for in food?", "What is nitrite used for in food?"),
        ("What is the role of mitosis in growth?", "What is the role of meiosis in growth?"),
        ("What is the boiling point of ethanol?", "What is the boiling point of methanol?"),
        ("When did the shop move to Berlin?", "When did the shop leave Berlin?"),
        ("When was the bridge opened?", "When was the bridge destroyed?"),
        ("When was the shop founded?", "When was the shop sold?"),
        ("What is the first step of the setup?", "What is the second step of the setup?"),
        ("When was the lighthouse built?", "When was the lighthouse demolished?"),
        ("Who wrote the report?", "Who read the report?"),
        ("台灯保修几年?", "吊灯保修几年?"),
        ("What do tenants usually pay for?", "What do landlords usually pay for?"),
        ("Is it rude to arrive early from a dinner?", "Is it rude to leave early from a dinner?"),
        ("How can I stimulate my appetite?", "How can I suppress my appetite?"),
        ("How do I prune lavender?", "How do I prune plum trees?"),
        ("Was the cathedral finished?", "Who finished the cathedral in 1880?"),
        ("When was the cathedral finished?", "Why was the cathedral finished?"),
        ("Who sells fresh yeast in town?", "Which street sells fresh yeast in town?"),
        ("How deep is the water in the lake?", "How cold is the water in the lake?"),
        ("Can I take the car on the night ferry?", "Can I take the car on the ferry?"),
        ("Do prices go up in the holidays?", "Do prices go down in the holidays?"),
        ("Are minors covered by the policy?", "Are only minors covered by the policy?"),
        ("Did the council approve the plan?", "Did the plan approve the council?"),
        ("公司怎么赢得客户的信任?", "公司怎么失去客户的信任?"),
        ("甲队先于乙队到达吗?", "乙队先于甲队到达吗?"),
        ("湖水有多深?", "湖水有多冷?"),
        ("里程的算法是什么?", "程的算法是什么?"),
        ("桌上有什么?", "桌里有什么?"),
        ("鲈鱼怎么去骨?", "鲭鱼怎么去骨?"),
        ("Is the moon one light second away?", "Is the moon one light minute away?"),
        ("怎么修剪月季?", "怎么修剪薰衣草?"),
        ("门票可以转让给朋友吗?", "门票可以免费转让给朋友吗?"),
    ],
)
def test_one_changed_word_changes_the_question(a: str, b: str) -> None:
    veto = same_question(default_embedder())
    assert veto(a, b) is not None
    assert veto(b, a) is not None


def test_loosely_reworded_chinese_statements_are_denied_and_questions_are_not() -> None:
    veto = Swap(default_embedder()).conflict
    a, b = "于是店主做了特别的点心，并送给了隔壁的裁缝一家", "因此裁缝进行了特殊的准备，并向店主一家献上了点心"
    assert veto(a, b) == "reworded statement"
    assert veto(b, a) == "reworded statement"
    assert veto(f"{a}吗？", f"{b}吗？") is None


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("When was the shop founded?", "When was the shop established?"),
        ("Where is my package?", "Where is my parcel?"),
        ("How do I buy a lamp?", "How do I purchase a lamp?"),
        ("怎么修改密码?", "如何更改密码?"),
        ("绿萝怎么浇水?", "绿萝应该如何浇水?"),
        ("德比的门票在哪里买?", "在哪儿可以买到德比的门票?"),
        ("裁判为什么暂停比赛?", "裁判暂停比赛的原因是什么?"),
        ("越位规则是什么?", "请解释一下越位规则"),
        ("The function loads a table.", "The function retrieves a table."),
        ("It is used to select records.", "It selects records."),
        ("How do I cancel my order?", "Hi, can you tell me how I could cancel my order please?"),
        ("Can I get a second card?", "Could I obtain a second card?"),
        ("In 2020, who won the cup?", "Who won the cup in 2020?"),
        ("怎么重置密码?", "你好，请问密码应该如何重置呢？谢谢"),
        ("退款需要多长时间到账?", "退款多久才能到账"),
        ("能不能用支付宝付款?", "可以用支付宝付款吗?"),
        ("Can I cancel within 14 days?", "Can I cancel within fourteen days?"),
        ("十四天内可以退货吗?", "14天内可以退货吗?"),
        ("Are children admitted to the show?", "Are kids admitted to the show?"),
    ],
)
def test_synonyms_keep_the_question(a: str, b: str) -> None:
    assert same_question(default_embedder())(a, b) is None


QUESTIONS = (
    "How do I cancel my order?", "Is gold heavier than lead?", "Who won the cup in 2020?", "What do two cards cost?",
    "怎么重置密码?", "黄金比铅重吗?", "从北京到上海要多久?", "退款多久能到账?",
)  # fmt: skip
WRAPS = ("{}", "please, {}", "hello, {} thanks", "can you tell me {}", "请问{}", "你好，{}谢谢")


def _wide(text: str) -> str:
    return "".join(chr(ord(c) + 0xFEE0) if c.isalnum() and c.isascii() else c for c in text)


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(QUESTIONS),
    st.sampled_from(WRAPS),
    st.booleans(),
    st.booleans(),
    st.sampled_from(("", "?", " ?!", "。")),
)
def test_politeness_case_width_and_marks_change_nothing(q: str, wrap: str, upper: bool, wide: bool, mark: str) -> None:
    if ("{}" in wrap and wrap.isascii()) != q.isascii():
        wrap = "{}"
    other = wrap.format(q.rstrip("?") + mark)
    other = other.upper() if upper else other
    assert SAME(q, _wide(other) if wide else other) is None


SAME = same_question(default_embedder())


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(QUESTIONS), st.sampled_from(QUESTIONS), st.integers(0, 12), st.integers(0, 12))
def test_symmetric_whatever_the_cut(a: str, b: str, i: int, j: int) -> None:
    one, other = a[:i] + b[j:], b[:j] + a[i:]
    assert SAME(one, other) == SAME(other, one)
    assert SAME(one, one) is None
