"""The page of all flags is what the flags say."""

from pathlib import Path

from tools.configuration import configuration_page


def test_the_page_is_made_from_the_flags() -> None:
    page = configuration_page()
    assert "* `--max-num-seqs INT`: " in page
    assert (Path(__file__).parents[2] / "docs" / "configuration.md").read_text() == page
