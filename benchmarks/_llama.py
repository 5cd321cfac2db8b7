"""llama.cpp's side of `benchmarks.engine`: runs under the Python that has llama-cpp-python, told what to do by lines.

Arguments: a GGUF file. Each line on standard input is JSON: {"ids": [...], "new": n, "threads": t}; the answer is the
seconds to read the ids and make n greedy tokens: {"first": s, "whole": s}.
"""

import json
import sys
import time

from llama_cpp import Llama  # type: ignore[import-not-found]


def main() -> None:
    models = {
        threads: Llama(
            sys.argv[1], n_ctx=2304, n_batch=512, n_threads=threads, n_threads_batch=threads, verbose=False, seed=0
        )
        for threads in (1, 2)
    }
    for line in sys.stdin:
        asked = json.loads(line)
        llama = models[asked["threads"]]
        llama.reset()
        start = time.perf_counter()
        llama.eval(asked["ids"])
        token = llama.sample(temp=0.0)
        first = time.perf_counter() - start
        for _ in range(asked["new"] - 1):
            llama.eval([token])
            token = llama.sample(temp=0.0)
        print(json.dumps({"first": first, "whole": time.perf_counter() - start}), flush=True)


if __name__ == "__main__":
    main()
