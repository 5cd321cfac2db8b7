"""`python -m shoal.router.train`: trains the classifier that ships, writes its metrics beside the model card."""

import argparse
import json
from pathlib import Path

from ...rag.embed import default_embedder
from ..classifier import ASSET
from .report import draw
from .run import train_from_jsonl, train_shipped


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m shoal.router.train", description=__doc__)
    parser.add_argument("--data", type=Path, help="train on your own JSONL instead of the public sets")
    parser.add_argument("--out", type=Path, default=ASSET, help="where the classifier goes")
    parser.add_argument("--store", type=Path, help="file that keeps embeddings between runs")
    parser.add_argument("--report", type=Path, help="file for the metrics as JSON")
    parser.add_argument("--picture", type=Path, help="file for the reliability plot (needs the extra `plots`)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.data is not None:
        if args.out == ASSET:
            parser.error("--out is needed with --data")
        report = train_from_jsonl(args.data, default_embedder(), args.out, seed=args.seed)
    else:
        report, fitted, tables = train_shipped(default_embedder(), out=args.out, store=args.store, seed=args.seed)
        if args.picture:
            draw(fitted, tables["test"], args.picture)
    text = json.dumps(report.to_dict(), indent=2, ensure_ascii=False)
    if args.report:
        args.report.parent.mkdir(parents=True, exist_ok=True)
        args.report.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
