"""Ids of requests: they tell which API process serves them, and are otherwise not to be guessed."""

import secrets

_RANDOM_DIGITS = 24
_PROCESS_DIGITS = 8


def new_process_name() -> str:
    """What stands for one start of one API process in the ids that it makes: 8 hex digits."""
    return secrets.token_hex(_PROCESS_DIGITS // 2)


def new_request_id(prefix: str, process: str) -> str:
    """The route's prefix and 32 hex digits."""
    return prefix + process + secrets.token_hex(_RANDOM_DIGITS // 2)


def process_of(request_id: str) -> str:
    """The process that has made an id; of what is no id it is a text that no process is called by."""
    return request_id[-_RANDOM_DIGITS - _PROCESS_DIGITS : -_RANDOM_DIGITS]
