import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cache.calibrate import Outcome, clopper_pearson, fit_threshold
from shoal.cache.errors import CacheInputError

outcomes = st.lists(
    st.builds(Outcome, confidence=st.floats(0, 1), right=st.booleans(), part=st.sampled_from("ab")), min_size=2
)


def test_the_interval_is_the_known_one() -> None:
    low, high = clopper_pearson(5, 100)
    assert (round(low, 4), round(high, 4)) == (0.0164, 0.1128)
    assert clopper_pearson(0, 100)[0] == 0
    assert round(clopper_pearson(0, 100)[1], 4) == 0.0362
    assert clopper_pearson(100, 100)[1] == 1


@given(outcomes, st.floats(0.01, 0.5))
def test_the_budget_is_kept_for_parts_weighed_alike(results: list[Outcome], budget: float) -> None:
    if not any(o.right for o in results) or all(o.right for o in results):
        return
    fitted = fit_threshold(results, budget)
    parts = {o.part for o in results}
    shares = [
        sum(not o.right and o.confidence >= fitted.threshold for o in results if o.part == p)
        / sum(o.part == p for o in results)
        for p in parts
    ]
    wrong_at_one = any(not o.right and o.confidence == 1.0 for o in results)
    assert sum(shares) / len(parts) <= budget + 1e-9 or (fitted.threshold == 1.0 and wrong_at_one)
    assert fitted.lower <= fitted.false_hits <= fitted.upper


def test_a_bounded_threshold_keeps_the_upper_bound_within_the_budget() -> None:
    results = [Outcome(confidence=i / 1000, right=i % 7 > 0 or i < 300) for i in range(1000)]
    plain, bounded = fit_threshold(results, 0.02), fit_threshold(results, 0.02, bounded=True)
    assert plain.false_hits <= 0.02 < plain.upper
    assert bounded.upper <= 0.02
    assert bounded.threshold > plain.threshold
    assert fit_threshold(results[-20:], 0.02, bounded=True).threshold == 1.0  # too few to be sure of anything


def test_what_it_cannot_fit_on() -> None:
    right = [Outcome(confidence=0.9, right=True)]
    with pytest.raises(CacheInputError, match="both"):
        fit_threshold(right, 0.01)
    with pytest.raises(CacheInputError, match="budget"):
        fit_threshold([*right, Outcome(confidence=0.5, right=False)], 0)
