"""Every embedder and every reranker of rag keeps the same promises, bundled or by sentence-transformers."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from shoal.rag import CrossEncoderReranker, KnowledgeBase, default_embedder, sentence_transformers_embedder
from shoal.rag.embed import Embedder
from shoal.rag.reading import default_reader
from shoal.rag.rerank import LightReranker, Reranker

TEXTS = ["The pump weighs 40 kg.", "泵的重量是四十公斤。", "It rains in autumn.", "秋天常下雨。"]


@pytest.fixture(scope="module")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer BERT with one output, saved as a folder."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    folder = tmp_path_factory.mktemp("bert")
    letters = sorted({char for text in TEXTS for char in text.lower() if char.strip()})
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{char}" for char in letters)]
    (folder / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=128, num_labels=1,
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=["bundled", "sentence-transformers"])
def embed(request: pytest.FixtureRequest, tiny_bert: Path) -> Embedder:
    if request.param == "bundled":
        return default_embedder()
    return sentence_transformers_embedder(tiny_bert, device="cpu")


@pytest.fixture(params=["light", "cross-encoder"])
def reranker(request: pytest.FixtureRequest, tiny_bert: Path) -> Reranker:
    if request.param == "light":
        return LightReranker(default_reader())
    return CrossEncoderReranker(tiny_bert, device="cpu")


def test_embedders_give_unit_rows_whatever_the_text(embed: Embedder) -> None:
    texts: Sequence[str] = [*TEXTS, "", "\ud800", "a\0b", "长" * 20_000]
    vectors = embed(texts)
    assert vectors.shape == (len(texts), embed.dim)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-4)
    assert embed([]).shape == (0, embed.dim)
    np.testing.assert_allclose(embed(TEXTS[:1]), vectors[:1], atol=1e-4)
    with pytest.raises(TypeError):
        embed("text")


def test_embedders_carry_a_knowledge_base(embed: Embedder, tmp_path: Path) -> None:
    with KnowledgeBase.open(tmp_path, embed=embed) as base:
        for number, text in enumerate(TEXTS):
            base.add_text(text, str(number))
        assert base.search("How much does the pump weigh?", 1)[0].doc_id == "0"
        assert base.search("泵的重量是多少？", 1)[0].doc_id == "1"


def test_rerankers_give_a_chance_for_every_candidate(reranker: Reranker, tmp_path: Path) -> None:
    assert reranker("anything", []).shape == (0,)
    with KnowledgeBase.open(tmp_path, reranker=reranker) as base:
        for number, text in enumerate(TEXTS):
            base.add_text(text, str(number))
        found = base.candidates("泵的重量是多少？")
        scores = reranker("泵的重量是多少？", found)
        assert scores.shape == (len(found),)
        assert ((scores >= 0) & (scores <= 1)).all()
        np.testing.assert_allclose(reranker("泵的重量是多少？", found), scores, atol=1e-6)
        hits = base.search("泵的重量是多少？", 4)
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        np.testing.assert_allclose(hits[0].score, scores.max(), atol=1e-6)
    assert reranker.fingerprint
