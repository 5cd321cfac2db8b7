from typing import Any, cast

from shoal.router.deep import Deep, text_tokens


class _Counting:
    """Ten tokens around a turn, one for each word."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def count_tokens(self, prompt: Any) -> int:
        self.asked.append(prompt)
        return 10 + len(prompt.split())


def test_tokens_of_a_text_are_counted_without_the_turn_and_once() -> None:
    model = _Counting()
    count = text_tokens(cast("Deep", model))
    assert [count("one two"), count(""), count("one two")] == [2, 0, 2]
    assert model.asked == [".", "one two", ""]
