"""Looks the pinned packages up in the database of known vulnerabilities: `make audit`.

Exit code 0: none is known, or the database cannot be reached, which is said; 1: some are; 2: the audit itself failed.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_UNREACHABLE = ("ConnectionError", "Timeout", "Max retries", "ProxyError", "Could not connect", "HTTPError")
_NO_TOOL = "No module named pip_audit"


def main(constraints: str) -> int:
    """Audit the packages of a constraints file, and print what there is to say."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip_audit", "-r", constraints, "--no-deps", "--disable-pip"]
        command += ["--progress-spinner", "off", "--timeout", "10", "--format", "json", "--output", str(report)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        found = report.read_text() if report.exists() else ""
    code, words = verdict(found, ended.stderr)
    print(f"audit: {words}")
    return code


def verdict(report: str, errors: str) -> tuple[int, str]:
    """Return the exit code and the words for a report (JSON, empty when there is none) and what else was said."""
    if report:
        packages: list[dict[str, Any]] = json.loads(report)["dependencies"]
        lines = [
            f"{package['name']} {package['version']}: {flaw['id']}, fixed in {', '.join(flaw['fix_versions']) or '-'}"
            for package in packages
            for flaw in package.get("vulns", ())
        ]
        if lines:
            return 1, "\n  ".join(["known vulnerabilities:", *lines])
        return 0, f"nothing is known of the {len(packages)} packages"
    last = (errors.strip().splitlines() or ["it said nothing"])[-1]
    if _NO_TOOL in errors:
        return 0, "skipped, for pip-audit is not installed"
    if any(word in errors for word in _UNREACHABLE):
        return 0, f"skipped, for the database cannot be reached ({last.partition(':')[0]})"
    return 2, f"failed: {last}"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
