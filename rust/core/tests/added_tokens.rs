//! Cutting by added tokens is that of `tokenizers`, and hard tokens are hard.
#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use abut_core::{Edge, Part, Tokenizer};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use support::{encode, spec, text};

/// The tokens of `x`, `token`, `y` where nothing crosses the token.
fn apart(tokenizer: &Tokenizer, x: &str, id: u32, y: &str) -> Vec<u32> {
    let mut ids = encode(tokenizer, x);
    ids.push(id);
    ids.extend(tokenizer.encode_parts(&[Part::scaffold(y)], Edge::Segment).unwrap());
    ids
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn parse_equals_tokenizers(spec in spec(true), text in text()) {
        let expected = spec.oracle().and_then(|oracle| oracle.encode(&text));
        prop_assume!(expected.is_some());
        prop_assert_eq!(Some(encode(&spec.ours(), &text)), expected);
    }

    #[test]
    fn nothing_crosses_a_hard_token(spec in spec(false), x in text(), y in text()) {
        let tokenizer = spec.ours();
        for token in tokenizer.added_tokens().iter().filter(|token| tokenizer.is_hard(token.id)) {
            let whole = format!("{x}{}{y}", token.content);
            prop_assert_eq!(encode(&tokenizer, &whole), apart(&tokenizer, &x, token.id, &y));
        }
    }
}

/// The control of the test above: a token that is not hard is crossed by some text.
#[test]
fn something_crosses_a_token_that_is_not_hard() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let crossed = (0..500).any(|_| {
        let tree = (spec(false), text(), text()).new_tree(&mut runner).unwrap();
        let (spec, x, y) = tree.current();
        let tokenizer = spec.ours();
        let soft: Vec<_> =
            tokenizer.added_tokens().iter().filter(|t| !tokenizer.is_hard(t.id)).collect();
        soft.iter().any(|token| {
            let whole = format!("{x}{}{y}", token.content);
            encode(&tokenizer, &whole) != apart(&tokenizer, &x, token.id, &y)
        })
    });
    assert!(crossed);
}
