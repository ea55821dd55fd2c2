//! The work of stitching grows with the tokens given, whatever their shape.
#![allow(missing_docs, clippy::unwrap_used)]

use abut_core::{Call, OnDrift, stitch};

type Recorded = (Vec<i64>, Vec<i64>);
type Shape = fn(usize) -> Vec<Recorded>;

/// One conversation: each prompt is all tokens so far and ten more.
fn conversation(turns: usize) -> Vec<Recorded> {
    let mut prompt = vec![1; 20];
    (0..turns)
        .map(|turn| {
            let call = (prompt.clone(), vec![i64::try_from(turn).unwrap() % 7, 5, 5]);
            prompt.extend(&call.1);
            prompt.extend([2; 10]);
            call
        })
        .collect()
}

/// Each turn is re-rendered without its sample.
fn rewritten(turns: usize) -> Vec<Recorded> {
    let mut calls = conversation(turns);
    for (turn, call) in calls.iter_mut().enumerate() {
        call.1 = vec![100 + i64::try_from(turn).unwrap(), 3, 3];
    }
    calls
}

/// One prompt, many samples that part late.
fn retries(count: usize) -> Vec<Recorded> {
    (0..count)
        .map(|n| (vec![1; 50], [vec![2; 50], vec![i64::try_from(n).unwrap()]].concat()))
        .collect()
}

/// Many continuations of one sample.
fn fan(count: usize) -> Vec<Recorded> {
    let root = (vec![1; 50], vec![2; 50]);
    let whole = [&root.0[..], &root.1].concat();
    let next = |n| ([&whole[..60], &[n, 3]].concat(), vec![4, 4]);
    std::iter::once(root.clone()).chain((10..).take(count).map(next)).collect()
}

/// Conversations of their own in which every window of tokens is the same.
fn roots(count: usize) -> Vec<Recorded> {
    (0..count)
        .map(|n| ([vec![i64::try_from(n).unwrap() + 10], vec![1; 99]].concat(), vec![1; 30]))
        .collect()
}

fn work_per_token(recorded: &[Recorded]) -> f64 {
    let logprobs = vec![-1.0; 1000];
    let calls: Vec<Call<'_>> = recorded
        .iter()
        .map(|(prompt_ids, completion_ids)| Call {
            prompt_ids,
            completion_ids,
            logprobs: &logprobs[..completion_ids.len()],
        })
        .collect();
    let given: usize = recorded.iter().map(|(prompt, sample)| prompt.len() + sample.len()).sum();
    let work = stitch(&calls, OnDrift::Realign, None).unwrap().work;
    #[allow(clippy::cast_precision_loss, reason = "small")]
    let ratio = work as f64 / given as f64;
    ratio
}

#[test]
fn work_is_linear_in_the_tokens_given() {
    let shapes: [(&str, Shape); 5] = [
        ("conversation", conversation),
        ("rewritten", rewritten),
        ("retries", retries),
        ("fan", fan),
        ("roots", roots),
    ];
    for (name, shape) in shapes {
        let (few, many) = (work_per_token(&shape(100)), work_per_token(&shape(800)));
        assert!(many < 1.2 * few + 0.5, "{name}: {few} steps per token, then {many}");
        assert!(many < 30.0, "{name}: {many} steps per token");
    }
}

#[test]
fn the_ratio_would_show_quadratic_work() {
    let pairs = |calls: &[Recorded]| -> usize {
        let len = |call: &Recorded| call.0.len();
        calls.iter().flat_map(|a| calls.iter().map(move |b| len(a).min(len(b)))).sum()
    };
    let given = |calls: &[Recorded]| calls.iter().map(|call| call.0.len()).sum::<usize>();
    let per_token = |count| pairs(&retries(count)) / given(&retries(count));
    assert!(per_token(800) > 2 * per_token(100));
}
