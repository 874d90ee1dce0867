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

# Imports point one way: a package may import what stands to its left, what stands in its own group, and itself.
LAYERS = (
    *(["errors"], ["core"], ["wire"], ["economics"], ["telemetry"], ["bus"], ["auth"], ["providers"]),
    *(["tools", "policy", "sandbox", "workspace"], ["run"], ["config"], ["client"], ["agents"], ["cli"]),
)
RANKS = {package: rank for rank, group in enumerate(LAYERS) for package in group}
ALONE = {"bus": {"providers"}, "providers": {"bus"}, "client": {"agents"}, "agents": {"client"}}
FENCED = {
    "nats": ("nexofork.bus",),
    "anthropic": ("nexofork.providers", "nexofork.cli.demo"),
    "click": ("nexofork.cli", "nexofork_daemon"),
    "mcp": ("nexofork.tools.mcp",),
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
TREES = {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


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
    return parts[1] if len(parts) > 1 and parts[0] == "nexofork" and parts[1] in RANKS else None


def inside(*packages: str) -> Iterator[str]:
    """The modules of these packages."""
    return (name for name in MODULES if any(within(name, package) for package in packages))


def imports(name: str) -> Iterator[tuple[str, str]]:
    """What a module imports, and where, for a reader."""
    for imported, node in imports_of(TREES[name]):
        yield imported, f"{name} imports {imported} (line {node.lineno})"


def test_imports_point_one_way() -> None:
    """No module imports a layer above its own, or one next to it that it must not know."""
    wrong = []
    for name in MODULES:
        layer = layer_of(name)
        for imported, place in imports(name):
            target = layer_of(imported)
            if layer is None or target is None or target == layer:
                continue
            if RANKS[target] > RANKS[layer] or target in ALONE.get(layer, set()):
                wrong.append(place)
    assert wrong == []


def test_the_simulator_shares_no_code_with_what_it_judges() -> None:
    """A bug in the judge must not be able to hide the same bug in the judged."""
    assert [
        place
        for name in inside("nexofork.simulator")
        for imported, place in imports(name)
        if within(imported, "nexofork") and not within(imported, "nexofork.simulator")
    ] == []


def test_the_library_never_imports_the_daemon() -> None:
    """The daemon is built on the library, not the other way round."""
    assert [
        place for name in inside("nexofork") for imported, place in imports(name) if within(imported, "nexofork_daemon")
    ] == []


def test_filters_know_no_provider() -> None:
    """A verdict rests on a tool's name and its arguments alone, for every provider."""
    filters = inside("nexofork.policy")
    assert [
        place for name in filters for imported, place in imports(name) if within(imported, "nexofork.providers")
    ] == []


def test_edges_are_imported_in_one_place() -> None:
    """Outside libraries are used only in the module that wraps them."""
    assert [
        place
        for name in MODULES
        for imported, place in imports(name)
        for library, homes in FENCED.items()
        if within(imported, library) and not any(within(name, home) for home in homes)
    ] == []


def test_first_party_imports_stand_at_the_top() -> None:
    """An import inside a function means that the layering is wrong."""
    assert [
        f"{name} imports {imported} (line {node.lineno})"
        for name, tree in TREES.items()
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for imported, node in imports_of(function)
        if within(imported, "nexofork") or within(imported, "nexofork_daemon")
    ] == []


def test_modules_and_functions_stay_short() -> None:
    """A long module or function has more than one purpose."""
    long = [name for name, path in MODULES.items() if path.read_text().count("\n") > MAX_LINES]
    long += [
        f"{name}.{node.name}: {(node.end_lineno or 0) - node.lineno + 1} lines"
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (node.end_lineno or 0) - node.lineno + 1 > MAX_FUNCTION_LINES
    ]
    assert long == []


def test_a_module_is_named_for_a_thing() -> None:
    """A module called utils says nothing about what is in it."""
    assert [name for name in MODULES if name.rpartition(".")[2] in BANNED_NAMES] == []


def test_core_is_pure() -> None:
    """Nothing in core waits, reads a clock or touches the outside."""
    impure = {"asyncio", "time", "os", "socket", "subprocess", "pathlib", "logging", "datetime"}
    core = list(inside("nexofork.core"))
    assert core
    assert [place for name in core for imported, place in imports(name) if imported.partition(".")[0] in impure] == []
    assert [
        f"{name}: line {node.lineno}"
        for name in core
        for node in ast.walk(TREES[name])
        if isinstance(node, (ast.AsyncFunctionDef, ast.Await))
    ] == []


def test_the_environment_is_read_by_the_command_line_alone() -> None:
    """Library code gets its settings as arguments."""
    assert [
        f"{name}: line {node.lineno}"
        for name, tree in TREES.items()
        if not within(name, "nexofork.cli") and not name.endswith(".settings")
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
    ] == []


def test_there_is_no_import_cycle() -> None:
    """Every module can be imported first."""
    graph: dict[str, set[str]] = {}
    for name, tree in TREES.items():
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
