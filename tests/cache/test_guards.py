import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.cache import Guards
from shoal.cache.facts import MAX_CHARS

guards = Guards()

OPPOSED = [
    ("turn on dark mode", "turn off dark mode", "antonym"),
    ("turn the lights on", "switch the lights off", "antonym"),
    ("how do I enable cookies", "how do I disable cookies", "antonym"),
    ("increase the volume", "decrease the volume", "antonym"),
    ("what must I do before surgery", "what must I do after surgery", "antonym"),
    ("is it possible to merge", "is it impossible to merge", "antonym"),
    ("is a harmful comment", "is a harmless comment", "antonym"),
    ("打开深色模式", "关闭深色模式", "antonym"),
    ("怎么调高音量", "怎么调低音量", "antonym"),
    ("手术之前能吃饭吗", "手术之后能吃饭吗", "antonym"),
    ("can I return it", "can I not return it", "negation"),
    ("why is my card working", "why isn't my card working", "negation"),
    ("我可以退货吗", "我不可以退货吗", "negation"),
    ("5 weeks of leave", "7 weeks of leave", "number"),
    ("twenty days of leave", "thirty days of leave", "number"),
    ("一百二十元的票", "一百三十元的票", "number"),
    ("top 10 restaurants", "top restaurants", "number"),
    ("a 5 km run", "a 5 mile run", "number"),
    ("a fee of $5", "a fee of €5", "number"),
    ("meet at 3pm", "meet at 3am", "number"),
    ("on 2024-05-01", "on 2024-05-02", "number"),
    ("python 3.9 features", "python 3.10 features", "number"),
    ("upgrade to 1.2.3", "upgrade to 1.2.4", "number"),
    ("weather in Paris", "weather in Rome", "different kind"),
    ("法国的首都是哪里", "德国的首都是哪里", "different kind"),
    ("open on monday", "open on tuesday", "different kind"),
    ("Who directed Inception last", "Who directed Titanic last", "name"),
    ("what does `foo()` do", "what does `bar()` do", "code"),
    ('who said "to be or not"', 'who said "I came, I saw"', "quoted text"),
    ("who wrote Hamlet", "when was Hamlet written", "question"),
    ("谁发明了电话", "什么时候发明了电话", "question"),
    ("where is my account", "where is your account", "owner"),
    ("convert USD to EUR", "convert EUR to USD", "order"),
    ("is python better than java", "is java better than python", "order"),
    ("does a dog chase a cat", "does a cat chase a dog", "order"),
    ("北京比上海大吗", "上海比北京大吗", "order"),
    ("从北京到上海的火车", "从上海到北京的火车", "order"),
    ("金比铅重吗", "铅比金重吗", "order"),
    ("bread with an oven", "bread without an oven", "negation"),
    ("the lounge is open to families", "the lounge is no longer open to families", "negation"),
    ("pick up the parcel at noon", "drop off the parcel at noon", "antonym"),
    ("what do tenants pay for", "what do landlords pay for", "antonym"),
    ("does sport make you hungrier", "does sport make you less hungry", "antonym"),
    ("is it more useful", "is it less useful", "antonym"),
    ("paint for 20 square metres", "paint for 20 metres", "number"),
    ("paint for 20 sq m", "paint for 20 litres", "number"),
    ("房间有12平方米", "房间有12米", "number"),
    ("explain article 15 of the law", "explain article 15b of the law", "number"),
    ("怎么续签护照", "怎么续签签证", "different kind"),
    ("what is 10²", "what is 10³", "number"),
    ("what is 10²", "what is 102", "number"),
    ("what is 2^10", "what is 10^2", "number"),
    ("is 27/07 a holiday", "is 07/27 a holiday", "number"),
    ("what does `ls -R` do", "what does `ls -r` do", "code"),
    ("what does ls -R do", "what does ls -r do", "code"),
    ("what does rm -rf do", "what does rm do", "code"),
    ("how long for 8 Mb", "how long for 8 MB", "unit"),
    ("which guests did appear in court", "which guests failed to appear in court", "negation"),
    ("has every player signed", "has any player signed", "antonym"),
    ("is the surgeon always present", "is the surgeon ever present", "antonym"),
    ("explain $? in a script", "explain $! in a script", "code"),
    ("why does a.*b not match", "why does a*b not match", "code"),
    ("what is a < b", "what is a > b", "sign"),
    ("what does a == b mean", "what does a = b mean", "sign"),
    ("what is 7 - 3", "what is 3 - 7", "number"),
    ("is ann@a.com valid", "is ann@b.com valid", "code"),
    ("open ../a.txt", "open ./a.txt", "code"),
    ("小明打败了小红", "小明被小红打败了", "order"),
    ("李华是王明的老师", "王明是李华的老师", "order"),
    ("Did Brazil defeat Italy?", "Was Brazil defeated by Italy?", "roles"),
    ("Who did Kennedy influence?", "Who was Kennedy influenced by?", "roles"),
]

