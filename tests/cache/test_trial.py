import pytest

from shoal.cache import CacheInputError
from shoal.cache.trial import Pair, calibrate


def test_a_threshold_between_same_and_different(letters: object) -> None:
    same = [
        Pair(stored=f"how do i {w} my password", asked=f"how do i {w} my passwords", same=True)
        for w in ("reset", "alter", "print")
    ]
    other = [Pair(stored="where is the big station", asked="where is the bus depot", same=False)]
    fitted = calibrate(letters, [*same, *other], budget=0.01)  # type: ignore[arg-type]
    assert fitted.recall == 1.0
    assert fitted.false_hits == 0.0
    assert 0 < fitted.upper < 0.7
    assert "recall 100.0%" in str(fitted)


def test_one_kind_of_pair_is_not_enough(letters: object) -> None:
    with pytest.raises(CacheInputError, match="same and pairs marked different"):
        calibrate(letters, [Pair(stored="a b c", asked="a b d", same=True)])  # type: ignore[arg-type]
