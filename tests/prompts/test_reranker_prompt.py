"""The prompt of yes-no rerankers, to the letter: a blank too many changes every score."""

from tenure.prompts.reranker_prompt import reranker_prompt


def test_the_published_form() -> None:
    assert reranker_prompt("What is the capital of China?", "Beijing.") == (
        "<|im_start|>system\n"
        "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
        'Note that the answer can only be "yes" or "no".<|im_end|>\n'
        "<|im_start|>user\n"
        "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
        "<Query>: What is the capital of China?\n"
        "<Document>: Beijing.<|im_end|>\n"
        "<|im_start|>assistant\n"
        "<think>\n\n</think>\n\n"
    )


def test_an_instruction_of_ones_own() -> None:
    assert "<Instruct>: Find duplicates\n<Query>: a\n<Document>: b<|im_end|>" in reranker_prompt(
        "a", "b", "Find duplicates"
    )
    assert "<Instruct>: \n" in reranker_prompt("a", "b", "")


def test_braces_in_texts_are_texts() -> None:
    assert "<Query>: {document}\n<Document>: {0} %s<|im_end|>" in reranker_prompt("{document}", "{0} %s")