SAME = [
    ("How do I reset my password?", "how can I reset the password"),
    ("How do I top up with a cheque?", "how do you top up by cheque"),
    ("can I return it after 30 days", "can I return it after thirty days"),
    ("can I return it after 30 days", "Can I return it after 30 days?"),
    ("一百二十元的票", "120元的票"),
    ("meet at 3pm", "meet at 15:00"),
    ("on 2024-05-01", "on May 1, 2024"),
    ("2024年5月1日的会议", "2024-05-01的会议"),
    ("the light is not on", "the light is off"),
    ("What year did Chopin become a citizen of France?", "In what year did Chopin become a French citizen?"),
    ("I have no idea where my card is", "where is my card"),
    ("怎么重置密码", "密码怎么重置"),
    ("你是不是机器人", "你是机器人吗"),
    ("what is the price", "What's the price?"),
    ("distance between two points", "distance between points"),
    ("difference between a llama and an alpaca", "difference between an alpaca and a llama"),
    ("history of china", "china's history"),
    ("I don't have any idea what this payment is", "what is this payment"),
    ("run `make test`", "please run `make test`"),
    ("use `load_data` for `ImageFolder`, type `imagefolder`", "for `ImageFolder` use `load_data`"),
    ("No, it does not exist in v2.10.0.", "it does not exist in version 2.10.0"),
    ("不，它不支持中文", "它不支持中文"),
    ("room for several thousand files", "room for thousands of files"),
    ("a zero-copy slice of the table", "a slice of the table that copies nothing"),
    ("three steps: 1. read 2. write 3. check", "three steps: read, write, check"),
    ("load it in the absence of a script", "load it when there is no script"),
    ("add 3½ cups", "add 3 1/2 cups"),
    ("what is 5 + 3", "what is 5 plus 3"),
    ("on 2024-05-01 or later", "on 2024/05/01 or later"),
    ("how long for 8 mb", "how long for 8 MB"),
    ("小明打败了小红", "小红被小明打败了"),
    ("房子被卖了吗", "房子卖了吗"),
    ("什么是光合作用", "光合作用是什么"),
    ("Did Brazil defeat Italy?", "Was Italy defeated by Brazil?"),
    ("Who painted the Mona Lisa?", "By whom was the Mona Lisa painted?"),
]


@pytest.mark.parametrize(("a", "b", "kind"), OPPOSED)
def test_what_must_not_meet(a: str, b: str, kind: str) -> None:
    reason = guards.conflict(a, b)
    assert reason is not None
    assert reason.startswith(kind)


@pytest.mark.parametrize(("a", "b"), SAME)
def test_what_may_meet(a: str, b: str) -> None:
    assert guards.conflict(a, b) is None


WORDS = """turn on off 5 7 km mile not Paris Rome from to before after who when where `x` my your
打开 关闭 三 五 天 不 比 北京 上海 好""".split()  # noqa: SIM905


@settings(deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=8), st.lists(st.sampled_from(WORDS), max_size=8))
def test_symmetric(a: list[str], b: list[str]) -> None:
    one, other = " ".join(a), " ".join(b)
    assert guards.conflict(one, other) == guards.conflict(other, one)


@settings(deadline=None)
@given(st.text(max_size=60), st.text(max_size=60))
def test_any_text_is_taken_and_none_conflicts_with_itself(a: str, b: str) -> None:
    assert guards.conflict(a, a) is None
    assert guards.conflict(a, b) == guards.conflict(b, a)


def test_long_texts_are_cheap() -> None:
    a, b = "word " * 20_000, "other " * 20_000
    assert guards.conflict(a, b) == guards.conflict(a[:MAX_CHARS], b[:MAX_CHARS])  # what follows is not read


PARCELS = "Parcels to Canada cost ten dollars. Returns are accepted within 30 days. The shop opens at nine on Monday."


@pytest.mark.parametrize(
    ("question", "sentence", "reason"),
    [
        ("How much does a parcel to Mexico cost?", "Parcels to Canada cost ten dollars.", "name"),
        ("Are returns accepted within 60 days?", "Returns are accepted within 30 days.", "number"),
        ("When does the shop close on Monday?", "The shop opens at nine on Monday.", "close"),
        ("周二几点开门?", "周一九点开门。", "different kind"),
        ("周一几点关门?", "周一九点开门。", "antonym"),
        ("How far can the lamp not be seen?", "Its lamp can be seen from 30 km.", "negation"),
    ],
)
def test_a_sentence_that_does_not_hold_what_was_asked(question: str, sentence: str, reason: str) -> None:
    assert reason in (guards.unsupported(question, sentence, PARCELS + sentence) or "")


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        ("How much does a parcel to Canada cost?", "Parcels to Canada cost ten dollars."),
        ("When does the shop open on Monday?", "The shop opens at nine on Monday."),
        ("周一几点开门?", "周一九点开门。"),
        ("How long do I have to return something?", "Returns are accepted within 30 days."),
    ],
)
def test_a_sentence_may_say_more_than_was_asked(question: str, sentence: str) -> None:
    assert guards.unsupported(question, sentence, PARCELS + sentence) is None


def test_lines_of_a_table_count() -> None:
    guards = Guards()
    assert guards.conflict("Sum each line:\n1 2\n3", "Sum each line:\n1\n2 3") == "lines"
    assert guards.conflict("How do I\nsum lines?", "How do I sum lines?") is None
