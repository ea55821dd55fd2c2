"""Exit with 0 if all servers of a Gym answer: `python gym_is_up.py HEAD_URL`.

The head lists its servers before they have started, so each server is checked.
"""

import json
import sys
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

_ANSWER_S = 5.0
# Do not use proxies inside the cluster.
_opener = build_opener(ProxyHandler({}))


def answers(url: str) -> bool:
    """Return whether a server answers, with any status."""
    try:
        _opener.open(url, timeout=_ANSWER_S).close()
    except HTTPError:
        return True
    except OSError:
        return False
    return True


def is_up(head_url: str) -> bool:
    """Return whether the head has servers and all of them answer."""
    try:
        with _opener.open(f"{head_url.rstrip('/')}/server_instances", timeout=_ANSWER_S) as reply:
            servers = json.load(reply)
    except (OSError, ValueError):
        return False
    return bool(servers) and all(answers(server["url"]) for server in servers)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    sys.exit(0 if is_up(sys.argv[1]) else 1)
