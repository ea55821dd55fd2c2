"""Real servers of NeMo Gym in one process, started with the Python of an environment that has it.

`python nemo_gym_servers.py '{"head": …, "base_url": …, "key": …, "configs": […]}'`, or with the
words of `gym env start --config … +key=value …`, for which it stands in. Gym's own launcher starts
a process with an environment for each server; here one event loop holds them all, with the same
classes, routes and configuration. Says `ready` on stdout when all of them answer.
"""

import argparse
import asyncio
import functools
import importlib
import inspect
import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

KINDS = (
    "resources_servers",
    "responses_api_agents",
    "responses_api_models",
    "environment_servers",
)


def asked_by(words: Sequence[str]) -> dict[str, Any]:
    """Return the settings that the words of a command line give."""
    if len(words) == 1:
        asked: dict[str, Any] = json.loads(words[0])
        return asked
    parser = argparse.ArgumentParser()
    parser.add_argument("env", choices=["env"])
    parser.add_argument("start", choices=["start"])
    parser.add_argument("--config", action="append", dest="configs")
    given, more = parser.parse_known_args(words)
    settings = dict(word.removeprefix("+").split("=", 1) for word in more)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    return {
        "configs": given.configs,
        "base_url": settings["policy_base_url"],
        "key": "${oc.env:ABUT_GATEWAY_KEY}",  # as gym.yaml has it
        "host": settings["default_host"],
        "head": int(settings["head_server.port"]),
    }


def the_config(asked: dict[str, Any]) -> Any:
    """Gym's configuration, by its own parser."""
    from nemo_gym.global_config import GlobalConfigDictParserConfig, get_global_config_dict
    from omegaconf import DictConfig

    initial = {
        "config_paths": asked["configs"],
        "policy_base_url": asked["base_url"],
        "policy_api_key": asked["key"],
        "policy_model_name": "policy",
        "default_host": asked.get("host", "127.0.0.1"),
        "head_server": {"host": asked.get("host", "127.0.0.1"), "port": asked["head"]},
        **asked.get("overrides", {}),
    }
    return get_global_config_dict(
        global_config_dict_parser_config=GlobalConfigDictParserConfig(
            initial_global_config_dict=DictConfig(initial), skip_load_from_cli=True
        )
    )


def servers_of(config: Any) -> list[tuple[str, str, str, Any]]:
    """Name, kind, implementation and settings of each server."""
    found = []
    for name, block in config.items():
        for kind in KINDS:
            if hasattr(block, "items") and kind in block:
                ((implementation, settings),) = block[kind].items()
                found.append((name, kind, implementation, settings))
    return found


def app_of(config: Any, name: str, kind: str, implementation: str) -> Any:
    """The application of one server."""
    from nemo_gym.server_utils import ServerClient, SimpleServer

    module = importlib.import_module(f"{kind}.{implementation}.app")
    own = [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, SimpleServer)
        and value.__module__ == module.__name__
    ]
    os.environ["NEMO_GYM_CONFIG_PATH"] = name
    client = ServerClient(
        head_server_config=ServerClient.load_head_server_config(), global_config_dict=config
    )
    server = own[-1](config=own[-1].load_config_from_global_config(), server_client=client)
    app = server.setup_webserver()
    server.setup_liveness(app)
    server.setup_exception_middleware(app)
    return app


def told(config: Any, pids: dict[str, int]) -> list[dict[str, Any]]:
    """What the head says of the servers."""
    return [
        {
            "process_name": name,
            "server_type": kind,
            "name": implementation,
            "host": settings.host,
            "port": settings.port,
            "url": f"http://{settings.host}:{settings.port}",
            "pid": pids.get(name, os.getpid()),
            "status": None,
        }
        for name, kind, implementation, settings in servers_of(config)
    ]


async def serve(apps: list[tuple[Any, str, int]], message: str) -> None:
    """Serve until a signal comes."""
    import contextlib

    import uvicorn

    servers = []
    for app, host, port in apps:
        settings = uvicorn.Config(
            app, host=host, port=port, log_level="warning", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(settings)
        server.capture_signals = contextlib.nullcontext
        servers.append(server)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    tasks = [asyncio.create_task(server.serve()) for server in servers]
    while not all(server.started for server in servers):
        await asyncio.sleep(0.02)
    # Their process ids are for tests that kill them.
    print(f"{message} {os.getpid()}", flush=True)
    await stop.wait()
    for server in servers:
        server.should_exit = True
    await asyncio.gather(*tasks)


def main() -> None:
    """Start what is asked for; servers named in `alone`, `head` too, get a process each."""
    asked = asked_by(sys.argv[1:])
    config = the_config(asked)
    host, alone = asked.get("host", "127.0.0.1"), asked.get("alone", [])
    listed = servers_of(config)
    pids: dict[str, int] = {}

    def begin(name: str, app: Any, host: str, port: int) -> None:
        if not (pid := os.fork()):
            asyncio.run(serve([(app(), host, port)], f"alone {name}"))
            os._exit(0)
        pids[name] = pid

    for name, kind, implementation, settings in listed:
        if name in alone:
            app = functools.partial(app_of, config, name, kind, implementation)
            begin(name, app, settings.host, settings.port)
    apps = [
        (app_of(config, name, kind, implementation), settings.host, settings.port)
        for name, kind, implementation, settings in listed
        if name not in alone
    ]

    def head() -> Any:
        from nemo_gym.config_types import BaseServerConfig
        from nemo_gym.server_utils import HeadServer

        server = HeadServer(config=BaseServerConfig(host=host, port=asked["head"]))
        server._server_instances = told(config, pids)
        return server.setup_webserver()

    if "head" in alone:
        begin("head", head, host, asked["head"])
    else:
        apps.append((head(), host, asked["head"]))
    try:
        asyncio.run(serve(apps, "ready"))
    finally:
        for pid in pids.values():
            try:
                os.kill(pid, signal.SIGCONT)  # one that was stopped
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass


if __name__ == "__main__":
    main()
