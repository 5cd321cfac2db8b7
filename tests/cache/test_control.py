import pytest

from shoal.cache import CacheInputError, Control


@pytest.mark.parametrize(
    ("header", "control"),
    [
        ("", Control()),
        ("no-cache", Control(no_cache=True)),
        ("No-Store, max-age=60", Control(no_store=True, max_age_s=60)),
        ('max-age="0"', Control(max_age_s=0)),
        ("max-age=" + 400 * "9", Control(max_age_s=2**31)),
        ("max-age=60, max-age=5, no-cache", Control(no_cache=True, max_age_s=5)),
        ("private, stale-if-error=3", Control()),
    ],
)
def test_headers(header: str, control: Control) -> None:
    assert Control.parse(header) == control


@pytest.mark.parametrize("header", ["max-age", "max-age=soon", "max-age=-1", "max-age=1.5", "max-age=٣"])
def test_bad_ages(header: str) -> None:
    with pytest.raises(CacheInputError, match="max-age"):
        Control.parse(header)
