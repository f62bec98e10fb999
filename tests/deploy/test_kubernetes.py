"""The manifests of Kubernetes give a server the time that it takes to stop, and ask for what it answers."""

from pathlib import Path

import pytest
import yaml

from tenure.api.app import route_table
from tenure.cli.serve import ServeOptions
from tenure.server.supervisor import STOP_MARGIN
from tests.cli.test_serve_config import options

DEPLOY = Path(__file__).parents[2] / "deploy"
DEPLOYMENT, SERVICE = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
POD = DEPLOYMENT["spec"]["template"]["spec"]
[CONTAINER] = POD["containers"]


def test_no_server_is_killed_while_it_stops() -> None:
    """The grace period follows the flag; Kubernetes begins to count before it waits for the hook."""
    flags: ServeOptions = options(*CONTAINER["args"])
    waits = int(CONTAINER["lifecycle"]["preStop"]["exec"]["command"][1])
    assert POD["terminationGracePeriodSeconds"] >= waits + flags.shutdown_timeout + STOP_MARGIN
    words = (DEPLOY / "README.md").read_text()
    assert f"--shutdown-timeout plus {STOP_MARGIN:g} s" in words.replace("`", "")


@pytest.mark.parametrize("probe", ["startupProbe", "livenessProbe", "readinessProbe"])
def test_probes_ask_for_what_is_there(probe: str) -> None:
    asked = CONTAINER[probe]["httpGet"]
    match = route_table().match("GET", asked["path"])
    assert match is not None
    assert match.route.open_without_key
    [port] = CONTAINER["ports"]
    assert asked["port"] == port["name"] == SERVICE["spec"]["ports"][0]["targetPort"]
    assert str(port["containerPort"]) == str(options(*CONTAINER["args"]).port)
