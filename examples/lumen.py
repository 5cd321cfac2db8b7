"""The lamp shop of the examples: its handbook and FAQ, opened in a folder that goes away at the end."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shoal import CognitiveRouter, DepthCache, GatedLLM, KnowledgeBase, default_embedder
from shoal.cache import same_question
from shoal.router.faq import Faq

LUMEN = Path(__file__).parent / "demo"
TURNS = (
    "Can I return a lamp within 30 days?",
    "How long does the battery of the Lumen Go last?",
    "Can I return a lamp within 30 days?",
    "极光会员享受几折?",
    "Hi there!",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """`everything` also holds the FAQ as passages, for agents that know no FAQ."""

    llm: GatedLLM
    handbook: KnowledgeBase
    everything: KnowledgeBase
    faq: Faq

    def router(self) -> CognitiveRouter:
        """A router over all of it, with an empty cache."""
        cache = DepthCache(embed=default_embedder(), total=self.llm.total)
        return CognitiveRouter(llm=self.llm, kb=self.handbook, faq=self.faq, cache=cache)


@contextmanager
def lumen(model: str = "smollm2-135m") -> Iterator[Shop]:
    with tempfile.TemporaryDirectory() as folder:
        embed = default_embedder()
        faq = Faq.open(Path(folder, "faq"), embed=embed, conflict=same_question(embed))
        faq.import_file(LUMEN / "faq.jsonl")
        with KnowledgeBase.open(f"{folder}/kb") as handbook, KnowledgeBase.open(f"{folder}/all") as everything:
            handbook.add(LUMEN / "kb")
            everything.add(LUMEN / "kb")
            for line in (LUMEN / "faq.jsonl").read_text(encoding="utf-8").splitlines():
                entry = json.loads(line)
                everything.add_text(f"{entry['question']}\n{entry['answer']}", f"faq/{entry['id']}")
            with GatedLLM.load(model) as llm:
                yield Shop(llm=llm, handbook=handbook, everything=everything, faq=faq)
