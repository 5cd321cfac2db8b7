"""Makes a depth plan by measured importance (G2): which branches can leave, in which order, and what each step costs.

The order comes from a search over calibration text and the model's own answers; losses are then measured on samples
that the search did not see. A run that was broken off goes on where it stopped and ends as an unbroken one does.
"""

import argparse
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path

import torch
from torch import Tensor

from ..checkpoint import fingerprint, read_tensors
from ..config import DecoderConfig
from ..errors import GatedError
from ..model import Decoder
from ..policy import Branch, Plan
from ..tokenizer import ChatTokenizer
from ..weights import DEFAULT_MODEL, locate
from .bench import Bench, Judged, mask_without
from .samples import Sample, chat_samples, read_prompts, text_samples
from .search import Found, Search

_PREFIX, _REST, _PROMPT = 64, 96, 128  # tokens of a piece of text that are read and judged, and of the longest prompt
_LEAST = 4  # pieces of text without which nothing can be said
_ROUGH, _EXACT = 3, 2  # one in so many samples screens branches; one in so many of their tokens is judged in the search
# English in a model that knows it takes 1 to 1.3 bits a byte, Chinese in one that does not 2.6, letters at random 5.3;
# a tokenizer made for a language packs 3 bytes and more into a token.
_BITS_PER_BYTE, _BYTES_PER_TOKEN, _LOST = 2.0, 2.0, 0.02
_UNITS = "kl, text and chat in nats per token against full depth, se their standard error; top1 is agreement with it"


@torch.inference_mode()
def calibrate(
    source: str | Path = DEFAULT_MODEL,
    *,
    text: str,
    prompts: Sequence[str] = (),
    home: str | Path | None = None,
    quality: float = 0.003,
    min_share: float = 0.5,
    search: int = 14,
    held_out: int = 20,
    marks: Mapping[Branch, float] | None = None,
    progress_file: Path | None = None,
    say: Callable[[str], None] = print,
) -> Plan:
    """A plan for `source` down to `min_share` of its layers; `say` gets progress and warnings.

    `text`: running text; `prompts`: what its users ask, if known. `search` and `held_out`: samples of either kind that
    the search and the measurement use, fewer where there are fewer. `quality`: the share of likelihood that may be
    lost; what the plan can do within it is reported. `marks`: branches that should leave later (G15). The plan's
    `about` keeps report and warnings. Raises GatedError where the text is too short to measure anything.
    """
    if not 0 <= quality < 1:
        raise GatedError(f"quality={quality!r}: give the share of likelihood that may be lost, from 0 up to 1.")
    if not 0 < min_share < 1:
        raise GatedError(f"min_share={min_share!r}: give the share of the layers to go down to, below 1.")
    folder = locate(source, home=home)
    config, weights = DecoderConfig.from_folder(folder), read_tensors(folder)
    model, tokenizer = fingerprint(weights), ChatTokenizer(folder)
    decoder = Decoder(config, weights, dtype="bf16")
    warnings: list[str] = []

    def warn(line: str) -> None:
        warnings.append(line)
        say(f"warning: {line}")

    room = config.context // 2
    text, ids, texts = _pieces(text, tokenizer, search + held_out, room)
    marks = marks or {}
    saved = _Saved(progress_file, _key(model, texts, prompts, min_share, search, held_out, sorted(marks.items())))
    if prompts and not saved.chats:
        say(f"answering {search + held_out} prompts at full depth")
        saved.chats = chat_samples(
            decoder, tokenizer, prompts, search + held_out, longest_prompt=min(_PROMPT, room), rest=min(_REST, room)
        )
        saved.write()
    searched, unseen = _halves({"text": texts} | ({"chat": saved.chats} if prompts else {}), search, held_out, warn)
    say(f"calibrating on {len(searched)} samples, measuring on {len(unseen)} others")
    held = Bench(decoder, unseen)
    known = _knowledge(held, text, ids, tokenizer)
    for line in _doubts(known):
        warn(line)
    order = _search(decoder, searched, config, config.layers * min_share, marks, saved, say)
    rows = measure(held, order, config.layers)
    tokens = {name: sum(len(s.rest) for s in of) for name, of in (("search", searched), ("held_out", unseen))}
    plan = Plan.from_order(
        order,
        losses_of(rows),
        total=config.layers,
        attention_share=config.attention_share,
        model_fingerprint=model,
        about={"made": date.today().isoformat(), "model": folder.name, "tokens": tokens, "text": known}
        | ({"marks": [[*branch, share] for branch, share in sorted(marks.items())]} if marks else {})
        | {"warnings": warnings, "units": _UNITS, "measured": rows},
    )
    dropped = plan.point_within(-math.log1p(-quality))
    say(f"within {100 * quality:g}% of likelihood: depth {plan.depth_at(dropped):g} of {plan.total}")
    return plan


