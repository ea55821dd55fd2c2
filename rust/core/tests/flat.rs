//! Calls that are promised to be flat take the same time behind much text as behind little.
//!
//! Ratios of the best of many runs, never a time: slow and noisy machines are slow on both sides.
//! A linear call exceeds the bound by far, as the last test shows.
#![allow(missing_docs, clippy::unwrap_used)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use abut_core::{AddedMode, Overrides, Part, Provenance, Tokenizer, Trajectory};

const BOUND: f64 = 3.0;
const RUNS: usize = 40;
/// A disturbance that lasts for all runs of one side is waited for.
const ATTEMPTS: usize = 3;
const REPLY: &str = " and then the environment answers with some words of its own, about this long";

fn tokenizer() -> Arc<Tokenizer> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python/abut/demo/assets/tokenizer.json");
    let json = std::fs::read_to_string(path).unwrap();
    Arc::new(Tokenizer::from_json(&json, &Overrides::default()).unwrap())
}

fn words(bytes: usize) -> String {
    "one two three four five ".repeat(bytes / 24 + 1)
}

/// The best time behind much over the best time behind little, both measured in turn.
fn growth(mut little: impl FnMut() -> Duration, mut much: impl FnMut() -> Duration) -> f64 {
    let mut least = [Duration::MAX; 2];
    for _ in 0..RUNS {
        least = [least[0].min(little()), least[1].min(much())];
    }
    least[1].as_secs_f64() / least[0].as_secs_f64()
}

fn is_flat(mut measure: impl FnMut() -> f64) -> Result<(), Vec<f64>> {
    let mut seen = Vec::new();
    for _ in 0..ATTEMPTS {
        seen.push(measure());
        if seen[seen.len() - 1] <= BOUND {
            return Ok(());
        }
    }
    Err(seen)
}

fn timed<T>(work: impl FnOnce() -> T) -> Duration {
    let began = Instant::now();
    black_box(work());
    began.elapsed()
}

/// Appends to an open text of that many bytes.
fn appending(tokenizer: &Arc<Tokenizer>, bytes: usize) -> impl FnMut() -> Duration {
    let mut trajectory = Trajectory::new(tokenizer.clone());
    trajectory.append_parts(&[Part::content(&words(bytes))], Provenance::Env).unwrap();
    move || timed(|| trajectory.append_parts(&[Part::content(REPLY)], Provenance::Env).unwrap())
}

/// Plays a turn behind that many tokens: a sample, the environment's reply, the next request.
fn playing(tokenizer: &Arc<Tokenizer>, tokens: usize) -> impl FnMut() -> Duration {
    let mut trajectory = Trajectory::new(tokenizer.clone());
    let scaffold = |text| Part::scaffold(text);
    trajectory.append_parts(&[scaffold("<|im_start|>user\n")], Provenance::Prompt).unwrap();
    trajectory.request();
    let sample = |tokens: usize| {
        let mut ids = tokenizer.encode(&words(8 * tokens), AddedMode::Parse).unwrap();
        ids.truncate(tokens);
        ids.extend(tokenizer.encode("<|im_end|>", AddedMode::Parse).unwrap());
        ids
    };
    let history = sample(tokens.min(10_000)).repeat(tokens.div_ceil(10_000));
    trajectory.append_sampled(&history, &vec![-0.5; history.len()]).unwrap();
    let answer = sample(20);
    let logprobs = vec![-0.5; answer.len()];
    let parts = [
        scaffold("\n<|im_start|>user\n"),
        Part::content(REPLY),
        scaffold("<|im_end|>\n<|im_start|>assistant\n"),
    ];
    // Arrays grow by doubling; the cost of a turn shows between two doublings.
    move || {
        timed(|| {
            trajectory.append_parts(&parts, Provenance::Env).unwrap();
            black_box(trajectory.request());
            trajectory.append_sampled(&answer, &logprobs).unwrap();
        })
    }
}

#[test]
fn an_append_costs_the_same_behind_much_open_text() {
    let tokenizer = tokenizer();
    is_flat(|| growth(appending(&tokenizer, 1_000), appending(&tokenizer, 1_000_000))).unwrap();
}

#[test]
fn a_turn_costs_the_same_behind_a_long_conversation() {
    let tokenizer = tokenizer();
    is_flat(|| growth(playing(&tokenizer, 1_000), playing(&tokenizer, 1_000_000))).unwrap();
}

#[test]
fn a_seam_costs_the_same_behind_much_text() {
    let tokenizer = tokenizer();
    let (little, much) = (words(1_000), words(16_000_000));
    let seam = |left: &str| timed(|| tokenizer.seam(left, REPLY, AddedMode::Parse).unwrap());
    is_flat(|| growth(|| seam(&little), || seam(&much))).unwrap();
    let additive =
        |left: &str| timed(|| tokenizer.is_additive(left, REPLY, AddedMode::Parse).unwrap());
    is_flat(|| growth(|| additive(&little), || additive(&much))).unwrap();
}

#[test]
fn a_linear_call_is_noticed() {
    let (little, much) = (words(1_000), words(16_000_000));
    let look = |text: &str| timed(|| text.bytes().filter(|byte| *byte == b'|').count());
    let seen = is_flat(|| growth(|| look(&little), || look(&much))).unwrap_err();
    assert!(seen.iter().all(|ratio| *ratio > 100.0), "{seen:?}");
}
