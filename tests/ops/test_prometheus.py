"""A real Prometheus scrapes a real daemon, and finds its metrics, rules and queries in order."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest
import yaml

from tests.acceptance.fleet.test_metrics import FILES, lived_through
from tests.support.fleet import fleet, nursery
from tests.support.scraping import get

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.fleet import Fleet

pytestmark = pytest.mark.ops

__all__ = ["fleet", "nursery"]


@contextmanager
def scraping(prometheus: str, folder: Path, target: int) -> Iterator[str]:
    """A Prometheus that scrapes a port every second and holds the chart's alerts; yields its address."""
    shutil.copy(FILES / "alerts.yaml", folder / "alerts.yaml")
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["alerts.yaml"],
        "scrape_configs": [{"job_name": "nexofork", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [
                prometheus,
                f"--config.file={folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=log,
        )
        try:
            yield address
        finally:
            process.terminate()
            process.wait()


def ask(address: str, path: str) -> Any:
    """What Prometheus answers; None while it is not there."""
    try:
        with urlopen(f"http://{address}/api/v1/{path}", timeout=10) as answer:
            return json.load(answer)["data"]
    except OSError:
        return None


async def until_answered(address: str, query: str) -> list[dict[str, Any]]:
    """The result of a query, once there is one."""
    async with asyncio.timeout(60):
        while True:
            found = await asyncio.to_thread(ask, address, f"query?query={quote(query)}")
            if found and found["result"]:
                result: list[dict[str, Any]] = found["result"]
                return result
            await asyncio.sleep(0.2)


async def test_prometheus_scrapes_a_daemon_and_answers(prometheus: str, fleet: Fleet, tmp_path: Path) -> None:
    """Counts come back as they were, every rule loads, and a sum over labels works."""
    port = await lived_through(fleet)
    with scraping(prometheus, tmp_path, port) as address:
        (runs,) = await until_answered(address, 'nexofork_runs_total{status="completed"}')
        (share,) = await until_answered(
            address, 'sum(nexofork_tokens_total{kind="cache_read"}) / sum(nexofork_tokens_total{kind!="output"})'
        )
        (quantile,) = await until_answered(
            address, "histogram_quantile(0.95, sum by (le) (nexofork_queue_wait_seconds_bucket))"
        )
        rules = ask(address, "rules")

    assert (runs["value"][1], runs["metric"]["pool"]) == ("2", fleet.pool)
    assert 0 < float(share["value"][1]) < 1
    assert float(quantile["value"][1]) > 0
    written = yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"]
    loaded = [rule for group in rules["groups"] for rule in group["rules"]]
    assert [rule["name"] for rule in loaded] == [rule["alert"] for group in written for rule in group["rules"]]
    assert {rule["health"] for rule in loaded} <= {"ok", "unknown"}


@pytest.mark.usefixtures("prometheus")
async def test_promtool_finds_no_fault(fleet: Fleet) -> None:
    """Neither in what a daemon shows nor in the chart's alerts."""
    _, shown = await get(await lived_through(fleet), "/metrics")

    assert checked("metrics", said=shown) == (0, "")
    assert checked("rules", str(FILES / "alerts.yaml"))[0] == 0


def checked(*arguments: str, said: str | None = None) -> tuple[int, str]:
    """Exit code and complaints of promtool, which comes with Prometheus."""
    found = subprocess.run(["promtool", "check", *arguments], input=said, capture_output=True, text=True, check=False)
    return found.returncode, found.stderr