def _pieces(text: str, tokenizer: ChatTokenizer, wanted: int, room: int) -> tuple[str, list[int], list[Sample]]:
    """As much of the text as is used, its tokens, and the samples they make. Raises GatedError for too little."""
    text = text[: 8 * (_PREFIX + _REST) * wanted]
    ids = tokenizer.encode_text(text)
    texts = text_samples(ids, wanted, prefix=min(_PREFIX, room), rest=min(_REST, room))
    if len(texts) < _LEAST:
        raise GatedError(
            f"The calibration text has {len(ids)} tokens; {_LEAST * (_PREFIX + _REST)} are the least that can be "
            f"measured on, {wanted * (_PREFIX + _REST)} are wanted. Give more text."
        )
    return text, ids, texts


def _halves(
    kinds: Mapping[str, Sequence[Sample]], search: int, held_out: int, warn: Callable[[str], None]
) -> tuple[list[Sample], list[Sample]]:
    """(samples to search on, samples to measure on), of every kind in these proportions."""
    searched, unseen = list[Sample](), list[Sample]()
    for kind, samples in kinds.items():
        if len(samples) < search + held_out:
            warn(f"{len(samples)} {kind} samples where {search + held_out} are wanted: losses are less certain.")
        cut = len(samples) * search // (search + held_out)
        searched += samples[:cut]
        unseen += samples[cut:]
    return searched, unseen


def _search(
    decoder: Decoder,
    samples: Sequence[Sample],
    config: DecoderConfig,
    min_depth: float,
    marks: Mapping[Branch, float],
    saved: "_Saved",
    say: Callable[[str], None],
) -> list[Branch]:
    rough, exact = Bench(decoder, samples[::_ROUGH], every=_EXACT), Bench(decoder, samples, every=_EXACT)
    search = Search(rough, exact, config, min_depth=min_depth, found=saved.found, marks=marks)
    began = time.monotonic()
    while search.grow():
        saved.write()
        kind, layer = saved.found.order[-1]
        say(
            f"{time.monotonic() - began:6.0f} s  depth {search.depth:5.2f} on the way to {min_depth:g}: "
            f"without {kind} {layer:<3} KL {search.kl():.4f}"
        )
    before = list(saved.found.order)
    while search.settle():
        saved.write()
    moved = sum(a != b for a, b in zip(before, saved.found.order, strict=True))
    say(f"{time.monotonic() - began:6.0f} s  swaps: {moved} of {len(before)} places changed")
    return saved.found.order


def measure(bench: Bench, order: Sequence[Branch], layers: int) -> list[dict[str, float]]:
    """After each branch that leaves: KL, and per kind of sample the likelihood lost in nats per token, its standard
    error, and top-1 agreement.
    """
    full = bench.judge(bench.full)
    of_kind = {kind: torch.tensor([k == kind for k in bench.kinds]) for kind in sorted(set(bench.kinds))}
    rows = []
    for count in range(1, len(order) + 1):
        mask = mask_without(order[:count], layers)
        bench.adopt(mask)
        rows.append(_row(bench.judge(mask), full, of_kind))
    bench.adopt(bench.full)
    return rows


def _row(judged: Judged, full: Judged, of_kind: dict[str, Tensor]) -> dict[str, float]:
    row = {"kl": float(judged.kl.mean())}
    for kind, at in of_kind.items():
        lost = (judged.nll - full.nll)[at]
        row[kind] = float(lost.mean())
        row[f"{kind}_se"] = float(lost.std() / len(lost) ** 0.5)
        row[f"{kind}_top1"] = float((judged.best == full.best)[at].float().mean())
    return {key: round(value, 6) for key, value in row.items()}


def losses_of(rows: Sequence[dict[str, float]]) -> list[float]:
    """A point's loss: the likelihood lost by the kind of text that loses most, no less than KL, which luck moves less,
    and no less than at a deeper point.
    """
    losses, worst = [], 0.0
    for row in rows:
        worst = max(worst, *(row[key] for key in ("kl", "text", "chat") if key in row))
        losses.append(worst)
    return losses


