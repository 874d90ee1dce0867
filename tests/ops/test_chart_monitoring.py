"""Alerts and dashboard ask Prometheus in queries that it can read.

That the metrics exist is asked of a daemon in ``tests/acceptance/fleet/test_metrics.py``.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.ops.chart import CHART, render

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.ops


def alerts() -> list[dict[str, Any]]:
    """The rules that the chart ships."""
    groups = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    """The dashboard's panels."""
    found: list[dict[str, Any]] = json.loads((CHART / "files" / "dashboard.json").read_text())["panels"]
    return found


def queries() -> Iterator[str]:
    """Every query, with Grafana's own variable set as Grafana would."""
    yield from (rule["expr"] for rule in alerts())
    for panel in panels():
        yield from (target["expr"].replace("$__rate_interval", "2m") for target in panel["targets"])


def test_prometheus_can_read_every_query() -> None:
    """Each one parses as PromQL."""
    promql = pytest.importorskip("promql_parser")

    found = list(queries())

    assert len(found) > 20
    for query in found:
        promql.parse(query)
    with pytest.raises(ValueError, match="unclosed"):
        promql.parse("sum(rate(nexofork_runs_total[5m])")


def test_every_alert_says_what_to_do() -> None:
    """It waits before it fires, has a severity, and tells the reader where to look."""
    for rule in alerts():
        assert rule["for"]
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}


def test_panels_do_not_cover_each_other() -> None:
    """Each panel has an id, a title and a place of its own."""
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels())
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]

    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in panels()}) == len({panel["title"] for panel in panels()}) == len(panels())


def test_what_is_installed_is_what_was_written() -> None:
    """Braces that belong to Prometheus and Grafana come through the templates as they are."""
    release = render("--values", CHART / "ci" / "monitoring-values.yaml")
    (rule,) = release.every("PrometheusRule")
    dashboard = release.one("ConfigMap", "r-nexofork-dashboard")

    (missing, *others) = alerts()
    (found, *rest) = [one for group in rule["spec"]["groups"] for one in group["rules"]]
    assert rest == others
    named = 'nexofork_slots{namespace="default",pool="fork"}'
    assert found == {**missing, "expr": missing["expr"].replace("nexofork_slots", named)}
    assert json.loads(dashboard["data"]["nexofork.json"])["panels"] == panels()
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_every_panel_is_about_the_chosen_pools() -> None:
    """The dashboard offers namespaces and pools to choose from, and every selector of every panel heeds both."""
    dashboard = json.loads((CHART / "files" / "dashboard.json").read_text())

    assert [one["name"] for one in dashboard["templating"]["list"]] == ["datasource", "namespace", "pool"]
    for query in (target["expr"] for panel in panels() for target in panel["targets"]):
        selectors = re.findall(r"\b(?:nexofork|gen_ai)_[a-z_]+\{([^}]*)\}", query)
        assert selectors
        assert all('namespace=~"$namespace",pool=~"$pool"' in selector for selector in selectors), query
        assert len(selectors) == len(re.findall(r"\b(?:nexofork|gen_ai)_[a-z_]+(?![a-z_),])", query)), query


def test_every_scraper_finds_the_port_and_the_daemons() -> None:
    """Monitors select pods that exist, by a port that the container names, on the way the probes go."""
    release = render("--values", CHART / "ci" / "monitoring-values.yaml")
    daemon = release.daemon()
    labels = release.one("Deployment", "r-nexofork-fork")["spec"]["template"]["metadata"]["labels"].items()
    (pods,), (services,), (service,) = map(release.every, ("PodMonitor", "ServiceMonitor", "Service"))

    assert daemon["ports"] == [{"name": "health", "containerPort": 9090, "protocol": "TCP"}]
    assert {"--health-port=9090", "--health-host=*"} <= set(daemon["args"])
    assert pods["spec"]["selector"]["matchLabels"].items() <= labels
    assert service["spec"]["selector"].items() <= labels
    assert services["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    probes = {name: daemon[name]["httpGet"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert {probe["port"] for probe in probes.values()} == {"health"}
    assert probes["livenessProbe"]["path"] == "/healthz"
    assert probes["readinessProbe"]["path"] == "/readyz"
