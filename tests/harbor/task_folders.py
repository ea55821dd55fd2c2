"""Folders of tasks for Harbor, written by tests."""

from pathlib import Path

WRITES = "#!/bin/bash\necho done > /app/answer.txt\n"
CHECKS = """#!/bin/bash
grep -q done /app/answer.txt 2>/dev/null && reward=1 || reward=0
echo $reward > /logs/verifier/reward.txt
"""
TOML = """version = "1.0"

[agent]
timeout_sec = {agent_s}

[verifier]
timeout_sec = {verifier_s}
"""


def write_task(
    folder: Path,
    name: str = "write",
    *,
    test: str = CHECKS,
    agent_s: float = 300.0,
    verifier_s: float = 60.0,
) -> Path:
    """Write a task that asks for a file, and return its folder."""
    task = folder / name
    for path, text in {
        "task.toml": TOML.format(agent_s=agent_s, verifier_s=verifier_s),
        "instruction.md": f"Write 'done' into /app/answer.txt. ({name})\n",
        "environment/Dockerfile": "FROM debian:12-slim\nWORKDIR /app\n",
        "tests/test.sh": test,
        "solution/solve.sh": WRITES,
    }.items():
        (task / path).parent.mkdir(parents=True, exist_ok=True)
        (task / path).write_text(text)
    return task
