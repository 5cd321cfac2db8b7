"""The unmodified `openai` client against `shoal serve`, which it starts itself: `python examples/openai_client.py`.

With a server of your own: `python examples/openai_client.py http://127.0.0.1:8000/v1`.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai


@contextmanager
def served(*options: str) -> Iterator[str]:
    """Address of a server of its own, until the block ends; `options` are those of `shoal serve`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {"OPENAI_API_KEY": "none", **os.environ}
    server = subprocess.Popen(
        [str(Path(sys.executable).with_name("shoal")), "serve", "--port", str(port), *options], env=env
    )
    try:
        while server.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        else:
            raise SystemExit("the server did not start; its last lines say why")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait()


def talk(url: str) -> None:
    client = openai.OpenAI(base_url=url, api_key="none")
    print("models:", [model.id for model in client.models.list()])

    # The raw response shows the headers: how deep, by which way, from which cache tier.
    ask = [{"role": "user", "content": "What is the capital of France?"}]
    raw = client.chat.completions.with_raw_response.create(model="smollm2-135m", messages=ask, max_tokens=32)
    reply = raw.parse()
    seen = {name: raw.headers.get(name) for name in ("x-compute-depth", "x-route", "x-cache")}
    print(f"{reply.choices[0].message.content!r}  {seen}")

    print("streamed: ", end="")
    ask = [{"role": "user", "content": "Say hello in one short sentence."}]
    for chunk in client.chat.completions.create(model="smollm2-135m", messages=ask, max_tokens=24, stream=True):
        if chunk.choices:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        talk(sys.argv[1])
    else:
        with served() as url:
            talk(url)
