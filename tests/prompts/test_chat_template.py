"""Chat templates: the prompts that Hugging Face renders, and every failure as a short message to the caller."""

import json
import warnings
from datetime import datetime

import pytest

from tenure.errors import CallerError
from tenure.prompts.chat_template import ChatTemplate
from tenure.source import ResolvedSource, SourceKind
from tenure.text.tokenizer import load_tokenizer
from tests.text.gguf_samples import byte_level_file, demo_file

USER = {"role": "user", "content": "Hi"}
TWO_PARTS = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
ASSISTANT = {"role": "assistant", "content": "Hello <there>"}

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TRIMMING = "{% for m in messages %}[{{ m.role }}] {{ m.content | trim }} </s>{% endfor %}"
PARTS = (
    "{% for message in messages %}{{ message.role }}:"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}<{{ part.text }}>{% endfor %}{% endif %};{% endfor %}"
)
TOOLS = """{{ bos_token }}
{%- if documents %}
    {{- "Documents: " + documents | tojson }}
    {%- for document in documents %}
        {%- if loop.index > 2 %}{% break %}{% endif %}
        {{- document | tojson(indent=2) }}
    {%- endfor %}
{%- endif %}
{%- set ns = namespace(count=0) %}
{% for message in messages %}
    {%- set ns.count = ns.count + 1 %}
    {%- if message.role == "system" %}{% continue %}{% endif %}
    {%- if message.role == "assistant" %}
        {%- generation %}{{ message.content + eos_token }}{% endgeneration %}
        {%- for call in message.tool_calls or [] %}
            {{- call.function.name }}({{ call.function.arguments.city }}){{ call.function.arguments | tojson }}
        {%- endfor %}
    {%- else %}
        {{- message.content }}
    {%- endif %}
{% endfor %}
{{ ns.count }}"""


def render(source, messages, **arguments) -> str:
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    return template.render(messages, **arguments)


class TestPrompts:
    def test_the_demo_model_checked_by_hand(self):
        path = demo_file()
        template = ChatTemplate.of(load_tokenizer(ResolvedSource(SourceKind.GGUF, path, "demo")))
        assert template.render([USER]) == (
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        )
        system = {"role": "system", "content": "Be brief."}
        assert template.render([system, USER], add_generation_prompt=False) == (
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        )

    def test_as_transformers_renders_them(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from transformers.utils.chat_template_utils import render_jinja_template  # noqa: PLC0415 (slow)
        documents = [{"title": title, "text": "<č> & 'x'"} for title in "abc"]
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"city": "Plzeň"}}}
        messages = [
            {"role": "system", "content": "S"},
            USER,
            {"role": "assistant", "content": "", "tool_calls": [call]},
            ASSISTANT,
        ]
        names = {"bos_token": "<s>", "eos_token": "</s>"}
        for source in (CHATML, TRIMMING, PARTS, TOOLS):
            expected, _ = render_jinja_template([messages], documents=documents, chat_template=source, **names)
            assert render(source, messages, documents=documents, add_generation_prompt=False) == expected[0]

    def test_extra_names_are_seen_and_lose_to_the_arguments(self):
        source = "{{ thinking }}{{ bos_token }}{{ add_generation_prompt }}{{ documents | length }}"
        extra = {"thinking": "on", "bos_token": "B", "add_generation_prompt": "no"}
        assert render(source, [USER], extra=extra, documents=[{"text": "d"}]) == "onBTrue1"

    def test_date(self):
        now = datetime(2024, 7, 26)
        template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", {}, now=lambda: now)
        assert template.render([USER]) == "26 Jul 2024"


class TestContent:
    def test_parts_become_a_string_for_a_template_that_wants_one(self):
        assert "user\na\nb<|im_end|>" in render(CHATML, [TWO_PARTS])

    @pytest.mark.parametrize(
        "source",
        [
            PARTS,
            "{% for m in messages %}{% for part in m['content'] %}<{{ part['text'] }}>{% endfor %}{% endfor %}",
            "{% for m in messages %}{% set c = m.content %}{% for p in c | list %}<{{ p.text }}>{% endfor %}"
            "{% endfor %}",
            "{% macro show(content) %}{% for p in content %}<{{ p.text }}>{% endfor %}{% endmacro %}"
            "{% for m in messages %}{{ show(m.content) }}{% endfor %}",
        ],
    )
    def test_parts_stay_parts_for_a_template_that_loops_over_them(self, source):
        assert "<a><b>" in render(source, [TWO_PARTS])
        assert "Hi" in render(source, [USER])

    def test_no_content_is_empty(self):
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"city": "Brno"}'}}
        messages = [{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "user"}]
        assert 'f(Brno){"city": "Brno"}' in render(TOOLS, messages)

    @pytest.mark.parametrize("message", [{"tool_calls": []}, {"tool_calls": None, "function_call": None, "name": None}])
    def test_keys_that_say_nothing_are_absent(self, message):
        source = (
            "{% if 'tool_calls' in messages[0] %}{{ raise_exception('only one call') }}{% endif %}"
            "{{ messages[0].name is defined }} {{ messages[0].content }}"
        )
        assert render(source, [{"role": "assistant", "content": "a", **message}]) == "False a"

    def test_earlier_reasoning_has_both_names(self):
        source = "{{ messages[0].reasoning }}{{ messages[0].reasoning_content }}"
        assert render(source, [{"role": "assistant", "content": "", "reasoning_content": "r"}]) == "rr"

    def test_the_callers_messages_are_not_changed(self):
        messages = [{"role": "assistant", "content": [{"type": "text", "text": "a"}]}]
        before = json.dumps(messages)
        render(CHATML, messages, add_generation_prompt=False, continue_final_message=True)
        assert json.dumps(messages) == before

    @pytest.mark.parametrize(
        ("message", "complaint"),
        [
            ({"content": [{"type": "image_url", "image_url": {}}]}, r"messages\[0\]\.content\[0\].*'image_url'"),
            ({"content": [{"type": ["x"]}]}, r"content\[0\]"),
            ({"content": [{"type": "text", "text": None}]}, "must be a string"),
            ({"content": {"text": "x"}}, "string or a list"),
            ({"tool_calls": [{"function": {"arguments": "{"}}]}, "not JSON"),
            ({"tool_calls": ["x"]}, "tool_calls"),
        ],
    )
    def test_what_cannot_be_shown_is_refused_by_place(self, message, complaint):
        with pytest.raises(CallerError, match=complaint):
            render(CHATML, [{"role": "user", **message}])


