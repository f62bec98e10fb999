"""A yardstick for an encoder on this machine: reads rounds as `benchmarks.sentence_worker` does and prints their rates.

A rate is what would come out if nothing but the matrix products of the encoder's layers were computed, one after the
other, by the library that Tenure takes, with nothing to read, to attend to, to normalise or to send.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.workload import Round, serve_rounds
from tenure.checkpoints.encoder_config import EncoderConfig, read_encoder_config
from tenure.layers.linear import Linear, linear_factory
from tenure.models.bert import ROWS_AT_ONCE

FRAME = 2
"""Special tokens of a text."""


def layers(config: EncoderConfig) -> Sequence[Linear]:
    """All products of the encoder, with weights of its shapes."""
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes = ((3 * hidden, hidden), (hidden, hidden), (inner, hidden), (hidden, inner)) * config.num_layers
    make = linear_factory(torch.float32, torch.device("cpu"))
    return [make(torch.randn(shape), torch.zeros(shape[0])) for shape in shapes]


def measure(products: Sequence[Linear], config: EncoderConfig, given: Round) -> float:
    """Texts per second."""
    rows = {width: torch.randn(ROWS_AT_ONCE, width) for width in (config.hidden_size, config.intermediate_size)}
    inputs = [rows[config.hidden_size]] * 3 + [rows[config.intermediate_size]]
    passes, began = 0, time.perf_counter()
    with torch.inference_mode():
        while time.perf_counter() < began + given.seconds:
            for product, row in zip(products, inputs * config.num_layers, strict=True):
                product(row)
            passes += 1
    return passes * ROWS_AT_ONCE / (given.words + FRAME) / (time.perf_counter() - began)


def main() -> None:
    config = read_encoder_config(Path(sys.argv[1]))
    products = layers(config)
    serve_rounds(lambda given, _: measure(products, config, given))


if __name__ == "__main__":
    main()
