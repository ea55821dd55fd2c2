"""The public names of abut, with the API page and the site address of each.

The source is parsed, not imported, so optional packages do not have to be installed.
"""

import re
from functools import cache
from typing import Any

import griffe

from scripts.docs.messages import ROOT

SITE = "https://abut-rl.github.io/abut/"
FOLDER = "reference/api"
URL = f"{SITE}{FOLDER}/"
"""Links contain addresses of the site, and the build turns them into links between pages."""

PAGES = {
    "tokens": ("Tokens and trajectories", ("abut.trajectory", "abut.parts")),
    "templates": ("Chat templates", ("abut.template",)),
    "tool_calls": ("Tool calls", ("abut.tool_calls",)),
    "envs": ("Environments", ("abut.envs", "abut.gym")),
    "agents": ("Agents", ("abut.agents",)),
    "rollouts": ("Rollouts", ("abut.rollout.rollout",)),
    "samplers": (
        "Samplers",
        (
            "abut.samplers",
            "abut.samplers.settings",
            "abut.samplers.vllm",
            "abut.samplers.trl_server",
        ),
    ),
    "evaluation": ("Evaluation", ("abut.evaluation",)),
    "trl": ("abut.trl", ("abut.trl",)),
    "openenv": ("abut.openenv", ("abut.openenv",)),
    "ray": ("abut.ray", ("abut.ray",)),
    "gateway": ("abut.gateway", ("abut.gateway",)),
    "eval_protocol": ("abut.eval_protocol", ("abut.eval_protocol",)),
    "verifiers": ("abut.verifiers", ("abut.verifiers",)),
    "harbor": ("abut.harbor", ("abut.harbor",)),
    "inspect_ai": ("abut.inspect_ai", ("abut.inspect_ai",)),
    "nemo_gym": ("abut.nemo_gym", ("abut.nemo_gym",)),
    "records": ("abut.records", ("abut.records",)),
    "audit": ("abut.audit", ("abut.audit",)),
    "testing": ("abut.testing", ("abut.testing",)),
    "strategies": ("abut.strategies", ("abut.strategies",)),
    "trl_env": ("abut.trl_env", ("abut.trl_env",)),
}
"""The title of each page, and the modules whose names it describes."""

ABUT = {
    "tokens": "Tokenizer Trajectory Seam Columns Scaffold Content stitch Stitched collate",
    "templates": "ChatTemplateProcessor Processor PartsProcessor",
    "tool_calls": "ToolCall parse_tool_calls",
    "envs": "Env AsyncEnv EnvPool tool_env Image",
    "agents": "agent Agent AgentResult Endpoint",
    "rollouts": "RolloutConfig Rollout",
    "samplers": "Sampler Sample",
    "evaluation": "evaluate play Evaluation",
}
"""The names of `abut` itself, by page. Its errors are on the page of all errors."""

NAMES = {
    "abut.gym": ("GymEnv",),
    "abut.parts": ("Part",),
    "abut.rollout.rollout": ("StopReason",),
    "abut.samplers.settings": ("SamplingSettings",),
    "abut.samplers.trl_server": ("TRLServerSampler",),
}
"""The public names of modules that have no `__all__`."""

SETTINGS = (
    "abut.RolloutConfig",
    "abut.samplers.settings.SamplingSettings",
    "abut.openenv.Serve",
    "abut.openenv.Docker",
)
"""Classes whose fields have a help text; they are on the page of settings."""

MADE = {
    "abut.trl.GRPOTrainer": "abut.trl.rows.all_rows.grpo_trainer",
    "abut.trl.DistillationTrainer": "abut.trl.rows.main_rows.distillation_trainer",
}
"""Classes that are created when they are first used, and the functions that create them."""


@cache
def package() -> griffe.Module:
    """Return the package as griffe reads it, the stubs of the native module included."""
    loader = griffe.GriffeLoader(
        search_paths=[ROOT / "python"], allow_inspection=False, docstring_parser="google"
    )
    module = loader.load("abut")
    assert isinstance(module, griffe.Module)
    loader.resolve_aliases(external=False)
    return module


def names_of(module: str) -> list[str]:
    """Return the public names of a module that `abut` does not have too."""
    if module in NAMES:
        return list(NAMES[module])
    ours = {name for names in ABUT.values() for name in names.split()} | {"InvalidAction"}
    names = [
        name
        for name in map(str, package_at(module).exports or ())
        if name not in ours or package_at(f"{module}.{name}") is not package_at(f"abut.{name}")
    ]
    return names + [path.rpartition(".")[2] for path in MADE if path.startswith(f"{module}.")]


def package_at(path: str) -> Any:
    """Return the object at a dotted path; aliases are resolved."""
    found: Any = package()
    for name in path.split(".")[1:]:
        found = found.members[name]
        if found.is_alias:
            found = found.final_target
    return found


@cache
def places() -> dict[str, str]:
    """Return the address of each public name on the site, by the name and by its path."""
    found = {}
    for page, (_, modules) in PAGES.items():
        named = [(f"abut.{name}", name) for name in ABUT.get(page, "").split()]
        named += [(f"{module}.{name}", name) for module in modules for name in names_of(module)]
        for path, name in named:
            found[path] = f"{URL}{page}/#{path}"
            found.setdefault(name, found[path])
    # Names that are ordinary words, such as `texts`, become links only with their module.
    found = {
        name: url for name, url in found.items() if not name.islower() or re.search("[._]", name)
    }
    for error in errors():
        found[error.name] = f"{SITE}reference/errors/#{error.name.lower()}"
    return found


def errors() -> list[Any]:
    """Return the classes of `abut.errors`, in their order."""
    members = package_at("abut.errors").members.values()
    return [one for one in members if not one.is_alias and one.is_class]
