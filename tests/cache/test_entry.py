from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from shoal.cache.entry import Entry, decode, encode

texts = st.text(max_size=30)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | texts, lambda v: st.lists(v, max_size=3), max_leaves=4
)
entries = st.builds(
    Entry,
    id=texts, key=texts, scope=texts, tenant=texts, kb=texts, text=texts, prompt=texts, bucket=texts,
    budget=st.floats(0, 40), depth=st.floats(0, 40), rank=st.integers(0, 2),
    created=st.floats(0, 1e10), expires=st.floats(0, 1e10),
    tags=st.tuples(texts), meta=st.dictionaries(texts, json_values, max_size=2),
    tier=st.just("l1"), score=st.just(1.0), confidence=st.just(1.0),
)  # fmt: skip


@given(entries)
def test_there_and_back(entry: Entry) -> None:
    assert decode(encode(entry), tier="l1") == entry


@given(entries, st.data())
def test_any_damage_is_a_miss(entry: Entry, data: st.DataObject) -> None:
    raw = bytearray(encode(entry))
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= data.draw(st.integers(1, 255))
    assert decode(bytes(raw)) in (None, replace(entry, tier="l2"))  # upper and lower case hex aside
    assert decode(encode(entry)[:place]) is None


@given(st.binary(max_size=60))
def test_foreign_bytes_are_a_miss(raw: bytes) -> None:
    assert decode(raw) is None
