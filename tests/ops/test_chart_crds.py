"""KEDA and the Prometheus operator accept what the chart makes for them, down to the last field."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.ops.chart import CHART, render

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.ops

_PACKAGES = ("@kubernetes-models/keda@0.4.2", "@kubernetes-models/prometheus-operator@6.0.0", "typescript@5.9.3")
_KEDA = "@kubernetes-models/keda/keda.sh/v1alpha1"
_PROMETHEUS = "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1"
_HOMES = {
    "ScaledObject": _KEDA,
    "PodMonitor": _PROMETHEUS,
    "ServiceMonitor": _PROMETHEUS,
    "PrometheusRule": _PROMETHEUS,
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models of the custom resources and a compiler."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed: the objects for KEDA and the Prometheus operator are NOT checked")
    folder = tmp_path_factory.mktemp("models")
    (folder / "package.json").write_text("{}")
    words = [npm, "install", "--no-audit", "--no-fund", "--silent", *_PACKAGES]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=55, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def complaints(folder: Path, objects: list[dict[str, Any]]) -> str:
    """What the models have against the objects.

    The models' own check knows types and patterns but lets unknown fields pass; the compiler knows the fields.
    """
    types, values = [], []
    for number, one in enumerate(objects):
        kind, text = one["kind"], json.dumps(one)
        types.append(
            f'import {{ I{kind} as T{number} }} from "{_HOMES[kind]}";\nexport const o{number}: T{number} = {text};'
        )
        values.append(f'new (await import("{_HOMES[kind]}")).{kind}({text}).validate();')
    (folder / "fields.ts").write_text("\n".join(types))
    (folder / "values.mjs").write_text("\n".join(values))
    compiler = ["node_modules/typescript/bin/tsc", "--noEmit", "--strict", "--skipLibCheck"]
    said = ""
    for words in ([*compiler, "--module", "commonjs", "--moduleResolution", "node", "fields.ts"], ["values.mjs"]):
        done = subprocess.run(["node", *words], cwd=folder, capture_output=True, text=True, timeout=50, check=False)
        said += done.stdout + done.stderr if done.returncode else ""
    return said


def ours() -> list[dict[str, Any]]:
    """One of every kind and more."""
    releases = [render("--values", CHART / "ci" / f"{case}-values.yaml") for case in ("keda", "monitoring")]
    return [one for release in releases for one in release.objects if one["kind"] in _HOMES]


def test_custom_resources_fit_their_definitions(models: Path) -> None:
    """Every field exists and every value has its type."""
    objects = ours()

    assert {one["kind"] for one in objects} == set(_HOMES)
    assert complaints(models, objects) == ""


def test_the_judges_find_what_is_wrong(models: Path) -> None:
    """A misspelt field and a number where text belongs are found."""
    (scaled,) = [one for one in ours() if one["kind"] == "ScaledObject"]
    scaled["spec"]["coolDownPeriod"] = scaled["spec"].pop("cooldownPeriod")
    assert "coolDownPeriod" in complaints(models, [scaled])

    (scaled,) = [one for one in ours() if one["kind"] == "ScaledObject"]
    scaled["spec"]["triggers"][0]["metadata"]["lagThreshold"] = 32
    assert "lagThreshold must be string" in complaints(models, [scaled])
