"""What a training run is made of: one YAML file, read strictly, and the packs that its data sources give."""

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..engine import GatedLLM
from ..errors import GatedError
from ..tokenizer import ChatTokenizer
from ..weights import DEFAULT_MODEL
from . import grounded_sources as sources
from .grounded_sources import Passage
from .packs import Pack, pack_passages, plain_pack
from .samples import read_prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One data source. `kind`: squad, natural_questions, clapnq, lines, own (the model's own answers to prompts),
    own_summaries, own_chats (shards of `train.draft`, from the working directory) or text (its passages to go on
    with); `path` under the data folder; `limit`: passages at most; `longest`: characters of a passage;
    `group`: passages read together at most; `strays`: share of passages that get a question of another to refuse;
    `refusals`: share that is kept of a squad source's questions without an answer.
    """

    kind: str
    path: str
    language: str = "en"
    titles: tuple[str, ...] = ()
    validation: bool = False
    answerable: bool = True
    limit: int | None = None
    longest: int = 1200
    group: int = 1
    strays: float = 0.0
    refusals: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A run. `steps` at most, and `minutes` at most where given; the learning `rate` rises over `warmup` steps and
    falls to 0 at the end, by steps or by time. A step takes `full` fresh batches of at most `tokens` at full depth and,
    with `shallow`, the last of them again with branches left out, down to `min_share` of the layers; of these a share
    `read_whole` reads the prompt at full depth, and the share `distil` of their loss is the distance from full depth.
    A share `gated` of them is shortened by gates instead of the plan; `sparsity` weighs how far the mean depth is from
    the one that was drawn. `start`: an adapter of the same rank to go on from.

    Packs have at most `longest` tokens and are padded to the `sizes`; `plain`: share of prompts without instruction.
    Every `check_every` steps `validation_packs` are judged, from the validation sources or else a tenth of all packs;
    `patience` checks without a gain end the run. `half`: bf16 instead of fp32; `compiled`: by torch.compile, which
    needs a C++ compiler; `measured`: files of the SQuAD form whose passages must not be trained on.
    """

    sources: tuple[Source, ...]
    model: str = DEFAULT_MODEL
    rank: int = 12
    seed: int = 1
    steps: int = 1500
    minutes: float | None = None
    warmup: int = 30
    rate: float = 1e-3
    tokens: int = 1536
    sizes: tuple[int, ...] = (192, 256, 320, 384, 512, 768)
    longest: int = 384
    full: int = 2
    shallow: bool = True
    min_share: float = 0.73
    read_whole: float = 0.3
    distil: float = 0.5
    gated: float = 0.0
    sparsity: float = 10.0
    start: str = ""
    gates_only: bool = False
    plain: float = 0.2
    check_every: int = 100
    validation_packs: int = 60
    patience: int = 8
    save_every: int = 40
    compiled: bool = True
    half: bool = True
    measured: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: Path) -> "Recipe":
        """Raises GatedError naming the field that is wrong."""
        import yaml  # type: ignore[import-untyped]

        try:
            raw = yaml.safe_load(path.read_text("utf-8"))
        except (OSError, yaml.YAMLError) as error:
            raise GatedError(f"{path} cannot be read as YAML: {error}") from error
        return cls.of(raw, path)

    @classmethod
    def of(cls, raw: Any, path: Path | str) -> "Recipe":
        """A recipe from parsed YAML; `path` is named in errors."""
        if not isinstance(raw, Mapping) or not isinstance(raw.get("sources"), list):
            raise GatedError(f"{path} is not a training recipe: it needs a list `sources`.")
        given = tuple(_checked(Source, one, path) for one in raw["sources"])
        return _checked(cls, {**raw, "sources": given}, path)  # type: ignore[no-any-return]


def _checked(kind: Any, raw: Any, path: Path | str) -> Any:
    if not isinstance(raw, Mapping):
        raise GatedError(f"{path}: {raw!r} must be a mapping.")
    known = {f.name: f for f in dataclasses.fields(kind)}
    if unknown := set(raw) - set(known):
        raise GatedError(f"{path}: unknown {sorted(unknown)}; known are {', '.join(known)}.")
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in raw.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise GatedError(f"{path}: {error}.") from error


