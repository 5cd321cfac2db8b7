import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from shoal.rag.embed import Embedder, default_embedder
from shoal.rag.encoder import FloatArray, UniversalSentenceEncoder, one_thread
from shoal.rag.remember import Remembered

ODD = ["", "   ", "\u200b", "a\0b", "\x01\x07\x7f", "\ud800 lone", "a" * 100_000, "中" * 100_000, "🙂" * 50]


def test_unit_rows_of_512() -> None:
    vectors = default_embedder()(["Where is the library?", "图书馆在哪里？"])
    assert vectors.shape == (2, 512)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


@pytest.fixture(scope="module")
def fresh() -> UniversalSentenceEncoder:
    return UniversalSentenceEncoder()


def test_same_numbers_as_the_library_it_comes_from(fresh: UniversalSentenceEncoder) -> None:
    texts = ["Hello, world.", "你好，世界。1998年", "", "a much longer sentence, with commas " * 20]
    with one_thread:
        theirs = [fresh._model._encode([text])[0] for text in texts]
    for text, wanted in zip(texts, theirs, strict=True):
        np.testing.assert_array_equal(fresh([text])[0], wanted)


def test_a_text_that_comes_again_is_not_encoded_again() -> None:
    asked: list[list[str]] = []

    def encode(texts: list[str]) -> FloatArray:
        asked.append(texts)
        return np.array([[len(text), 1] for text in texts], np.float32)

    remembered = Remembered(size=3)
    first = remembered(["a", "bb", "a"], encode)
    np.testing.assert_array_equal(first, [[1, 1], [2, 1], [1, 1]])
    first[:] = 0  # the caller's own
    np.testing.assert_array_equal(remembered(["bb", "ccc"], encode), [[2, 1], [3, 1]])
    assert asked == [["a", "bb"], ["ccc"]]
    remembered(["dddd", "eeeee"], encode)
    remembered(["bb", "a"], encode)  # pushed out meanwhile
    assert asked[-1] == ["bb", "a"]
    load = [f"text {i}" for i in range(100)]
    remembered(load, encode)
    remembered(load, encode)
    assert asked[-2:] == [load, load]
    remembered([], encode)
    assert asked[-1] == []


def test_a_question_is_read_from_the_pass_that_embedded_it(fresh: UniversalSentenceEncoder) -> None:
    alone = fresh.token_features(["Where is the library?"], max_tokens=64)
    vector = fresh(["Where is the library?"])
    again = fresh.token_features(["Where is the library?"], max_tokens=64)
    np.testing.assert_array_equal(again.tokens, alone.tokens)
    np.testing.assert_array_equal(again.offsets, alone.offsets)
    np.testing.assert_array_equal(again.vectors, vector)
    assert len(fresh.token_features(["Where is the library?"], max_tokens=4).tokens) == 4


def test_no_texts_give_no_rows() -> None:
    assert default_embedder()([]).shape == (0, 512)


def test_any_text_has_a_finite_unit_vector() -> None:
    vectors = default_embedder()(ODD)
    assert np.isfinite(vectors).all()
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_a_bare_string_is_refused() -> None:
    with pytest.raises(TypeError, match="wrap"):
        default_embedder()("text")  # type: ignore[arg-type]


def test_the_same_meaning_lies_closer_in_both_languages() -> None:
    english, chinese, other = default_embedder()(["How do I cook rice?", "怎么煮米饭？", "The stock market fell."])
    assert english @ chinese > 0.6
    assert english @ other < 0.3


def test_one_shared_instance_from_many_threads() -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: default_embedder(), range(8)))
        assert len({id(one) for one in found}) == 1
        alone = default_embedder()(["猫坐在垫子上"])
        for vectors in pool.map(lambda _: default_embedder()(["猫坐在垫子上"]), range(16)):
            np.testing.assert_allclose(vectors, alone, atol=1e-6)


def test_meets_the_protocol_and_names_its_weights() -> None:
    embed = default_embedder()
    assert isinstance(embed, Embedder)
    assert embed.fingerprint.startswith("use-multilingual-3:0.2.1:")


def test_token_features_sum_to_the_same_sentences() -> None:
    texts = ["Hello, world.", "你好，世界。1998年", "", "a much longer sentence, with commas " * 6]
    found = default_embedder().token_features(texts)
    np.testing.assert_allclose(found.vectors, default_embedder()(texts), atol=1e-5)
    assert found.tokens.shape == (found.offsets[-1], 1280)


def test_needs_no_faiss_and_no_torch() -> None:
    code = (
        "import sys; sys.modules['faiss'] = sys.modules['torch'] = sys.modules['sentence_transformers'] = None\n"
        "from shoal.rag import default_embedder, MissingExtraError, KnowledgeBase\n"
        "import tempfile\n"
        "assert default_embedder()(['x']).shape == (1, 512)\n"
        "try: KnowledgeBase.open(tempfile.mkdtemp())\n"
        "except MissingExtraError as error: assert 'shoal[search]' in str(error)\n"
        "else: raise SystemExit('opened without faiss')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
