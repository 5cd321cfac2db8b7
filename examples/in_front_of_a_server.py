"""Shoal in front of an OpenAI-compatible server, which takes the hard questions (vLLM, Ollama, a vendor; here a Shoal).

Run: `python examples/in_front_of_a_server.py`. It starts both servers; for a server of your own it is one command:
`OPENAI_API_KEY=... shoal serve --deep openai:MODEL --deep-url http://host:port/v1`.
"""

import openai
from openai_client import served

QUESTIONS = (
    "Hi there!",
    "A farm has 17 hens, each lays 5 eggs a week, and a dozen sells for 3 euros. What do the eggs of 4 weeks bring?",
)


def main() -> None:
    with served() as behind, served("--deep", "openai:smollm2-135m", "--deep-url", behind) as front:
        client = openai.OpenAI(base_url=front, api_key="none")
        for question in QUESTIONS:
            ask = [{"role": "user", "content": question}]
            raw = client.chat.completions.with_raw_response.create(model="shoal", messages=ask, max_tokens=32)
            seen = {name: raw.headers.get(name) for name in ("x-route", "x-compute-depth")}
            policy = raw.http_response.json()["shoal"]["depth"]["policy"]
            print(f"{question}\n  {seen}, {policy}: {raw.parse().choices[0].message.content!r}")


if __name__ == "__main__":
    main()
