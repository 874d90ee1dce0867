"""The chart as a user has it: rendered by a real helm, read as the objects a cluster would get."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["CASES", "CHART", "KUBERNETES", "ROOT", "Rendered", "helm", "refusal", "render", "tool"]

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "nexofork"
CASES = sorted((CHART / "ci").glob("*-values.yaml"))
KUBERNETES = ("1.27", "1.37")
"""The oldest version the chart allows, and the newest whose schemas there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """The objects of one release."""

    objects: Sequence[dict[str, Any]]

    def every(self, kind: str) -> list[dict[str, Any]]:
        """All objects of a kind."""
        return [one for one in self.objects if one["kind"] == kind]

    def one(self, kind: str, name: str) -> dict[str, Any]:
        """The object of that kind and name."""
        (found,) = [one for one in self.every(kind) if one["metadata"]["name"] == name]
        return found

    def pod(self, name: str = "r-nexofork-fork") -> dict[str, Any]:
        """The pod of a deployment."""
        spec: dict[str, Any] = self.one("Deployment", name)["spec"]["template"]["spec"]
        return spec

    def daemon(self, name: str = "r-nexofork-fork") -> dict[str, Any]:
        """The container of a deployment's daemon."""
        container: dict[str, Any] = self.pod(name)["containers"][0]
        return container

    def pods(self) -> Iterator[dict[str, Any]]:
        """Every pod's specification, tests included."""
        for one in self.objects:
            if one["kind"] in ("Deployment", "Pod"):
                yield one["spec"]["template"]["spec"] if one["kind"] == "Deployment" else one["spec"]


def tool(name: str) -> str:
    """Return the path of a program of the `ops` extra."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.fail(f"{name} is not installed; run `make ops`")
    return found


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run helm to its end."""
    words = [tool("helm"), *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=50, check=False)


def render(*arguments: str | Path) -> Rendered:
    """Return what a release named ``r`` consists of."""
    done = helm("template", "r", CHART, *arguments)
    assert done.returncode == 0, done.stderr
    return Rendered(objects=[one for one in yaml.safe_load_all(done.stdout) if one])


def refusal(*arguments: str | Path) -> str:
    """Return why such a release is refused."""
    done = helm("template", "r", CHART, *arguments)
    assert done.returncode != 0, f"helm accepted {arguments}"
    return done.stderr