def _knowledge(bench: Bench, text: str, ids: list[int], tokenizer: ChatTokenizer) -> dict[str, float]:
    """How well the model and its tokenizer know the text."""
    nll = bench.judge(bench.full).nll
    nats = float(nll[torch.tensor([kind == "text" for kind in bench.kinds])].mean())
    per_token = len(text.encode("utf-8", "replace")) / len(ids)
    kept = len("".join(tokenizer.decode(ids).split())) / max(1, len("".join(text.split())))
    measured = {
        "perplexity": math.exp(nats),
        "bits_per_byte": nats / math.log(2) / per_token,
        "bytes_per_token": per_token,
        "lost": max(0.0, 1 - kept),
    }
    return {key: round(value, 3) for key, value in measured.items()}


def _doubts(known: dict[str, float]) -> list[str]:
    doubts = []
    if known["lost"] > _LOST:
        doubts.append(f"the tokenizer loses {known['lost']:.0%} of the text's characters: it does not know its script.")
    if known["bytes_per_token"] < _BYTES_PER_TOKEN:
        doubts.append(
            f"the tokenizer packs {known['bytes_per_token']:.2f} bytes into a token where 3 to 5 are usual: it was not "
            "made for this language."
        )
    if known["bits_per_byte"] > _BITS_PER_BYTE:
        doubts.append(
            f"the model needs {known['bits_per_byte']:.2f} bits a byte of this text (perplexity "
            f"{known['perplexity']:.0f}) where 1 to 1.3 are usual: it does not know this language. A plan made on it "
            "says little; calibrate on text such as the model will write."
        )
    return doubts


def _key(model: str, texts: Sequence[Sample], prompts: Sequence[str], *settings: object) -> str:
    said = json.dumps([model, [(s.prefix, s.rest) for s in texts], list(prompts), settings])
    return hashlib.sha256(said.encode("utf-8", "replace")).hexdigest()[:16]


class _Saved:
    """What a run has reached, on disk; what another model, other data or other settings left there is not taken."""

    def __init__(self, path: Path | None, key: str) -> None:
        self._path, self._key = path, key
        self.found = Found()
        self.chats: list[Sample] = []
        if path is None or not path.exists():
            return
        try:
            raw = json.loads(path.read_text("utf-8"))
            if raw["key"] == key:
                self.found = Found(
                    order=[(kind, layer) for kind, layer in raw["order"]],
                    price={(kind, layer): price for kind, layer, price in raw["price"]},
                    settled=raw["settled"],
                )
                self.chats = [Sample(kind="chat", prefix=prefix, rest=rest) for prefix, rest in raw["chats"]]
        except (ValueError, KeyError, TypeError) as error:
            raise GatedError(f"{path} is damaged ({error!r}): remove it and calibrate again.") from error

    def write(self) -> None:
        if self._path is None:
            return
        state = {
            "key": self._key,
            "order": self.found.order,
            "price": [(kind, layer, price) for (kind, layer), price in self.found.price.items()],
            "settled": self.found.settled,
            "chats": [(s.prefix, s.rest) for s in self.chats],
        }
        scratch = self._path.with_name(f"{self._path.name}.new")
        try:
            scratch.write_text(json.dumps(state), "utf-8")
            scratch.replace(self._path)
        except OSError as error:
            raise GatedError(
                f"{self._path} cannot be written: {error}. Copy the model to a folder of yours."
            ) from error


def main() -> None:
    data = Path(os.environ.get("SHOAL_DATA", "../shared/data"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--text", type=Path, default=data / "wikitext2" / "valid.txt")
    parser.add_argument(
        "--skip", type=int, default=20_000, help="tokens at the start of the text to leave for benchmarks"
    )
    parser.add_argument("--prompts", type=Path, default=data / "self_instruct" / "user_oriented_instructions.jsonl")
    parser.add_argument("--min-share", type=float, default=0.5)
    parser.add_argument("--progress-file", type=Path, default=None)
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    tokenizer = ChatTokenizer(locate(chosen.model))
    text = tokenizer.decode(tokenizer.encode_text(chosen.text.read_text("utf-8"))[chosen.skip :])
    plan = calibrate(
        chosen.model,
        text=text,
        prompts=read_prompts(chosen.prompts, 200),
        min_share=chosen.min_share,
        progress_file=chosen.progress_file,
        say=lambda line: print(line, flush=True),
    )
    plan.write(chosen.out)
    percent = 100 * -math.expm1(-plan.points[0].loss)
    print(
        f"{chosen.out}: {len(plan.points)} points down to depth {plan.min_depth:g}; "
        f"the first branch costs {percent:.2f}%"
    )


if __name__ == "__main__":
    main()