class TestContinuing:
    def continued(self, source, content) -> str:
        messages = [USER, {"role": "assistant", "content": content}]
        return render(source, messages, add_generation_prompt=False, continue_final_message=True)

    def test_the_prompt_ends_where_the_text_ends(self):
        assert self.continued(CHATML, "Once ").endswith("<|im_start|>assistant\nOnce ")
        assert self.continued(CHATML, [{"type": "text", "text": "Once"}]).endswith("assistant\nOnce")
        assert self.continued(PARTS, [{"type": "text", "text": "On"}, {"type": "text", "text": "ce"}]).endswith("<ce")

    def test_text_that_also_stands_in_the_markup_is_not_mistaken(self):
        assert self.continued(CHATML, "im_end").endswith("<|im_start|>assistant\nim_end")

    def test_a_template_that_trims_trims_this_text_too(self):
        assert self.continued(TRIMMING, " Once  ").endswith("[assistant] Once")

    @pytest.mark.parametrize("source", ["{{ messages[0].content }}", "{{ messages[-1].content | upper }}"])
    def test_a_template_that_does_not_show_the_text_is_refused(self, source):
        with pytest.raises(CallerError, match="final message"):
            self.continued(source, "Once")

    def test_nothing_to_continue_is_refused(self):
        with pytest.raises(CallerError, match="no final message"):
            render(CHATML, [], add_generation_prompt=False, continue_final_message=True)
        with pytest.raises(CallerError, match="no final message"):
            self.continued(PARTS, [])

    def test_not_together_with_a_new_message(self):
        with pytest.raises(CallerError, match="both"):
            render(CHATML, [USER], add_generation_prompt=True, continue_final_message=True)


class TestFailures:
    @pytest.mark.parametrize(
        ("source", "complaint"),
        [
            ("{{ raise_exception('Roles must alternate') }}", "^Roles must alternate$"),
            ("{{ raise_exception('x' * 5000) }}", r"^x{300}\.\.\.$"),
            ("{{ missing.attribute }}", "'missing' is undefined"),
            ("{{ messages[0].content + none }}", r"\(TypeError\)$"),
            ("{{ 1 // 0 }}", r"\(ZeroDivisionError\)$"),
            ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nested too deeply"),
            ("{{ ''.__class__.__mro__ }}", "not allowed|cannot render"),
            ("{{ messages.append(1) }}", "not allowed"),
            ("{{ raise_exception.__globals__ }}{{ raise_exception.__globals__.x }}", "not allowed|cannot render"),
            ("{{ 'a' * 10**12 }}", "not allowed"),
            ("{{ 10000000000 * [1] }}", "not allowed"),
            ("{% for i in range(10000000000) %}{% endfor %}", r"\(OverflowError\)$"),
            ("{{ messages[0].content.x.y }}", "cannot render"),
            ("{% include '/etc/passwd' %}", "cannot render"),
        ],
    )
    def test_whatever_goes_wrong_is_a_short_message_to_the_caller(self, source, complaint):
        with pytest.raises(CallerError, match=complaint) as failure:
            render(source, [USER])
        assert "Traceback" not in str(failure.value)
        assert len(str(failure.value)) < 400
        assert failure.value.__cause__ is None

    @pytest.mark.parametrize("source", ["{% if %}", "{{ 'open", "{% nothing %}", "{{ x | nofilter }}", "{{ (" * 5000])
    def test_bad_syntax_is_refused(self, source):
        with pytest.raises(CallerError, match="the chat template"):
            render(source, [USER])

    def test_a_model_without_a_template_has_none(self, tmp_path):
        path = byte_level_file(tmp_path / "m.gguf", "gpt-2", ["a b"])
        assert ChatTemplate.of(load_tokenizer(ResolvedSource(SourceKind.GGUF, path, "m"))) is None

    def test_a_template_cannot_reach_another_rendering(self):
        template = ChatTemplate("{% set x = x | default(0) + 1 %}{{ x }}", {})
        assert [template.render([USER]), template.render([USER])] == ["1", "1"]
