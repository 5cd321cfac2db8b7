"""Answers by a JSON schema: always parse, whatever the model would rather say."""

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.gated_llm import GatedLLM, SamplingError

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "mood": {"enum": ["calm", "cross", "高兴"]},
    },
    "required": ["name", "age", "mood"],
    "additionalProperties": False,
}


@given(seed=st.integers(0, 50), temperature=st.sampled_from([0.0, 1.0, 3.0]), depth=st.sampled_from([4, 6]))
@settings(max_examples=20, deadline=None)
def test_what_a_random_model_says_fits_the_schema(tiny: GatedLLM, seed: int, temperature: float, depth: int) -> None:
    made = tiny.generate("Who?", schema=PERSON, max_tokens=200, temperature=temperature, seed=seed, max_depth=depth)
    assert made.finish_reason == "stop"
    jsonschema.validate(json.loads(made.text), PERSON)


def test_streamed_pieces_join_to_the_same(tiny: GatedLLM) -> None:
    asked: dict[str, Any] = {"schema": PERSON, "max_tokens": 200, "temperature": 1.0, "seed": 3}
    assert "".join(chunk.text for chunk in tiny.stream("Who?", **asked)) == tiny.generate("Who?", **asked).text


def test_an_answer_cut_off_says_so(tiny: GatedLLM) -> None:
    assert tiny.generate("Who?", schema=PERSON, max_tokens=3).finish_reason == "length"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "no such type"},
        {"$ref": "http://example.invalid/x"},
        {"type": object},
        {"const": "x" * 200_000},
        [],
        {"$ref": "#"},
    ],
)
def test_schemas_that_cannot_be_kept(tiny: GatedLLM, schema: Any) -> None:
    with pytest.raises(SamplingError, match="schema"):
        tiny.stream("Who?", schema=schema)


@pytest.mark.model
def test_the_default_model_fills_a_form(llm: GatedLLM) -> None:
    schema = {
        "type": "object",
        "properties": {"capital": {"type": "string", "maxLength": 20}},
        "required": ["capital"],
        "additionalProperties": False,
    }
    made = llm.generate("What is the capital of France? Answer as JSON.", schema=schema, max_tokens=40)
    assert "Paris" in json.loads(made.text)["capital"]


def test_a_schema_that_no_finite_json_fits_never_ends_as_if_it_did(tiny: GatedLLM) -> None:
    endless = {"type": "object", "properties": {"x": {"$ref": "#"}}, "required": ["x"]}
    with pytest.raises(SamplingError, match="no finite JSON"):
        tiny.generate("Who?", schema=endless, max_tokens=60)
