"""Stands in for `gym env start --config … +key=value …`: the same servers in one process.

Runs with the Python of an environment that has nemo-gym; see nemo_gym_servers.py.
"""

import argparse
import json
import os
import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("env", choices=["env"])
    parser.add_argument("start", choices=["start"])
    parser.add_argument("--config", action="append", dest="configs")
    given, words = parser.parse_known_args()
    settings = dict(word.removeprefix("+").split("=", 1) for word in words)
    asked = {
        "configs": given.configs,
        "base_url": settings["policy_base_url"],
        "key": "${oc.env:ABUT_GATEWAY_KEY}",  # as gym.yaml has it
        "host": settings["default_host"],
        "head": int(settings["head_server.port"]),
    }
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    servers = Path(__file__).with_name("nemo_gym_servers.py")
    sys.argv = [str(servers), json.dumps(asked)]
    runpy.run_path(str(servers), run_name="__main__")
