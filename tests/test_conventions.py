"""The house rules that a reader would otherwise have to remember."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import nexofork

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"nexofork": ROOT / "nexofork", "nexofork_daemon": ROOT / "daemon" / "nexofork_daemon"}
MAX_LINES = 600
MAX_FUNCTION_LINES = 60

# Imports point one way; a layer may import what stands to its left, and itself.
LAYERS = (
    *("errors", "core", "wire", "economics", "telemetry", "bus", "auth", "providers"),
    *("engine", "config", "client", "agents", "cli"),
)
ALONE = {"bus": {"providers"}, "providers": {"bus"}, "client": {"agents"}, "agents": {"client"}}
FENCED = {
    "nats": ("nexofork.bus",),
    "anthropic": ("nexofork.providers", "nexofork.cli.demo"),
    "click": ("nexofork.cli", "nexofork_daemon"),
    "mcp": ("nexofork.engine.tools.mcp",),
}
BANNED_NAMES = ("utils", "helpers", "common", "manager", "base", "misc")


def modules() -> dict[str, Path]:
    """Every module of the packages by its dotted name."""
    found: dict[str, Path] = {}
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join((package, *(part for part in parts if part != "__init__")))] = path
    return found


MODULES = modules()


def imports_of(tree: ast.AST) -> Iterator[tuple[str, ast.stmt]]:
    """Every absolute import in a tree with its statement."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module, node


def within(module: str, package: str) -> bool:
    """Whether a module is that package or inside it."""
    return module == package or module.startswith(package + ".")


def layer_of(module: str) -> str | None:
    """The layer a module of nexofork belongs to; the package root and the simulator have none."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "nexofork" and parts[1] in LAYERS else None


@pytest.mark.parametrize("name", MODULES)
def test_imports_point_one_way(name: str) -> None:
    """No module imports a layer above its own, or one beside it that it must not know."""
    layer = layer_of(name)
    wrong = []
    for imported, node in imports_of(ast.parse(MODULES[name].read_text())):
        target = layer_of(imported)
        if layer is None or target is None or target == layer:
            continue
        if LAYERS.index(target) > LAYERS.index(layer) or target in ALONE.get(layer, set()):
            wrong.append(f"{imported} (line {node.lineno})")
    assert not wrong


@pytest.mark.parametrize("name", [name for name in MODULES if within(name, "nexofork.simulator")])
def test_the_simulator_shares_no_code_with_what_it_judges(name: str) -> None:
    """A bug in the judge must not be able to hide the same bug in the judged."""
    imported = [module for module, _ in imports_of(ast.parse(MODULES[name].read_text()))]
    ours = [module for module in imported if within(module, "nexofork") and not within(module, "nexofork.simulator")]
    assert ours == []


@pytest.mark.parametrize("name", [name for name in MODULES if within(name, "nexofork")])
def test_the_library_never_imports_the_daemon(name: str) -> None:
    """The daemon is built on the library, not the other way round."""
    imported = [module for module, _ in imports_of(ast.parse(MODULES[name].read_text()))]
    assert [module for module in imported if within(module, "nexofork_daemon")] == []


@pytest.mark.parametrize(
    "name",
    [name for name in MODULES if within(name, "nexofork.engine.filters") or within(name, "nexofork.engine.shell")],
)
def test_filters_know_no_provider(name: str) -> None:
    """A tool's name and its arguments are all that a verdict rests on, whoever the model is from."""
    imported = [module for module, _ in imports_of(ast.parse(MODULES[name].read_text()))]
    assert [module for module in imported if within(module, "nexofork.providers")] == []


@pytest.mark.parametrize("name", MODULES)
def test_edges_are_imported_in_one_place(name: str) -> None:
    """Outside libraries stay behind the module that wraps them."""
    imported = [module for module, _ in imports_of(ast.parse(MODULES[name].read_text()))]
    wrong = [
        module
        for module in imported
        for library, homes in FENCED.items()
        if within(module, library) and not any(within(name, home) for home in homes)
    ]
    assert wrong == []


