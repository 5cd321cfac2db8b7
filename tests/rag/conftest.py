"""A small bilingual knowledge base, on the real encoder and reader."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal.rag import KnowledgeBase

DOCUMENTS = {
    "hours.md": "# Opening hours\n\nThe shop opens at 9 am on weekdays. On Sundays it stays closed.\n\n"
    "## Holidays\n\nOn 24 December the shop closes at 2 pm. The warehouse works as usual.\n",
    "returns.md": "# Returns\n\nGoods can be returned within 30 days of purchase. Refunds take 5 working days.\n",
    "company.txt": "海蓝公司成立于1998年，总部设在上海。公司现有员工三千二百人。创始人是王建国。",
    "pump.txt": "离心泵的额定功率为15千瓦。它每小时输送40立方米的水。维护周期是六个月。",
    "whales.txt": "The blue whale is the largest animal known to have existed. It can weigh up to 199 tonnes. "
    "Its diet consists almost exclusively of krill.",
    "rivers.txt": "The Danube flows through ten countries. It rises in the Black Forest and ends in the Black Sea.",
}


@pytest.fixture(scope="session")
def documents() -> dict[str, str]:
    return DOCUMENTS


@pytest.fixture(scope="session")
def fill() -> Callable[[KnowledgeBase], KnowledgeBase]:
    return _fill


def _fill(base: KnowledgeBase) -> KnowledgeBase:
    for name, text in DOCUMENTS.items():
        base.add_text(text, name)
    return base


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KnowledgeBase]:
    with KnowledgeBase.open(tmp_path_factory.mktemp("kb")) as opened:
        yield _fill(opened)


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[KnowledgeBase]:
    with KnowledgeBase.open(tmp_path / "kb") as opened:
        yield opened
