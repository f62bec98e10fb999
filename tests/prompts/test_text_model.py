"""What a model's files say of its text and its sampling defaults."""

import pytest

from tenure.errors import ResourceError
from tenure.prompts.text_model import GenerationDefaults, generation_defaults


def test_defaults_are_taken_by_their_names():
    values = {"temperature": 0.6, "top_k": 20.0, "max_new_tokens": 512}
    assert generation_defaults(values, "m") == GenerationDefaults(temperature=0.6, top_k=20, max_tokens=512)


def test_nothing_said_is_nothing_set():
    assert generation_defaults({}, "m") == GenerationDefaults()


@pytest.mark.parametrize("values", [{"temperature": 3}, {"top_p": 0}, {"top_k": 1.5}, {"max_new_tokens": 0}])
def test_defaults_that_no_request_could_ask_for_are_refused_by_name(values):
    with pytest.raises(ResourceError, match="m: the generation config has"):
        generation_defaults(values, "m")
