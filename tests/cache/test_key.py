import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cache.errors import CacheInputError
from shoal.cache.key import key_of, normal_text, semantic_text

texts = st.text(min_size=1, max_size=60)


@given(texts)
def test_equal_requests_have_equal_keys(text: str) -> None:
    as_text = key_of(text)
    as_turn = key_of([{"role": "user", "content": text}])
    as_parts = key_of([{"content": [{"type": "text", "text": text}], "role": "user"}])
    assert as_text == as_turn == as_parts


@given(texts, texts)
def test_keys_differ_exactly_when_the_text_does(a: str, b: str) -> None:
    assert (key_of(a).hash == key_of(b).hash) == (normal_text(a) == normal_text(b))


@given(texts)
def test_normal_form_is_stable(text: str) -> None:
    assert normal_text(normal_text(text)) == normal_text(text)


@given(texts, st.sampled_from(["tenant", "model", "kb", "embedder"]), texts)
def test_every_fingerprint_counts(text: str, field: str, value: str) -> None:
    plain, other = key_of(text), key_of(text, **{field: value})
    assert (plain.hash == other.hash) == (value == getattr(plain, field))
    assert (plain.scope == other.scope) == (value == getattr(plain, field))


def test_fields_cannot_run_into_each_other() -> None:
    assert key_of("x", tenant="a", model="bc").hash != key_of("x", tenant="ab", model="c").hash


def test_white_space_and_width_do_not_count_outside_code() -> None:
    assert key_of("  what  is\n ＡＩ？ ").hash == key_of("what is AI?").hash
    assert key_of("run `a  b`").hash != key_of("run `a b`").hash
    assert key_of("```\nif x:\n  y\n```").hash != key_of("```\nif x:\ny\n```").hash


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("what is 10²", "what is 102"),
        ("add 3½ cups", "add 31⁄2 cups"),
        ("what prints this:\nif x:\n    a()\nb()", "what prints this:\nif x:\n    a()\n    b()"),
        ("a:\n\tb", "a:\nb"),
        ("Sum each line:\n1 2\n3", "Sum each line:\n1\n2 3"),
        ("What does it print?\n# x = 1\nprint(2)", "What does it print?\n# x = 1 print(2)"),
    ],
)
def test_signs_and_indentation_that_mean_something_count(a: str, b: str) -> None:
    assert key_of(a).hash != key_of(b).hash


def test_indented_texts_hit_exactly_only() -> None:
    assert key_of("fix it:\nif x:\n    a()").text is None
    assert key_of("fix it:\nif x: a()").text is not None


def test_case_counts() -> None:
    assert key_of("polish it").hash != key_of("Polish it").hash


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({"temperature": 0}, {}),
        ({"temperature": 0.0, "seed": 3}, {"seed": 4}),
        ({"max_tokens": 64}, {"max_tokens": 64.0}),
        ({"stop": "\n"}, {"stop": ["\n"]}),
        ({"stream": True, "user": "u", "max_depth": 20, "metadata": {"x": 1}}, {}),
        ({"a": None}, {}),
        ({"tools": [{"x": 1, "y": 2}]}, {"tools": [{"y": 2, "x": 1}]}),
    ],
)
def test_what_does_not_change_an_answer(a: dict[str, object], b: dict[str, object]) -> None:
    assert key_of("q", request=a).hash == key_of("q", request=b).hash


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({"temperature": 0.7}, {}),
        ({"temperature": 0.7, "seed": 1}, {"temperature": 0.7, "seed": 2}),
        ({"max_tokens": 64}, {"max_tokens": 65}),
        ({"profile": "chat"}, {"profile": "command"}),
        ({"tools": [{"name": "a"}]}, {}),
        ({"response_format": {"type": "json_object"}}, {}),
        ({"stop": ["a", "b"]}, {"stop": ["b", "a"]}),
        ({"stop": "\n"}, {"stop": "\n\n"}),
        ({"stop": [" END"]}, {"stop": ["END"]}),
        (
            {"response_format": {"type": "json_schema", "s": {"enum": ["a  b"]}}},
            {"response_format": {"type": "json_schema", "s": {"enum": ["a b"]}}},
        ),
        ({"n": 2}, {"n": 1}),
        ({"logprobs": True}, {"logprobs": 1}),
        ({"model": "a"}, {"model": "b"}),
    ],
)
def test_what_changes_an_answer(a: dict[str, object], b: dict[str, object]) -> None:
    assert key_of("q", request=a).hash != key_of("q", request=b).hash


