import marshal
import tempfile
from pathlib import Path

import pytest

from shoal.rag.words import _jieba, content_terms, length, stem, terms


@pytest.mark.parametrize(
    ("word", "root"),
    [("dogs", "dog"), ("studies", "study"), ("running", "run"), ("houses", "hous"), ("house", "hous"), ("bus", "bus"),
     ("classes", "class"), ("red", "red"), ("king", "king"), ("1990s", "1990s"), ("falling", "fall")],
)  # fmt: skip
def test_stem(word: str, root: str) -> None:
    assert stem(word) == root


def test_chinese_is_cut_into_words_and_width_is_folded() -> None:
    assert "成立" in terms("中华人民共和国成立于１９４９年")
    assert "1949" in terms("中华人民共和国成立于１９４９年")


def test_stop_words_leave_a_question_unless_nothing_else_is_there() -> None:
    assert content_terms("What is the capital of France?") == ["capital", "franc"]
    assert content_terms("公司的总部在哪里？") == ["公司", "总部"]
    assert content_terms("who are you") == ["who", "are", "you"]
    assert content_terms("?!") == []


def test_length_counts_words_characters_and_marks() -> None:
    assert length("Hello, world!") == 4
    assert length("你好，世界") == 5
    assert length("") == 0


def test_no_dictionary_comes_from_the_folder_that_all_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jieba.cache").write_bytes(marshal.dumps(({"人民": 1}, 1)))  # as somebody else may have left it
    (tmp_path / "a file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda _: str(tmp_path / "a file" / "shoal"))
    assert _jieba.__wrapped__().lcut("中华人民共和国成立了") == ["中华人民共和国", "成立", "了"]
