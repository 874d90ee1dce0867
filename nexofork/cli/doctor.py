"""``nexofork doctor``: whether this host can run forks, one line per check, with what to do where it cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from nexofork.cli.checkup import CHECKS, Patient
from nexofork.cli.checkup_nats import check_nats
from nexofork.cli.exit_codes import NOT_COMPLETED, OK
from nexofork.cli.options import json_option
from nexofork.cli.output import plain, print_json
from nexofork.cli.session import finish
from nexofork.cli.setting_options import DAEMON_FILE, daemon_file, setting_options, surroundings
from nexofork.config.keys import DAEMON_KEYS, NATS_KEYS, SANDBOX_KEYS
from nexofork.sandbox.sandbox import SandboxSettings
from nexofork.tools.limits import Limits

if TYPE_CHECKING:
    from nexofork.cli.checkup import Finding
    from nexofork.config.settings import Settings

__all__ = ["doctor"]

_COLOURS = {"ok": "green", "note": "yellow", "wrong": "red"}
_MB = 1024 * 1024
_PROVIDER_KEYS = tuple(key for key in DAEMON_KEYS if key.section == "provider")


@click.command()
@click.option("--live", is_flag=True, help="Call the provider once, with one token of answer, to try the key.")
@click.option("--model", default="claude-haiku-4-5", show_default=True, help="Whose price has to be known.")
@click.option("--config", metavar="FILE", help=f"The daemon's settings file.  [default: {DAEMON_FILE} if there]")
@setting_options((*SANDBOX_KEYS, *_PROVIDER_KEYS, *NATS_KEYS), every=DAEMON_KEYS, file=daemon_file, warn=False)
@json_option
def doctor(*, settings: Settings, live: bool, model: str, config: str | None, as_json: bool) -> None:
    """Check that this host can run forks, and say what to do where not.

    Takes the daemon's settings and tries what it would do with them. Exit code 1 if something is wrong.

    It does not see whether the NATS server syncs every write to its disk, which no client is told; whose workspace the
    key belongs to, unless --live asks the provider; nor prices of other models than --model.
    """
    del config  # it was read on the way here, see daemon_file
    secrets = (settings[path] for path in ("nats.creds_file", "nats.nkey_file", "provider.api_key_file"))
    patient = Patient(
        settings=settings,
        sandbox=SandboxSettings(
            kind=settings["sandbox.kind"],
            state_dir=settings["daemon.state_dir"],
            network=settings["sandbox.network"],
            read=settings["sandbox.read"],
            secrets=tuple(path for path in secrets if path is not None),
            limits=Limits(resident_bytes=settings["sandbox.memory_mb"] * _MB),
            disk_bytes=settings["sandbox.disk_mb"] * _MB,
        ),
        environment=surroundings(None).environment,
        model=model,
        live=live,
    )
    finish(lambda: _doctor(patient, as_json=as_json))


async def _doctor(patient: Patient, *, as_json: bool) -> int:
    findings: list[Finding] = []

    def tell(finding: Finding) -> None:
        findings.append(finding)
        if not as_json:
            _print(finding)

    for check in CHECKS:
        tell(await check(patient))
    async for finding in check_nats(patient):
        tell(finding)
    wrong = sum(finding.state == "wrong" for finding in findings)
    if as_json:
        print_json({"ok": not wrong, "checks": [finding.to_json() for finding in findings]})
    return NOT_COMPLETED if wrong else OK


def _print(finding: Finding) -> None:
    state = click.style(f"{finding.state:<6}", fg=_COLOURS[finding.state])
    fix = f" {finding.fix}" if finding.fix else ""
    click.echo(f"{state}{finding.name:<10} {plain(finding.said)}.{plain(fix)}")
