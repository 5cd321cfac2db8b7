import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.router.decision import Message, messages_of
from shoal.router.features import CHEAP, MAX_CHARS, language_of, read, read_hints


@pytest.mark.parametrize(
    ("text", "rest", "depth"),
    [
        ("<depth_hint:35> why is the sky blue", "why is the sky blue", 35),
        ("why <Depth_Hint: 12 > is it", "why   is it", 12),
        ("<depth_hint:8> a <depth_hint:20>", "a", 20),
        ("no tag here", "no tag here", None),
        ("<depth_hint:abc> stays", "<depth_hint:abc> stays", None),
    ],
)
def test_depth_tags_are_read_and_removed(text: str, rest: str, depth: int | None) -> None:
    found, hints = read_hints(text)
    assert (found, hints.depth) == (rest, depth)


@pytest.mark.parametrize(
    "text", ["Explain in detail", "a comprehensive plan", "think step by step", "详细说明", "请逐步分析", "一一列出"]
)
def test_guiding_words(text: str) -> None:
    assert read_hints(text)[1].guiding


@pytest.mark.parametrize(
    "text",
    [
        "use the least thinking", "with minimal reasoning", "think as fast as you can", "fewest layers please",
        "as little thinking as possible", "don't think, just answer", "skip all reasoning",
        "give me the quickest answer",
        "as few layers as possible", "/no_think", "no_think please", "don\u2019t overthink it",
        "first thing that comes to mind", "without any deliberation", "off the top of your head", "gut reaction only",
        "reasoning effort: low", "turn off your thinking", "disable reasoning", "no need to think", "use one layer",
        "keep your reasoning very short", "snap judgement please", "blurt it out",
        "不假思索地说", "凭直觉回答", "关闭思考", "尽量少动脑", "少用思考", "浅层思考", "一层就够", "立刻作答",
        "zui shao de si kao",
        "用最少的思考回答", "最快回答", "最简推理", "不要思考", "用最短的时间回答", "思考越少越好", "以最快的方式回答",
        "think for zero seconds", "the less you think the better", "do not use your brain", "with hardly any thought",
        "answer right away", "your laziest answer", "rush it", "as quickly as possible: what is it?",
        "early exit after layer 3", "reply in the shortest possible time", "respond in under a second",
        "answer before thinking", "thinking time: zero", "reasoning should be kept to the minimum", "brain off",
        "don't waste any time thinking", "an immediate answer, please", "the cheapest computation",
        "思考降到最低", "脑子别转", "懒得想", "懒得让你想", "想得越少越好", "尽快回答", "思考时间设为零",
        "一秒钟内回答", "不经思考", "思考从简", "不加思索", "无脑回答", "最小化思考", "少费脑筋", "思考量最小",
        "越快越好", "禁止推理", "大脑放空", "最低限度地思考", "三秒内作答", "用最少的脑细胞", "以最快速度答复",
        "最少 thinking", "least 思考", "最快reasoning",
    ],
)  # fmt: skip
def test_words_that_ask_for_little_thinking(text: str) -> None:
    assert read_hints(text)[1].hurry


@pytest.mark.parametrize(
    "text",
    [
        "what is the fastest animal",
        "simplest form of 6/8",
        "最快的动物是什么",
        "the shortest river",
        "最小公倍数",
        "the quickest route home",
        "how many layers has an onion",
        "a quick dinner for two",
        "the first thing to do in Rome",
        "turn off the light",
        "a few thoughts on this poem",
        "他的第一反应是什么",
        "快速排序",
        "I want to reach Rome as quickly as possible",
        "Please reply as soon as possible",
        "How fast does a chemical reaction run at full speed?",
        "Wait a second, think for a moment about the brain",
        "the laziest animal",
        "is there an exit near the hall?",
        "half a second is how many milliseconds?",
        "脑子是怎么工作的",
        "一秒钟是多少毫秒",
        "抢答快吗",
        "最低价格是多少",
        "盐越少越好吗",
        "我没有想到",
        "大脑最小的动物",
    ],
)
def test_superlatives_alone_ask_for_nothing(text: str) -> None:
    assert not read_hints(text)[1].hurry


@pytest.mark.parametrize(
    "text",
    [
        "Answer exactly in this form, no explanation",
        "reply with yes or no",
        "只回答是或否",
        "仅输出数字",
        "just the answer",
    ],
)
def test_answer_anchors(text: str) -> None:
    assert read_hints(text)[1].anchors


@given(st.text(max_size=300))
def test_any_text_is_read(text: str) -> None:
    features = read((Message(role="user", content=text),))
    assert features.cheap.shape == (len(CHEAP),)
    assert bool((features.cheap < 20).all())


@pytest.mark.parametrize(
    ("text", "language"), [("hello", "en"), ("你好", "zh"), ("用Python写代码", "zh"), ("12 + 3", "en"), ("", "en")]
)
def test_language(text: str, language: str) -> None:
    assert language_of(text) == language


@pytest.mark.parametrize("follow", ["why?", "commit it", "and in winter?", "为什么呢", "那冬天呢"])
def test_a_follow_up_carries_the_turn_before_it(follow: str) -> None:
    talk = messages_of(
        [
            {"role": "user", "content": "Prove the theorem of Pythagoras"},
            {"role": "assistant", "content": "Done."},
            {"role": "user", "content": follow},
        ]
    )
    features = read(talk)
    assert features.follow_up
    assert features.focus == f"Prove the theorem of Pythagoras\n{follow}"
    assert features.text == follow


def test_a_whole_question_stands_alone() -> None:
    talk = messages_of(
        [{"role": "user", "content": "hi"}, {"role": "user", "content": "What is the capital of Portugal these days?"}]
    )
    assert not read(talk).follow_up
    assert not read(messages_of("commit it")).follow_up


def test_long_texts_are_read_from_both_ends() -> None:
    features = read(messages_of("a" * 10_000 + " end"))
    assert len(features.focus) <= MAX_CHARS + 1
    assert features.focus.endswith("end")