@pytest.mark.parametrize("name", MODULES)
def test_first_party_imports_stand_at_the_top(name: str) -> None:
    """An import inside a function means that the layering is wrong."""
    tree = ast.parse(MODULES[name].read_text())
    inside = [
        f"{module} (line {node.lineno})"
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for module, node in imports_of(function)
        if within(module, "nexofork") or within(module, "nexofork_daemon")
    ]
    assert inside == []


@pytest.mark.parametrize("name", MODULES)
def test_modules_and_functions_stay_short(name: str) -> None:
    """A long module or function has more than one purpose."""
    text = MODULES[name].read_text()
    assert text.count("\n") <= MAX_LINES
    long = [
        f"{node.name}: {(node.end_lineno or 0) - node.lineno + 1} lines"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (node.end_lineno or 0) - node.lineno + 1 > MAX_FUNCTION_LINES
    ]
    assert long == []


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_named_for_a_thing(name: str) -> None:
    """A module called utils is where design goes to hide."""
    assert name.rpartition(".")[2] not in BANNED_NAMES


@pytest.mark.parametrize("name", [name for name in MODULES if within(name, "nexofork.core")])
def test_core_is_pure(name: str) -> None:
    """Nothing in core waits, reads a clock or touches the outside."""
    tree = ast.parse(MODULES[name].read_text())
    impure = {"asyncio", "time", "os", "socket", "subprocess", "pathlib", "logging", "datetime"}
    assert [module for module, _ in imports_of(tree) if module.partition(".")[0] in impure] == []
    assert [node for node in ast.walk(tree) if isinstance(node, (ast.AsyncFunctionDef, ast.Await))] == []


@pytest.mark.parametrize("name", MODULES)
def test_the_environment_is_read_by_the_command_line_alone(name: str) -> None:
    """Library code gets its settings as arguments."""
    if within(name, "nexofork.cli") or name.endswith(".settings"):
        return
    uses = [
        node.lineno
        for node in ast.walk(ast.parse(MODULES[name].read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
    ]
    assert uses == []


def test_there_is_no_import_cycle() -> None:
    """Every module can be imported first."""
    graph: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        tree = ast.parse(path.read_text())
        typing_only = {
            id(statement)
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
            for statement in ast.walk(node)
        }
        graph[name] = {module for module, node in imports_of(tree) if module in MODULES and id(node) not in typing_only}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path, name))
        if name not in done:
            for target in graph[name]:
                visit(target, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())
    assert done == set(graph)


def test_the_public_surface_is_exactly_this() -> None:
    """A public name is a promise; this list changes on purpose only."""
    assert sorted(nexofork.__all__) == [
        "AbortToken",
        "AgentDefinition",
        "AgentRegistry",
        "AgentTool",
        "AllOfFilter",
        "AllowAllFilter",
        "AnthropicProvider",
        "AutoMemFilter",
        "BlockingForkSubagent",
        "Budget",
        "CacheSafeParams",
        "CacheSafeSlot",
        "DefaultForkSubagent",
        "DelegateMode",
        "DelegationTool",
        "Estimate",
        "FleetSettings",
        "ForkHandle",
        "ForkOverrides",
        "ForkParams",
        "ForkResult",
        "ForkStatus",
        "FunctionTools",
        "GitWorkspace",
        "NatsForkSubagent",
        "NexoforkError",
        "ParentContext",
        "PathWorkspace",
        "PermissionAnswer",
        "PermissionAsk",
        "Permissions",
        "ProfileFilter",
        "QuerySource",
        "ReadOnlyFilter",
        "Reply",
        "as_completed",
        "capture",
        "connect",
        "estimate",
        "task_notification",
    ]


def test_every_public_name_is_where_it_is_promised() -> None:
    """What `__all__` lists can be had from the package, and nothing else pretends to be."""
    assert all(getattr(nexofork, name).__name__ == name for name in nexofork.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = nexofork.nope


def test_importing_the_package_loads_no_heavy_library() -> None:
    """The command line's start-up does not pay for what it does not use."""
    code = "import sys, nexofork.cli; print([m for m in ('anthropic', 'nats', 'pydantic') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
