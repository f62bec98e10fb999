"""Leave in the middle of an answer, and watch the ledger return to zero.

Needs the official OpenAI client (pip install openai); start the server with `make serve` first.
Another server than that of `make serve` is named by `TENURE_URL`.
"""

import json
import os
import urllib.request

from openai import OpenAI

SERVER = os.environ.get("TENURE_URL", "http://127.0.0.1:8000")


def ledger() -> dict:
    with urllib.request.urlopen(f"{SERVER}/ledger") as reply:
        return json.load(reply)


client = OpenAI(base_url=f"{SERVER}/v1", api_key="none")
stream = client.chat.completions.create(
    model="smollm2",
    messages=[{"role": "user", "content": "Tell me a very long story."}],
    max_tokens=4000,
    temperature=0.2,
    stream=True,
)
for number, chunk in enumerate(stream):
    print(chunk.choices[0].delta.content or "", end="", flush=True)
    if number == 20:
        break
print("\nwhile it runs:", json.dumps(ledger()["engines"][0]["holders"]))

stream.close()  # the connection closes; within one step the engine holds nothing for it

while (now := ledger())["http"]["open"]:
    pass
print("afterwards:   ", json.dumps(now["engines"][0]["holders"]), json.dumps(now["http"]))
