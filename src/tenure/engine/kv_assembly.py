"""From a configuration to both sides of an engine's exchange with others: the loop's, and the I/O thread's."""

import socket
from collections.abc import Callable

from tenure.config import KVTransferConfig
from tenure.engine.assembly import Engine
from tenure.engine.kv_exchange import ExchangePort, KVExchange
from tenure.engine.kv_service import KVIdentity, KVService
from tenure.engine.orders import ExchangeOrder
from tenure.errors import ResourceError
from tenure.peers.secret import Secret


def assemble_exchange(
    config: KVTransferConfig, engine: Engine, epoch: str, order: Callable[[ExchangeOrder], None], port: ExchangePort
) -> tuple[KVExchange, KVService]:
    """Half of the blocks set aside are for prompts that are fetched, half for those handed over.

    Raises ResourceError when the address cannot be had.
    """
    assert engine.cache is not None
    half = engine.scheduler.limits.set_aside // 2
    exchange = KVExchange(engine.scheduler, half, port, recompute=config.recompute)
    host, _, number = config.listen.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host.strip("[]"), int(number)), family=family)
    except OSError as error:
        raise ResourceError(f"cannot listen on {config.listen}: {error.strerror}") from error
    service = KVService(
        KVIdentity(epoch, engine.fingerprint, config.listen),
        engine.cache,
        Secret(config.secret.value.encode()),
        listener,
        order,
        lease=config.lease,
        most_blocks=half,
        hosts=config.peers,
    )
    return exchange, service
