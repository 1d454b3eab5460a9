"""The shape of the project: who imports whom, and what ``dvc.yaml`` says a stage depends on.

A dependency that a stage does not declare is a result that goes stale in silence; one that it does not use is an hour
of training for nothing.
"""

import ast
import functools
import graphlib
import re
import runpy
import subprocess
import sys
from pathlib import Path

import grimp
import pytest
from ruamel.yaml import YAML

from cse.data.sources import WATCHED
from cse.settings import Settings
from cse.settings.load import flatten
from cse.training import training_code

ROOT = Path(__file__).parents[1]
DVC_FILE = ROOT / "dvc.yaml"
WHOLE_TREE = "cse.settings.load"  # checks the values of all groups and changes none
STAGE_COMMAND = re.compile(r"python\S* -m (cse\.stages\.\w+)")


@pytest.fixture(scope="module")
def graph():
    return grimp.build_graph("cse", cache_dir=None, exclude_type_checking_imports=True)


def test_import_contracts():
    program = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(cache_dir=None))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    summary = re.search(r"Contracts: (\d+) kept, (\d+) broken", done.stdout)
    assert summary, done.stdout + done.stderr
    assert done.returncode == 0, done.stdout
    assert (int(summary[1]), int(summary[2])) == (4, 0)


def test_importing_the_package_loads_nothing():
    """``cse/__init__.py`` may name its encoders, not import them: the tests below leave it out for that reason."""
    nodes = tree_of(ROOT / "cse/__init__.py").body
    assert {node.module for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)} <= {"__future__", "typing"}
    lazy = {f"cse.{name}" for name in ("BankEncoder", "SentenceEncoder", "OnnxEncoder")}
    for file in (ROOT / "cse").rglob("*.py"):
        assert imported_names(file).isdisjoint(lazy), f"{file}: import it from its module"


def test_the_server_and_nothing_that_it_imports_load_torch():
    for file in (ROOT / "deploy").rglob("*.py"):
        imported = imported_names(file)
        assert {name.split(".")[0] for name in imported}.isdisjoint({"torch", "transformers", "datasets"}), file
        used = {name for name in imported if name == "cse" or name.startswith("cse.")}
        allowed = ("cse.runtime", "cse.choices", "cse.errors", "cse.process", "cse.OnnxEncoder", "cse.__version__")
        allowed += ("cse.outputs", "cse.stages.common") if file.name == "registry.py" else ()
        assert all(name.startswith(allowed) for name in used), f"{file} uses more than the runtime: {used}"
    modules = "deploy.server.run, deploy.server.registry, flows.registry, cse.stages.common"
    heavy = {"torch", "transformers", "datasets", "prefect", "dvc", "opentelemetry.sdk"}
    code = f"import sys, {modules}; print(*({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_no_module_imports_itself_by_a_detour(graph):
    """Imports inside functions count too."""
    wanted = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules - {"cse"}}
    # a package's __init__ imports its own modules, whose names carry the package's: no circle
    order = list(graphlib.TopologicalSorter({name: found - {"cse"} for name, found in wanted.items()}).static_order())
    assert len(order) > 100


def test_the_picture_shows_the_imports():
    drawn = runpy.run_path(str(ROOT / "docs/architecture.py"))["picture"]()
    assert drawn == (ROOT / "docs/architecture.svg").read_text(encoding="utf-8"), "run: python docs/architecture.py"
    assert drawn.count("<path") > 30


def test_stage_dependencies(graph):
    stages = read_stages(DVC_FILE)
    assert len(stages) > 4
    for name, stage in stages.items():
        modules = modules_of_stage(graph, stage["module"])
        assert uncovered(modules, stage["deps"]) == [], f"{name}: add these to its deps in dvc.yaml"
        assert unused(modules, stage["deps"]) == [], f"{name}: its code does not import these deps of dvc.yaml"


