"""Certify your tokenizer and its chat template, in ten lines of tests.

    pip install 'abut[hf,testing]'
    pytest certify_tokenizer.py --abut-tokenizer=Qwen/Qwen3-8B

The fixtures come from abut's pytest plugin. Hypothesis searches for text or conversations that
break an assertion, and reduces them to a minimal example.
"""

import argparse

from hypothesis import given, settings
from hypothesis import strategies as st

from abut.strategies import conversations, pieces
from abut.testing import assert_appendable, assert_exact_append

settings.register_profile("certify", deadline=None)
settings.load_profile("certify")


@given(data=st.data())
def test_texts_append_as_if_they_were_one(abut_tokenizer, abut_hf_tokenizer, data):
    """Text appended in pieces has the ids that transformers gives the whole text."""
    assert_exact_append(abut_hf_tokenizer, data.draw(pieces(abut_tokenizer)))


@given(data=st.data())
def test_conversations_append_as_the_template_writes_them(abut_tokenizer, abut_hf_tokenizer, data):
    """After each turn, the ids equal those of the whole rendered conversation."""
    assert_appendable(abut_hf_tokenizer, data.draw(conversations(abut_tokenizer, stripped=True)))


if __name__ == "__main__":
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.parse_args()
    parser.error("run this file with pytest, see --help")
