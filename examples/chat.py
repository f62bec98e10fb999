"""Chat through the official OpenAI client (pip install openai); start the server with `make serve` first.

Another server than that of `make serve` is named by `TENURE_URL`.
"""

import os

from openai import OpenAI

SERVER = os.environ.get("TENURE_URL", "http://127.0.0.1:8000")
client = OpenAI(base_url=f"{SERVER}/v1", api_key="none")

stream = client.chat.completions.create(
    model="smollm2",
    messages=[{"role": "user", "content": "What is the capital of France?"}],
    temperature=0,
    stream=True,
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
