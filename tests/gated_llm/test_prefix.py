"""Blocks of prompts that are shared: where they lie, what is found, how much is held."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.gated_llm.prefix import FIRST, NEXT, PrefixStore, blocks

BYTES = 8  # of one token here


def block(n: int) -> torch.Tensor:
    return torch.zeros(2, n, 2, 1, dtype=torch.int16)  # 8 bytes a token


@given(st.integers(0, 5000), st.integers(0, 5000))
def test_blocks_cover_a_prompt_and_do_not_depend_on_its_length(short: int, more: int) -> None:
    spans, longer = list(blocks(short)), list(blocks(short + more))
    assert [start for start, _ in spans] == [0, *(stop for _, stop in spans)][: len(spans)]
    assert (spans[-1][1] if spans else 0) == short
    assert spans[:-1] == longer[: max(len(spans) - 1, 0)]
    assert all(stop - start <= NEXT for start, stop in spans)


def test_only_whole_leading_blocks_are_found() -> None:
    store, ids = PrefixStore(1 << 20), list(range(2000))
    for end in (256, 512, 1024):
        store.keep(ids[:end], "", block(end // 2 if end > 256 else 256))
    store.keep(ids[:300], "", block(44))  # no whole block
    assert len(store.find(ids, "")) == 3
    assert len(store.find(ids[:1024], "")) == 2  # the last token's pass is always run
    assert len(store.find(ids[:600], "")) == 2
    assert store.find(ids[:256], "") == []
    assert len(store.find([*ids[:400], 7, *ids[401:]], "")) == 1
    assert store.find([7, *ids[1:]], "") == []
    assert store.find(ids, "another's") == []
    store.clear()
    assert (store.find(ids, ""), store.bytes_held) == ([], 0)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 1)), max_size=30), st.integers(0, 3000 * BYTES))
def test_never_more_than_allowed(kept: list[tuple[int, int]], most: int) -> None:
    store = PrefixStore(most)
    for first, long in kept:
        ids = [first] * FIRST[long]
        store.keep(ids, "", block(256))
        assert store.bytes_held <= most
        assert (len(store.find([*ids, 1], "")) > 0) == (most >= 256 * BYTES) or long


def test_the_block_unused_for_longest_leaves_first() -> None:
    store = PrefixStore(2 * 256 * BYTES)
    a, b, c = ([i] * 257 for i in range(3))
    for ids in (a, b):
        store.keep(ids[:256], "", block(256))
    assert store.find(a, "")
    store.keep(c[:256], "", block(256))
    assert [len(store.find(ids, "")) for ids in (a, b, c)] == [1, 0, 1]
