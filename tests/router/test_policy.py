"""The table of rules: each row pins one rule of the policy."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.router.decision import Route
from shoal.router.errors import InvalidRequest, RouterError
from shoal.router.features import Hints
from shoal.router.policy import (
    FLOOR,
    PROFILES,
    Budget,
    Model,
    Profile,
    decide_budget,
    may_undercut,
    profile_named,
    profiles_of,
)
from shoal.router.settings import BadSettings, load_settings

FREE = Model(total=40, min_depth=8, auto=8)  # a model whose shallow plans keep their quality
DEFAULT = Model(total=30, min_depth=15, auto=30)  # one where only full depth does
SHALLOW, MIDDLE, DEEP = (0.9, 0.08, 0.02), (0.1, 0.8, 0.1), (0.0, 0.2, 0.8)


def budget(**change: object) -> Budget:
    plain = {"route": Route.DIRECT, "depth": SHALLOW, "hints": Hints(), "profile": PROFILES["balanced"], "model": FREE}
    return decide_budget(**{**plain, **change})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "layers", "bucket"),
    [
        ({}, 20, "0-20"),
        ({"depth": MIDDLE}, 35, "21-35"),
        ({"depth": DEEP}, 40, "36+"),
        ({"depth": (0.5, 0.4, 0.1)}, 35, "21-35"),  # the shallowest bucket that is enough with 80%
        ({"route": Route.DEEP}, 35, "21-35"),  # deep is never shallow
        ({"hints": Hints(guiding=("step by step",))}, 35, "21-35"),  # 15 of 40 more
        ({"depth": MIDDLE, "hints": Hints(guiding=("详细",))}, 40, "36+"),
        ({"depth": MIDDLE, "hints": Hints(anchors=("no explanation",))}, 20, "0-20"),
        ({"depth": MIDDLE, "hints": Hints(anchors=("no explanation",), guiding=("detailed",))}, 40, "36+"),
        ({"depth": DEEP, "hints": Hints(hurry=("least thinking",))}, 20, "0-20"),
        ({"hints": Hints(depth=12)}, 12, "0-20"),
        ({"hints": Hints(depth=99)}, 40, "36+"),  # clipped to the model
        ({"hints": Hints(depth=2)}, 8, "0-20"),
        ({"profile": PROFILES["command"], "depth": DEEP}, 35, "21-35"),
        ({"profile": PROFILES["chat"]}, 35, "21-35"),
        ({"max_depth": 10}, 10, "0-20"),
        ({"max_depth": 38}, 20, "0-20"),  # a limit is not a wish
        ({"max_depth": 9, "guarded": True}, 15, "0-20"),
        ({"hints": Hints(depth=9), "guarded": True}, 15, "0-20"),
        ({"max_depth": 30, "guarded": True}, 20, "0-20"),  # the floor lifts, it does not lower
        ({"model": DEFAULT}, 30, "27+"),  # auto: full depth where no plan is good enough
        ({"model": DEFAULT, "hints": Hints(hurry=("fastest thinking",))}, 30, "27+"),  # words do not cost quality
        ({"model": DEFAULT, "max_depth": 20}, 20, "16-26"),
        ({"model": DEFAULT, "hints": Hints(depth=20)}, 20, "16-26"),
        ({"model": DEFAULT, "profile": PROFILES["command"]}, 15, "0-15"),
        ({"model": DEFAULT, "profile": PROFILES["command"], "depth": DEEP}, 26, "16-26"),  # 35 of 40
        ({"model": dataclasses.replace(DEFAULT, auto=24), "depth": SHALLOW}, 24, "16-26"),
        ({"model": dataclasses.replace(DEFAULT, auto=24), "depth": DEEP}, 30, "27+"),
    ],
)
def test_rules(change: dict[str, object], layers: float, bucket: str) -> None:
    found = budget(**change)
    assert (found.layers, found.bucket) == (layers, bucket)
    assert found.reasons


def test_auto_is_said_only_when_nothing_else_decided() -> None:
    assert budget(model=DEFAULT).auto
    assert not budget(model=DEFAULT, max_depth=20).auto
    assert not budget(depth=DEEP).auto


@pytest.mark.parametrize(
    ("change", "deepest"),
    [
        ({}, None),
        ({"hints": Hints(depth=12)}, 12),
        ({"profile": PROFILES["command"]}, 35),
        ({"profile": PROFILES["command"], "hints": Hints(depth=38)}, 38),  # a hint replaces the profile's wish
        ({"profile": PROFILES["command"], "max_depth": 30}, 30),
        ({"hints": Hints(depth=12), "max_depth": 30}, 12),
    ],
)
def test_what_a_second_try_may_use(change: dict[str, object], deepest: float | None) -> None:
    assert budget(**change).deepest == deepest


@given(
    hint=st.none() | st.integers(0, 40),
    limit=st.none() | st.integers(2, 40),
    profile=st.builds(Profile, name=st.just("p"), deepest=st.floats(1, 40), trade=st.booleans()),
    hurry=st.booleans(),
    auto=st.integers(2, 40),
)
def test_what_may_undercut_the_floor_is_known_beforehand(
    hint: int | None, limit: int | None, profile: Profile, hurry: bool, auto: int
) -> None:
    hints = Hints(depth=hint, hurry=("least thinking",) if hurry else ())
    model = Model(total=40, min_depth=2, auto=auto)
    if budget(hints=hints, profile=profile, max_depth=limit, model=model).layers < FLOOR:
        assert may_undercut(hints=hints, profile=profile, limited=limit is not None)


@given(
    depth=st.sampled_from([SHALLOW, MIDDLE, DEEP]),
    hint=st.none() | st.integers(0, 9999),
    limit=st.none() | st.floats(15, 30),
    profile=st.sampled_from(sorted(PROFILES)),
    guarded=st.booleans(),
)
def test_every_budget_is_one_the_model_takes(
    depth: tuple[float, ...], hint: int | None, limit: float | None, profile: str, guarded: bool
) -> None:
    model = Model(total=30, min_depth=6, auto=12)
    found = budget(
        depth=depth,
        hints=Hints(depth=hint),
        model=model,
        max_depth=limit,
        profile=PROFILES[profile],
        guarded=guarded,
    )
    assert model.min_depth <= found.layers <= model.total
    if limit is not None:
        assert found.layers <= limit
    if guarded:
        assert found.layers >= 11


def test_custom_profiles() -> None:
    own = profiles_of(
        {
            "terse": {"base": "command", "max_tokens": 16, "anchor": "Be brief.", "stop": "."},
            "chat": {"temperature": 0.2},
        }
    )
    assert (own["terse"].deepest, own["terse"].max_tokens, own["terse"].stop) == (35, 16, (".",))
    assert own["terse"].anchor["zh"] == "Be brief."
    assert (own["chat"].temperature, own["chat"].shallowest) == (0.2, 35)
    assert profile_named("terse", own).name == "terse"


@pytest.mark.parametrize(
    "own",
    [
        {"x": {"bass": "chat"}},
        {"x": {"base": "nope"}},
        {"x": {"shallowest": 39, "deepest": 10}},
        {"x": {"deepest": 80}},
        *({"x": {field: value}} for field, values in {
            "temperature": [9.0, -1, "hot", float("nan"), True],
            "top_p": [7, "1", float("inf")],
            "max_tokens": [-1, 0, 1.5, "16"],
            "anchor": [5, {"fr": "x"}, {"en": 5}, ["x"]],
            "stop": [[1], 5, [""], {"a": 1}],
            "trade": ["no", 1],
            "deepest": ["abc", None, 0],
            "shallowest": [float("nan"), -1],
            "base": [["x"], 5, None],
        }.items() for value in values),
    ],
)  # fmt: skip
def test_wrong_profiles_are_refused(own: dict[str, dict[str, object]]) -> None:
    (field,) = set(own["x"]) & {"bass", "base"} or {list(own["x"])[-1]}
    with pytest.raises(RouterError, match=f"profile x: .*{field}"):
        profiles_of(own)
    with pytest.raises(BadSettings, match=f"profiles: .*profile x: .*{field}"):
        load_settings(profiles=own)


def test_unknown_names_and_impossible_models() -> None:
    with pytest.raises(InvalidRequest, match="balanced, chat, command"):
        profile_named("fast")
    with pytest.raises(RouterError, match="rise"):
        Model(total=10, min_depth=12, auto=12)
    assert Profile(name="p").deepest == 40