def test_roles_order_and_system_prompt_count() -> None:
    user, system = {"role": "user", "content": "q"}, {"role": "system", "content": "be brief"}
    keys = [key_of([user]), key_of([system, user]), key_of([user, system]), key_of([user, user])]
    assert len({k.hash for k in keys}) == 4
    assert key_of([system, user]).scope != key_of([user]).scope


def test_the_same_last_turn_after_other_turns_has_another_scope() -> None:
    def chat(first: str) -> list[dict[str, str]]:
        turns = [("user", first), ("assistant", "ok"), ("user", "how old is he")]
        return [{"role": role, "content": content} for role, content in turns]

    assert key_of(chat("who is Ada's father")).scope != key_of(chat("who is the king")).scope


def test_one_scope_for_one_conversation() -> None:
    before = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    a, b = (key_of([*before, {"role": "user", "content": text}]) for text in ("reset my password", "password reset"))
    assert a.scope == b.scope
    assert a.hash != b.hash


@pytest.mark.parametrize("text", ["how old is he", "commit it", "那它呢", "and in winter?", "what about Rome"])
def test_texts_that_lean_on_something_unsaid_are_not_compared(text: str) -> None:
    assert semantic_text(key_of(text).text) is None


@pytest.mark.parametrize("text", ["How do I reset my password?", "怎么重置密码", "Who wrote Hamlet?"])
def test_texts_that_stand_alone_are_compared(text: str) -> None:
    assert semantic_text(key_of(text).text) == text


def test_pictures_tool_results_and_long_texts_hit_exactly_only() -> None:
    picture = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    tool = [{"role": "tool", "content": "42", "tool_call_id": "1"}]
    assert key_of(picture).text is None
    assert key_of(tool).text is None
    assert key_of("a" * 601).text is None


def test_surrogates() -> None:
    assert key_of("\ud83d\ude00").hash == key_of("😀").hash
    assert key_of("\ud83d").hash != key_of("\ude00").hash != key_of("?").hash


@pytest.mark.parametrize("prompt", [None, [], [1], [{"content": "no role"}], 3, {"role": "user"}])
def test_prompts_of_no_known_shape(prompt: object) -> None:
    with pytest.raises(CacheInputError):
        key_of(prompt)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [math.nan, math.inf, object(), b"bytes"])
def test_values_with_no_canonical_form(value: object) -> None:
    with pytest.raises(CacheInputError):
        key_of("q", request={"logit_bias": value})


def test_values_nested_without_end_are_refused() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(CacheInputError, match="nested"):
        key_of("q", request={"tools": deep})


def test_an_empty_tenant_is_refused() -> None:
    with pytest.raises(CacheInputError, match="tenant"):
        key_of("q", tenant="")


def test_lines_may_be_spaced_as_one_likes() -> None:
    assert key_of("a:\n1  2\n\n3").hash == key_of("\n a: \r\n1 2\n3\n").hash


def test_null_in_a_schema_is_a_value() -> None:
    null, anything = ({"schema": {"properties": {"x": held}}} for held in ({"const": None}, {}))
    assert key_of("q", request=null).hash != key_of("q", request=anything).hash
    named, unnamed = {"role": "user", "content": "q", "name": None}, {"role": "user", "content": "q"}
    assert key_of([named]).hash == key_of([unnamed]).hash


@pytest.mark.parametrize("digits", [400, 5000])
def test_numbers_beyond_any_float_are_refused(digits: int) -> None:
    with pytest.raises(CacheInputError, match="bits"):
        key_of("q", request={"temperature": 0.5, "seed": 10**digits})
