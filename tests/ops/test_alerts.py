"""The alerts that a release installs fire for the pool that is in trouble, and for that one only.

``promtool test rules`` plays series to the rendered rules and tells which alerts fire.
"""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest
import yaml

from nexofork.telemetry.names import CANCELLED
from tests.ops.chart import CHART, render

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

pytestmark = [pytest.mark.ops, pytest.mark.usefixtures("prometheus")]

RULES = ("--namespace", "agents", "--set", "metrics.prometheusRule.enabled=true")
TWO_POOLS = (*RULES, "--set", "pools.fork.slots=4,pools.gpu.pool=Big")
LIVE = {'nexofork_slots{namespace="agents",pool="fork"}': "4x60"}
GONE = {'nexofork_slots{namespace="agents",pool="Big"}': "8x5 stale"}


def installed(*arguments: str | Path) -> dict[str, object]:
    """The rules of a release."""
    (rule,) = render(*arguments).every("PrometheusRule")
    spec: dict[str, object] = rule["spec"]
    return spec


def shipped() -> dict[str, object]:
    """The rules as a Prometheus without the chart loads them."""
    found: dict[str, object] = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    return found


def check_firing(
    folder: Path, rules: dict[str, object], series: Mapping[str, str], expected: set[tuple[str, str]]
) -> None:
    """Play series to rules, and compare the alerts that fire after 45 minutes, with their pools."""
    query = 'count by (alertname, namespace, pool) (ALERTS{alertstate="firing"})'
    told = {f'{{alertname="{alert}", namespace="agents", pool="{pool}"}}': 1.0 for alert, pool in expected}
    check_answer(folder, series, query, told, rules=rules)


def check_answer(
    folder: Path,
    series: Mapping[str, str],
    query: str,
    expected: Mapping[str, float],
    *,
    rules: Mapping[str, object] | None = None,
) -> None:
    """Play series, a value a minute, and compare what a query is answered after 45 minutes."""
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules or {"groups": []}))
    samples = [{"labels": labels, "value": value} for labels, value in expected.items()]
    played = [{"series": name, "values": values} for name, values in series.items()]
    question = {"expr": query, "eval_time": "45m", "exp_samples": samples}
    test = {"interval": "1m", "input_series": played, "promql_expr_test": [question]}
    (folder / "test.yaml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [test]})
    )
    words = ["promtool", "test", "rules", str(folder / "test.yaml")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def counted(name: str, pool: str, per_minute: int, **labels: str) -> dict[str, str]:
    """A counter of one pool that grows steadily."""
    inner = ",".join(f'{key}="{value}"' for key, value in {"namespace": "agents", "pool": pool, **labels}.items())
    return {f"{name}{{{inner}}}": f"0+{per_minute}x60"}


@pytest.mark.parametrize(
    "series",
    [
        pytest.param(LIVE | GONE, id="gone"),
        pytest.param(LIVE, id="never there"),
        pytest.param(LIVE | {'nexofork_slots{namespace="agents",pool="Big"}': "0x60"}, id="draining"),
        pytest.param(LIVE | {'nexofork_slots{namespace="other",pool="Big"}': "8x60"}, id="in another namespace"),
    ],
)
def test_a_dead_pool_is_seen_beside_a_live_one(tmp_path: Path, series: dict[str, str]) -> None:
    """Its daemons gone, never come or draining, the alert names the pool as NATS calls it."""
    check_firing(tmp_path, installed(*TWO_POOLS), series, {("NexoforkNoDaemons", "Big")})


def test_a_dead_pool_is_seen_without_the_chart(tmp_path: Path) -> None:
    """The file that is shipped knows no pools, but those it has seen within a day."""
    check_firing(tmp_path, shipped(), LIVE | GONE, {("NexoforkNoDaemons", "Big")})


def test_an_idle_pool_that_may_be_empty_wakes_nobody(tmp_path: Path) -> None:
    """Where the autoscaler may take every pod, or no pod is asked for, missing daemons are no fault."""
    keda = installed(*RULES, "--values", CHART / "ci" / "keda-values.yaml")
    steady = {'nexofork_slots{namespace="agents",pool="steady"}': "4x60"}
    check_firing(tmp_path, keda, steady, set())
    check_firing(tmp_path, keda, {}, {("NexoforkNoDaemons", "steady")})

    none = installed(*RULES, "--set", "replicas=0")
    check_firing(tmp_path, none, {}, set())


def test_a_full_pool_is_not_hidden_by_an_idle_one(tmp_path: Path) -> None:
    """Slots of one pool are no use to another."""
    series = LIVE | {
        'nexofork_slots{namespace="agents",pool="Big"}': "400x60",
        'nexofork_slots_used{namespace="agents",pool="fork"}': "4x60",
        'nexofork_slots_used{namespace="agents",pool="Big"}': "0x60",
    }

    check_firing(tmp_path, installed(*TWO_POOLS), series, {("NexoforkSlotsFull", "fork")})


def test_a_failing_pool_is_not_hidden_by_a_busy_one(tmp_path: Path) -> None:
    """Failures, waits and missed caches count within their pool."""
    series = LIVE | {'nexofork_slots{namespace="agents",pool="Big"}': "8x60"}
    series |= counted("nexofork_runs_total", "fork", 1000, status="completed")
    series |= counted("nexofork_runs_total", "Big", 2, status="failed")
    series |= counted("nexofork_tokens_total", "fork", 10_000, kind="cache_read")
    series |= counted("nexofork_tokens_total", "Big", 0, kind="cache_read")
    series |= counted("nexofork_tokens_total", "Big", 10, kind="fresh")
    for pool, quick, all_of_them in (("fork", 1000, 1000), ("Big", 0, 2)):
        series |= counted("nexofork_queue_wait_seconds_bucket", pool, quick, le="60.0")
        series |= counted("nexofork_queue_wait_seconds_bucket", pool, all_of_them, le="120.0")
        series |= counted("nexofork_queue_wait_seconds_bucket", pool, all_of_them, le="+Inf")

    found = {("NexoforkRunsFailing", "Big"), ("NexoforkQueueWaitHigh", "Big"), ("NexoforkCacheHitsLow", "Big")}
    check_firing(tmp_path, installed(*TWO_POOLS), series, found)


def test_every_alert_names_its_pool() -> None:
    """Whoever is woken reads which one."""
    groups = installed(*TWO_POOLS)["groups"]
    assert isinstance(groups, list)

    for rule in (rule for group in groups for rule in group["rules"]):
        assert "{{ $labels.pool }}" in rule["annotations"]["summary"]


def test_an_aborted_call_is_no_failed_one(tmp_path: Path) -> None:
    """The panel of failed model calls shows errors, and neither calls that went well nor those that were cut off."""
    panels = json.loads((CHART / "files" / "dashboard.json").read_text())["panels"]
    (query,) = [one["targets"][0]["expr"] for one in panels if one["title"] == "Model calls that fail, by error"]
    for name, value in {"$__rate_interval": "2m", "$namespace": ".*", "$pool": ".*"}.items():
        query = query.replace(name, value)
    calls = "gen_ai_client_operation_duration_seconds_count"
    series = counted(calls, "fork", 60) | counted(calls, "fork", 60, error_type=CANCELLED)
    series |= counted(calls, "fork", 60, error_type="Overloaded")

    check_answer(tmp_path, series, query, {'{error_type="Overloaded"}': 1.0})
