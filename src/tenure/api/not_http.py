"""What is answered to a connection that does not speak HTTP: the server's own events, and WebSockets."""

from starlette.types import Receive, Scope, Send


async def answer_other(scope: Scope, receive: Receive, send: Send) -> None:
    """Acknowledge the lifespan, which has nothing to start or end; close everything else."""
    if scope["type"] != "lifespan":
        await receive()
        await send({"type": "websocket.close", "code": 1000})
        return
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