def test_a_saved_state_belongs_to_all_the_code_that_trains(graph):
    """What stage ``train`` imports, but for what only reads settings, writes files or words errors."""
    code = {path.relative_to(ROOT).as_posix() for path in training_code()}
    around = re.compile(r"cse/(settings/|(artifact|choices|errors|files|outputs|process)\.py)")
    trains = {file for file in files_of(modules_of_stage(graph, "cse.stages.train")) if not around.match(file)}
    assert {"cse/training/losses.py", "cse/evaluation/score.py", "cse/model/backbone.py"} <= trains
    assert trains - code == set(), "add these to the training code in cse/training/__init__.py"
    assert "cse/training/workers.py" in trains


def test_stage_settings():
    for name, stage in read_stages(DVC_FILE).items():
        found = groups_read(file_of(stage["module"]))
        assert sorted(found) == sorted(stage["params"]), f"{name}: the groups that it reads and its params differ"


def test_models_that_a_training_reads_by_path_and_the_folder_of_further_sources_are_dependencies():
    """They are there in every clone, empty: DVC has no dependency that may be missing, nor one for a list's entries."""
    stages, values = read_stages(DVC_FILE), flatten(Settings().model_dump())
    generator, teacher = "objective.replaced_tokens.generator_folder", "objective.distillation.teacher_folder"
    keys = ("prompt.init_checkpoint", generator, teacher)
    assert {f"${{{key}}}" for key in keys} <= set(stages["train"]["deps"])
    assert [name for name, stage in stages.items() if WATCHED.as_posix() in stage["deps"]] == ["prepare", "domain"]
    for folder in (WATCHED, *(values[key] for key in keys)):
        assert [path.name for path in (ROOT / folder).iterdir()] == ["README.md"]


def test_a_first_run_leaves_the_users_tree_as_it_was():
    """DVC writes every output of its cache that git does not ignore yet into the .gitignore beside it."""
    stages = YAML(typ="safe").load(DVC_FILE)["stages"].values()
    outs = [Path(out) for stage in stages for out in stage.get("outs", []) if isinstance(out, str)]
    assert len(outs) > 4
    for out in outs:
        assert f"/{out.name}" in (ROOT / out.parent / ".gitignore").read_text(encoding="utf-8").split(), out


@functools.cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), filename=str(file))


def file_of(module: str) -> Path:
    base = ROOT.joinpath(*module.split("."))
    return base / "__init__.py" if base.is_dir() else base.with_suffix(".py")


def imported_names(file: Path) -> set[str]:
    """Dotted names of all imports of a file, those inside functions too."""
    names = set()
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def read_stages(dvc_file: Path) -> dict[str, dict]:
    """Return module, deps and params of every stage."""
    stages = {}
    for name, entry in YAML(typ="safe", pure=True).load(dvc_file)["stages"].items():
        entry = entry.get("do", entry)
        (module,) = STAGE_COMMAND.findall(str(entry["cmd"]))
        deps = [next(iter(dep)) if isinstance(dep, dict) else dep for dep in entry.get("deps", [])]
        params = []
        for item in entry.get("params", []):
            params += [item] if isinstance(item, str) else [key for keys in item.values() for key in keys]
        params = list(dict.fromkeys(key.split(".")[0] for key in params))  # a stage may depend on a part of a group
        stages[name] = {"module": module, "deps": deps, "params": params}
    return stages


def modules_of_stage(graph, module: str) -> set[str]:
    """All modules of the project that run with a stage: what it imports, and the packages around that.

    Of the settings only the files of the groups that the stage reads. The root package is left out; it only hands out
    names on first use (tested above).
    """
    assert module in graph.modules, f"{module}: no such module"
    found, todo = set(), [module, *settings_of(module)]
    while todo:
        name = todo.pop()
        if name in ("cse", WHOLE_TREE) or name in found:
            continue
        found.add(name)
        todo += graph.find_modules_directly_imported_by(name)
        parent = name.rpartition(".")[0]
        if holds_code(file_of(parent)):
            todo.append(parent)
    return found


