"""Prompts of rerankers from a chat template with places for a query and a document."""

import pytest

from tenure.errors import CallerError
from tenure.prompts.chat_template import ChatTemplate
from tenure.prompts.reranker_prompt import template_prompt

FLAT = (
    '{%- set asked = messages | selectattr("role", "eq", "system") | map(attribute="content") | first -%}'
    '[{{ asked | default("find") }}] '
    '{{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }} / '
    '{{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}'
    "{% if add_generation_prompt %} answer:{% endif %}"
)
PARTS = "{% for m in messages %}<{{ m.role }}>{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}"
NAMED = "{{ instruction or 'find' }}: {{ messages[-2].content }} / {{ messages[-1].content }}"
CHAT = '{% for m in messages %}{% if m.role in ["system", "user", "assistant"] %}{{ m.content }}{% endif %}{% endfor %}'
STRICT = '{% for m in messages %}{% if m.role != "user" %}{{ raise_exception("no such role") }}{% endif %}{% endfor %}'


@pytest.mark.parametrize(
    ("source", "plain", "instructed"),
    [
        (FLAT, "[find] q / d", "[sort] q / d"),
        (PARTS, "<query>q<document>d", "<system>sort<query>q<document>d"),
        (NAMED, "find: q / d", "sort: q / d"),
    ],
)
def test_the_texts_stand_where_the_template_has_them(source: str, plain: str, instructed: str) -> None:
    write = template_prompt(ChatTemplate(source, {}))
    assert write is not None
    assert write("q", "d", None) == plain
    assert write("q", "d", "sort") == instructed
    assert "{{ 1 + 1 }}" in write("{{ 1 + 1 }}", "d", None), "texts are no templates"
    assert write("q", "d", "sort", instruction="not this", messages=[]) == instructed


@pytest.mark.parametrize("source", [CHAT, STRICT, "nothing of it"])
def test_a_template_for_conversations_is_none_for_scores(source: str) -> None:
    assert template_prompt(ChatTemplate(source, {})) is None


def test_what_the_template_refuses_is_the_callers_fault() -> None:
    source = '{% if "bad" in messages[1].content %}{{ raise_exception("bad document") }}{% endif %}' + NAMED
    write = template_prompt(ChatTemplate(source, {}))
    assert write is not None
    with pytest.raises(CallerError, match="bad document"):
        write("q", "a bad one", None)
