"""Certify your tokenizer and its chat template, in ten lines of tests.

    pip install 'abut[hf,testing]'
    pytest certify_tokenizer.py --abut-tokenizer=Qwen/Qwen3-8B

The fixtures come from abut's pytest plugin. Hypothesis searches for a text or a conversation that
breaks; what it finds is made small before it is shown.
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
    """Whatever the text and wherever it is cut: transformers would have written the same."""
    assert_exact_append(abut_hf_tokenizer, data.draw(pieces(abut_tokenizer)))


@given(data=st.data())
def test_conversations_append_as_the_template_writes_them(abut_tokenizer, abut_hf_tokenizer, data):
    """Turn by turn, the ids are those of the chat template's full render."""
    assert_appendable(abut_hf_tokenizer, data.draw(conversations(abut_tokenizer, stripped=True)))


if __name__ == "__main__":
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.parse_args()
    parser.error("pytest runs this: see --help")