def settings_of(module: str) -> list[str]:
    """The modules of the groups of settings that a stage reads."""
    if not module.startswith("cse.stages."):
        return []
    return [type(getattr(Settings(), group)).__module__ for group in sorted(groups_read(file_of(module)))]


def holds_code(file: Path) -> bool:
    """Whether a file holds more than a docstring."""
    return any(not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) for node in tree_of(file).body)


def uncovered(modules: set[str], deps: list[str]) -> list[str]:
    """Files of modules that no dep is or holds."""
    return [file for file in files_of(modules) if not any(covers(dep, file) for dep in deps)]


def unused(modules: set[str], deps: list[str]) -> list[str]:
    """Code deps that hold none of the modules; the ``__init__.py`` of a package around them may be named."""
    around = {".".join(module.split(".")[:depth]) for module in modules for depth in range(1, module.count(".") + 1)}
    files = files_of(modules | around)
    return [dep for dep in deps if is_code(dep) and not any(covers(dep, file) for file in files)]


def files_of(modules: set[str]) -> list[str]:
    return sorted(file_of(module).relative_to(ROOT).as_posix() for module in modules)


def covers(dep: str, file: str) -> bool:
    return file == dep or file.startswith(dep.rstrip("/") + "/")


def is_code(dep: str) -> bool:
    path = ROOT / dep
    return path.suffix == ".py" or (path.parts[len(ROOT.parts)] == "cse" and any(path.rglob("*.py")))


def declared_groups(file: Path) -> tuple[str, ...]:
    for node in tree_of(file).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == "GROUPS" for target in targets):
            return ast.literal_eval(node.value)
    raise AssertionError(f"{file}: no GROUPS, the groups of settings that it reads by name")


@functools.cache
def stage_parts(file: Path) -> dict[str, Path]:
    """What a stage imports by name from modules of stages and training, methods of classes too, and their files."""
    nodes = [node for node in ast.walk(tree_of(file)) if isinstance(node, ast.ImportFrom)]
    modules = [node for node in nodes if re.fullmatch(r"cse\.(?:stages|training)\.\w+", node.module or "")]
    found = {alias.name: file_of(node.module) for node in modules for alias in node.names}
    bodies = [(each, path) for path in set(found.values()) for each in tree_of(path).body]
    classes = [(each, path) for each, path in bodies if isinstance(each, ast.ClassDef) and each.name in found]
    methods = {node.name: path for each, path in classes for node in each.body if isinstance(node, ast.FunctionDef)}
    return methods | found


@functools.cache
def groups_read(file: Path) -> set[str]:
    """Groups that a stage's module takes from its ``Settings`` arguments.

    Allowed are ``settings.group``, ``getattr(settings, name)`` for the names of ``GROUPS``, and handing settings to a
    function or class of the same file, or of another stage, which is then read too; an attribute ``settings`` counts as
    settings. Anything else would hide what is read.
    """
    tree = tree_of(file)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    arguments = [arg for node in functions for arg in (*node.args.args, *node.args.kwonlyargs)]
    names = {arg.arg for arg in arguments if arg.annotation and ast.unparse(arg.annotation) == "Settings"}
    assert names, f"{file}: no function takes Settings"
    parent = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    local = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    groups, elsewhere = set(), stage_parts(file)
    for node in ast.walk(tree):
        named = isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load)
        if not named and not (isinstance(node, ast.Attribute) and node.attr == "settings"):
            continue
        use = parent[node]
        if isinstance(use, ast.Tuple):  # several names are given their values at once
            continue
        call = parent[use] if isinstance(use, ast.keyword) else use
        function = call.func if isinstance(call, ast.Call) else None
        called = getattr(function, "id", getattr(function, "attr", None))
        if isinstance(use, ast.Attribute):
            groups.add(use.attr)
        elif called == "getattr":
            groups |= set(declared_groups(file))
        elif called in elsewhere:
            groups |= groups_read(elsewhere[called])
        else:
            assert called in local, f"{file} line {node.lineno}: hand on the groups, not all settings"
    return groups
