"""What a model's files say of its text and its sampling defaults."""

import pytest

from tenure.prompts.text_model import GenerationDefaults, generation_defaults, load_text_model
from tenure.source import ResolvedSource, SourceKind
from tests.text.gguf_samples import byte_level_file


def test_defaults_are_taken_by_their_names():
    values = {"temperature": 0.6, "top_k": 20.0, "max_new_tokens": 512}
    assert generation_defaults(values, "m") == GenerationDefaults(temperature=0.6, top_k=20, max_tokens=512)


def test_nothing_said_is_nothing_set():
    assert generation_defaults({}, "m") == GenerationDefaults()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 3),
        ("top_p", 0),
        ("top_k", 1.5),
        ("max_new_tokens", 0),
        ("max_new_tokens", 10**400),
        ("repetition_penalty", float("inf")),
        ("min_p", True),
        ("temperature", "0.7"),
    ],
)
def test_defaults_that_no_request_could_ask_for_are_left_out_with_a_warning(field, value, caplog):
    with caplog.at_level("WARNING", "tenure.api"):
        found = generation_defaults({"min_p": 0.5, field: value}, "m")
    expected = {} if field == "min_p" else {"min_p": 0.5}
    if value == 10**400:  # as long as can be
        expected["max_tokens"] = value
        assert not caplog.messages
    else:
        (message,) = caplog.messages
        assert f"m: the generation config has {field} = {value!r}" in message
        assert "--generation-config vllm" in message
    assert found == GenerationDefaults(**expected)


CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


@pytest.mark.parametrize(
    ("template", "ends", "said"),
    [
        (CHATML, (1, 260), True),
        (CHATML.replace("<|im_end|>", "<|end|>"), (1,), False),
        (CHATML.replace("<|im_end|>", " [/INST]"), (1,), False),
        ("{{ raise_exception('only a system can speak') }}", (1,), False),
        (None, (1,), False),
    ],
)
def test_the_token_that_ends_turns_in_the_chat_template_ends_answers(template, ends, said, tmp_path, caplog):
    marks = ("<|im_start|>", "<|im_end|>")
    keys = {} if template is None else {"chat_template": template}
    path = byte_level_file(tmp_path / "m", "gpt-2", ["a b"], extra=marks, types={259: 3, 260: 3}, **keys)
    with caplog.at_level("INFO", "tenure.api"):
        model = load_text_model("m", ResolvedSource(SourceKind.GGUF, path, "m"), {}, 0)
    assert model.eos_token_ids == ends
    assert model.tokenizer.template_variables["eos_token"] == "<|end|>"
    assert [message for message in caplog.messages if "answers end with <|im_end|> too" in message] == caplog.messages
    assert bool(caplog.messages) == said
