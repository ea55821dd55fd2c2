"""`abut check`: the audit of a tokenizer and its chat template, before you train with them."""

from abut.audit.verdict import Audit, audit

__all__ = ["Audit", "audit"]
