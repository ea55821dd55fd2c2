//! The same claims for as long as `ABUT_FUZZ_SECONDS` says: `make fuzz`.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

mod support;

use std::time::{Duration, Instant};

use abut_core::{Edge, Part};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, RngSeed, TestRng, TestRunner};
use support::{encode, spec, text};

fn seconds() -> Duration {
    let seconds = std::env::var("ABUT_FUZZ_SECONDS").map_or(10, |text| text.parse().unwrap());
    Duration::from_secs(seconds)
}

#[test]
#[ignore = "runs for ABUT_FUZZ_SECONDS"]
fn fuzz_added_tokens() {
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let config = Config { rng_seed: RngSeed::Fixed(seed), ..Config::default() };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let (began, mut parsed, mut hard) = (Instant::now(), 0u64, 0u64);
    std::panic::set_hook(Box::new(|_| {})); // the oracle's own panics are expected
    while began.elapsed() < seconds() {
        let spec = spec(true).new_tree(&mut runner).unwrap().current();
        let (ours, oracle) = (spec.ours(), spec.oracle());
        for _ in 0..50 {
            let (x, y) = (text(), text()).new_tree(&mut runner).unwrap().current();
            if let Some(expected) = oracle.as_ref().and_then(|oracle| oracle.encode(&x)) {
                assert!(encode(&ours, &x) == expected, "{spec:?} {x:?} {expected:?}");
                parsed += 1;
            }
            for token in ours.added_tokens().iter().filter(|token| ours.is_hard(token.id)) {
                let mut apart = encode(&ours, &x);
                apart.push(token.id);
                apart.extend(ours.encode_parts(&[Part::scaffold(&y)], Edge::Segment).unwrap());
                let whole = format!("{x}{}{y}", token.content);
                assert!(encode(&ours, &whole) == apart, "{spec:?} {x:?} {y:?}");
                hard += 1;
            }
        }
    }
    println!("{parsed} texts equal to tokenizers, {hard} hard tokens that nothing crossed");
}
