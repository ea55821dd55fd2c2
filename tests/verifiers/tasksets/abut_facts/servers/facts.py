"""The server: verifiers runs this module as a program."""

import verifiers.v1 as vf

FACTS = {"iron": "Fe, number 26", "neon": "Ne, number 10"}


class FactsToolset(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = "facts"

    @vf.tool
    def lookup(self, name: str) -> str:
        """Look an element up."""
        return FACTS.get(name.lower(), "no such element")


if __name__ == "__main__":
    FactsToolset.run()
