"""Write what came of an evaluation as JUnit XML, which build servers read."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree

from nexofork.run.result import in_xml

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexofork.agents.evaluation.running import CaseResult

__all__ = ["junit"]


def junit(name: str, results: Sequence[CaseResult]) -> bytes:
    """Return the report: a test per case, with what every run of it said. What XML cannot hold is a question mark."""
    failed = sum(not result.passed for result in results)
    seconds = [sum(run.duration_ms for run in result.runs) / 1000 for result in results]
    counts = {"tests": str(len(results)), "failures": str(failed), "errors": "0", "time": f"{sum(seconds):.3f}"}
    root = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(root, "testsuite", {"name": in_xml(name), **counts})
    for result, took in zip(results, seconds, strict=True):
        case = ElementTree.SubElement(
            suite, "testcase", {"classname": in_xml(name), "name": in_xml(result.case.name), "time": f"{took:.3f}"}
        )
        if not result.passed:
            said = f"{result.passed_runs} of {len(result.runs)} runs passed, {result.case.min_passed} have to"
            failure = ElementTree.SubElement(case, "failure", {"message": said})
            failure.text = in_xml("\n".join(why for run in result.runs for why in run.failures))
        ElementTree.SubElement(case, "system-out").text = in_xml(
            "\n\n".join(
                f"run {number} ({run.outcome.status}):\n{run.outcome.text}"
                for number, run in enumerate(result.runs, start=1)
            )
        )
    report: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return report
