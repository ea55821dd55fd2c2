"""`abut check`: what is known of a tokenizer and its chat template before anybody trains."""

from abut.audit.verdict import Audit, audit

__all__ = ["Audit", "audit"]
