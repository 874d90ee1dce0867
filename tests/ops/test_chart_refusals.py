"""What is wrong in the values is refused before anything reaches the cluster, and named."""

from __future__ import annotations

import pytest

from tests.ops.chart import refusal, render

pytestmark = pytest.mark.ops


@pytest.mark.parametrize(
    ("given", "named"),
    [
        pytest.param("slotz=4", "slotz", id="unknown key"),
        pytest.param("pools.gpu.slotz=4", "slotz", id="unknown key of a pool"),
        pytest.param("pools.gpu.health.enabled=true", "health", id="not a pool's to decide"),
        pytest.param("nats.password=x", "password", id="unknown key inside"),
        pytest.param("slots=0", "slots", id="no slots"),
        pytest.param("slots=many", "slots", id="not a number"),
        pytest.param("pools.gpu.slots=0", "pools.gpu.slots", id="no slots in a pool"),
        pytest.param("pools.Big_One.slots=1", "Big_One", id="no name for Kubernetes"),
        pytest.param("pools.gpu.pool=a.b", "pools.gpu.pool", id="no name for NATS"),
        pytest.param("sandbox=docker", "sandbox", id="unknown sandbox"),
        pytest.param("state.kind=hostPath", "state.kind", id="unknown kind of state"),
        pytest.param("state.size=lots", "state.size", id="no size"),
        pytest.param("nats.kind=password", "nats.kind", id="unknown credentials"),
        pytest.param("nats.url=http://nats", "nats.url", id="no NATS address"),
        pytest.param("leaseSeconds=0.1", "leaseSeconds", id="lease too short"),
        pytest.param("health.port=80", "health.port", id="privileged port"),
        pytest.param("image.digest=latest", "image.digest", id="no digest"),
        pytest.param("autoscaling.keda.maxReplicas=0", "autoscaling.keda.maxReplicas", id="no replicas"),
        pytest.param("podDisruptionBudget.maxUnavailable=some", "podDisruptionBudget.maxUnavailable", id="no number"),
        pytest.param("provider.existingSecret=", "provider.existingSecret", id="no key"),
    ],
)
def test_a_wrong_value_is_named(given: str, named: str) -> None:
    """The message says which value it was."""
    assert named in refusal("--set", given)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        pytest.param("provider.apiKey=sk-secret", "apiKey", id="provider"),
        pytest.param("nats.seed=SUSECRET", "seed", id="seed"),
        pytest.param("nats.url=nats://me:secret@nats:4222", "nats.url", id="in the address"),
    ],
)
def test_a_secret_is_not_taken_as_a_value(given: str, named: str) -> None:
    """Whoever puts a credential into the values is told so; it does not end up in a manifest."""
    assert named in refusal("--set", given)


def test_a_key_is_not_taken_as_an_environment_variable() -> None:
    """The way round the schema is closed, and the right one named."""
    said = refusal("--set", "extraEnv[0].name=ANTHROPIC_API_KEY", "--set", "extraEnv[0].value=sk-secret")

    assert "provider.existingSecret" in said
    assert "sk-secret" not in said


def test_a_pod_is_never_killed_while_it_drains() -> None:
    """A grace period below the drain is refused with both numbers; one above it is kept."""
    said = refusal("--set", "drainSeconds=300,terminationGracePeriodSeconds=120")

    assert "pool fork: terminationGracePeriodSeconds is 120, and drainSeconds 300: give at least 310" in said
    kept = render("--set", "drainSeconds=300,terminationGracePeriodSeconds=310").pod()
    assert kept["terminationGracePeriodSeconds"] == 310


def test_an_autoscaler_with_its_limits_crossed_is_refused() -> None:
    """More at least than at most is named."""
    keda = "autoscaling.keda"
    said = refusal("--set", f"{keda}.enabled=true,{keda}.minReplicas=5,{keda}.maxReplicas=2")

    assert "minReplicas is 5, more than maxReplicas 2" in said


@pytest.mark.parametrize("name", ["podMonitor", "serviceMonitor", "prometheusRule", "dashboard"])
def test_a_monitor_needs_something_to_scrape(name: str) -> None:
    """Without the endpoint a monitor would watch nothing, so it is refused."""
    said = refusal("--set", f"metrics.{name}.enabled=true,health.enabled=false")
    assert f"metrics.{name}.enabled needs health.enabled" in said
