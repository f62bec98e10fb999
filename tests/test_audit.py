"""The audit tells a flaw from a database that cannot be reached, and neither from a failure of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.audit import verdict


def report(*flaws: dict[str, object]) -> str:
    return json.dumps({"dependencies": [{"name": "h11", "version": "0.1", "vulns": list(flaws)}, {"name": "x"}]})


def test_nothing_known() -> None:
    assert verdict(report(), "") == (0, "nothing is known of the 2 packages")


def test_a_flaw_is_named_with_what_fixes_it() -> None:
    code, words = verdict(report({"id": "CVE-1", "fix_versions": ["0.16", "0.17"]}), "Found 1 known vulnerability")
    assert code == 1
    assert "h11 0.1: CVE-1, fixed in 0.16, 0.17" in words


@pytest.mark.parametrize(
    "errors",
    [
        "ERROR: tried\nrequests.exceptions.ProxyError: Max retries exceeded with url: /x",
        "requests.exceptions.ConnectTimeout: HTTPSConnectionPool(host='x')",
        "urllib3.exceptions.ReadTimeoutError: slow",
        "requests.exceptions.HTTPError: 403 Client Error",
    ],
)
def test_without_a_database_it_is_skipped_with_a_word(errors: str) -> None:
    code, words = verdict("", errors)
    assert code == 0
    assert words.startswith("skipped, for the database cannot be reached (")


def test_what_went_wrong_otherwise_is_no_skip() -> None:
    assert verdict("", "ERROR:pip_audit._cli:invalid requirements input: no.txt") == (
        2,
        "failed: ERROR:pip_audit._cli:invalid requirements input: no.txt",
    )
    assert verdict("", "")[0] == 2


def test_without_the_tool_it_is_skipped_with_a_word(tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "tools" / "audit.py"
    command = [sys.executable, "-S", str(script), str(tmp_path / "constraints.txt")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "audit: skipped, for pip-audit is not installed\n")
