"""Gates that are swapped while an answer is made: it is kept as what the old ones gave (C3, G15)."""

from collections.abc import Iterator
from typing import Any

from shoal.router import CognitiveRouter, Route

from .conftest import HARD, ScriptedModel


def test_an_answer_belongs_to_the_gates_it_began_with() -> None:
    class Swapping(ScriptedModel):
        def stream(self, *prompt: Any, **settings: Any) -> Iterator[Any]:
            for chunk in super().stream(*prompt, **settings):
                self.fingerprint = "scripted-2"
                yield chunk

    model = Swapping()
    router = CognitiveRouter(llm=model)
    assert router.ask(HARD).route is Route.DEEP
    assert router.ask(HARD).route is Route.DEEP  # the new gates have not said it yet
    assert router.ask(HARD).route is Route.CACHE
    model.fingerprint = "scripted-1"
    assert router.ask(HARD).route is Route.CACHE
    assert len(model.calls) == 2