def gather(
    recipe: Recipe,
    folder: Path,
    tokenizer: ChatTokenizer,
    *,
    end: int,
    total: int,
    own: Callable[[Source, Sequence[str]], Path],
) -> tuple[list[Pack], list[Pack], dict[str, int]]:
    """Packs to train on, packs to validate on, and how many questions each source gave.

    `own` gives the JSON lines of the model's own answers to prompts. Raises GatedError.
    """
    draw = random.Random(recipe.seed)
    measured = [text for name in recipe.measured for text in sources.contexts(folder / name)]
    train, held, counts = list[Pack](), list[Pack](), dict[str, int]()
    for source in recipe.sources:
        if source.kind in ("own_chats", "text"):
            chats = _chats(source, folder, tokenizer, draw)
            fit = [plain_pack(a, b, source.kind) for a, b in chats if len(a) + len(b) <= recipe.longest]
            train.extend(fit)
            counts[f"{source.path} ({source.kind})"] = len(fit)
            continue
        passages = list(sources.unguided(sources.without(_passages(source, folder, own), measured)))
        cut = (sources.shortened(p, source.longest, draw) if p.text else p for p in passages)
        passages = [p for p in cut if p is not None]
        if source.limit is not None:
            draw.shuffle(passages)
            passages = passages[: source.limit]
        passages = sources.mismatched(passages, source.strays, draw)
        found = list[Pack]()
        for group in _groups(passages, source.group, draw):
            plain = draw.random() < recipe.plain
            found += pack_passages(
                group, tokenizer, plain=plain, longest=recipe.longest, end=end, total=total, draw=draw
            )
        (held if source.validation else train).extend(found)
        use = source.kind if source.kind.startswith("own") else "validation" if source.validation else ""
        key = f"{source.path} ({use})" if use else source.path
        counts[key] = counts.get(key, 0) + sum(len(pack.branches) for pack in found)
    if not held:
        draw.shuffle(train)
        held, train = train[::10], [pack for at, pack in enumerate(train) if at % 10]
    draw.shuffle(held)
    if not train:
        raise GatedError("The sources hold nothing to train on that fits the recipe's `longest` tokens.")
    return train, held[: recipe.validation_packs], counts


def _chats(
    source: Source, folder: Path, tokenizer: ChatTokenizer, draw: random.Random
) -> list[tuple[list[int], list[int]]]:
    """What is read, and what is judged after it; of the model's own chats those over passages are left out."""
    if source.kind == "own_chats":
        found = [
            chat
            for chat in sources.own_chats(Path(source.path))
            if not any(text in tokenizer.decode(chat[0]) for text in ("\n\nPassages:\n", "\n\n段落:\n"))
        ]
    else:
        texts = [tokenizer.encode_text(text) for text in sources.contexts(folder / source.path)]
        found = [(ids[:16], ids[16:]) for ids in texts if len(ids) >= 64]
    draw.shuffle(found)
    return found[: source.limit]


def _passages(source: Source, folder: Path, own: Callable[[Source, Sequence[str]], Path]) -> list[Passage]:
    path = folder / source.path
    if not path.exists():
        raise GatedError(f"There is no {path}: set SHOAL_DATA to the data folder, see docs/data.md.")
    match source.kind:
        case "squad":
            found = sources.squad(path, source=source.path, language=source.language, titles=source.titles)
            return sources.fewer_refusals(found, source.refusals, random.Random(source.path))
        case "natural_questions":
            return sources.natural_questions(path)
        case "clapnq":
            return sources.clapnq(path, answerable=source.answerable)
        case "lines":
            return sources.lines(path)
        case "own":
            return sources.lines(own(source, read_prompts(path, source.limit or 300)))
        case "own_summaries":
            texts = [t for t in sources.contexts(path) if len(t) <= source.longest][::8][: source.limit]
            return sources.lines(own(source, [f"Summarize in one sentence:\n\n{text}" for text in texts]))
    raise GatedError(
        f"Source kind {source.kind!r}: give squad, natural_questions, clapnq, lines, own, own_summaries, own_chats or "
        "text."
    )


def _groups(passages: Sequence[Passage], most: int, draw: random.Random) -> list[list[Passage]]:
    """Neighbours together, at most `most`, in random order within a group."""
    found, at = [], 0
    while at < len(passages):
        size = draw.randint(1, most)
        group = list(passages[at : at + size])
        draw.shuffle(group)
        found.append(group)
        at += size
    return found


def own_answers(llm: GatedLLM, prompts: Sequence[str], out: Path, *, most: int = 64) -> Path:
    """Writes the model's own greedy answers to prompts as JSON lines, once; only those that come to an end."""
    import json

    if not out.exists():
        rows = []
        for prompt in prompts:
            if llm.count_tokens(prompt) <= 256:
                made = llm.generate(prompt, max_depth=llm.total, max_tokens=most)
                if made.finish_reason == "stop" and made.text.strip():
                    rows.append(json.dumps({"prompt": prompt, "answer": made.text}, ensure_ascii=False))
        out.write_text("\n".join(rows) + "\n", "utf-8")
    return out
