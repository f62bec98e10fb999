"""The flags of `tenure serve` for engines that take over prompts from each other."""

from dataclasses import dataclass, field
from typing import Literal

from tenure.cli.flags import Positive, Texts
from tenure.config import Hidden, KVTransferConfig, environment_kv_secret
from tenure.errors import CallerError

_LEAST_SECRET = 16


@dataclass(frozen=True, kw_only=True)
class KVTransferOptions:
    """Prefill and decode apart: prompts that one engine has computed are continued by another."""

    kv_listen: str = ""
    """HOST:PORT at which the first engine listens to engines of other servers, and further ones at the ports after it.
    HOST is this machine's, as the others reach it. With it, `kv_transfer_params` are served."""
    kv_secret_file: str | None = None
    """File with the secret that the servers of a cluster share, 16 characters at least; or TENURE_KV_SECRET."""
    kv_peers: Texts = field(default_factory=list)
    """Hosts to which engines may connect for a prompt; by default all that a ticket of the cluster names."""
    kv_lease: Positive = 30.0
    """Seconds for which a computed prompt is kept until another engine claims it."""
    kv_load_failure_policy: Literal["recompute", "fail"] = "recompute"
    """What is done about a prompt that cannot be taken over: compute it here, or end its request as kv_lost."""


def kv_transfer(options: KVTransferOptions, engine: int) -> KVTransferConfig | None:
    """The configuration of an engine by its place among all; None without --kv-listen. Raises CallerError."""
    if not options.kv_listen:
        return None
    host, _, port = options.kv_listen.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) + engine < 65536:
        raise CallerError(f"--kv-listen {options.kv_listen}: HOST:PORT is needed")
    return KVTransferConfig(
        listen=f"{host}:{int(port) + engine}",
        secret=_secret(options.kv_secret_file),
        peers=tuple(options.kv_peers),
        lease=options.kv_lease,
        recompute=options.kv_load_failure_policy == "recompute",
    )


def _secret(path: str | None) -> Hidden:
    secret = environment_kv_secret()
    if path is not None:
        try:
            with open(path, encoding="utf-8") as file:
                secret = file.read().strip()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise CallerError(f"--kv-secret-file {path}: {reason}") from error
    if len(secret) < _LEAST_SECRET:
        raise CallerError(f"--kv-listen needs a secret of {_LEAST_SECRET} characters at least (--kv-secret-file)")
    return Hidden(secret)
