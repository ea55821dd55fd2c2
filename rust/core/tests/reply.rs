//! Replies of servers: read back as they were written, and no bytes that panic.

use abut_core::{Choice, StopReason, read_completions};
use proptest::prelude::*;
use serde_json::{Value, json};

fn choice() -> impl Strategy<Value = Choice> {
    let tokens = prop::collection::vec((0..u32::MAX, -9998.0..0.0_f32), 0..9);
    let stop =
        prop_oneof![any::<i64>().prop_map(StopReason::Token), ".*".prop_map(StopReason::Text)];
    let prompt = prop::collection::vec((0..u32::MAX).prop_map(i64::from), 0..9);
    let more = (
        prop::option::of("stop|length|abort"),
        prop::option::of(stop),
        prop::option::of(".*"),
        prop::option::of(prompt),
    );
    (0..9_usize, tokens, more).prop_map(|(index, tokens, more)| Choice {
        index,
        token_ids: tokens.iter().map(|&(id, _)| i64::from(id)).collect(),
        logprobs: tokens.iter().map(|&(_, logprob)| logprob).collect(),
        finish_reason: more.0,
        stop_reason: more.1,
        text: more.2,
        prompt_token_ids: more.3,
    })
}

/// As `/v1/completions` writes it, or as `/inference/v1/generate` does.
fn written(choice: &Choice, completions: bool) -> Value {
    let logprobs: Vec<f64> = choice.logprobs.iter().map(|&logprob| f64::from(logprob)).collect();
    let entry = |logprob: &f64| json!({"token": "a,b", "logprob": logprob, "top_logprobs": [{}]});
    json!({
        "index": choice.index,
        "token_ids": choice.token_ids,
        "logprobs": if completions {
            json!({"tokens": ["]"], "token_logprobs": logprobs, "top_logprobs": null})
        } else {
            json!({"content": logprobs.iter().map(entry).collect::<Vec<_>>()})
        },
        "finish_reason": choice.finish_reason,
        "stop_reason": match &choice.stop_reason {
            None => Value::Null,
            Some(StopReason::Token(id)) => json!(id),
            Some(StopReason::Text(text)) => json!(text),
        },
        "text": choice.text,
        "prompt_token_ids": choice.prompt_token_ids,
    })
}

proptest! {
    #[test]
    fn what_was_written_is_read(
        choices in prop::collection::vec(choice(), 0..4),
        completions: bool,
        pretty: bool,
    ) {
        let written: Vec<Value> = choices.iter().map(|c| written(c, completions)).collect();
        let reply = json!({"id": "x", "choices": written, "usage": null});
        let body = if pretty { serde_json::to_vec_pretty(&reply) } else { serde_json::to_vec(&reply) };
        let body = body.expect("a value is written without an error");
        prop_assert_eq!(read_completions(&body), Ok(choices));
        for end in 0..body.len() {
            prop_assert!(read_completions(&body[..end]).is_err(), "truncated at {}", end);
        }
    }

    #[test]
    fn changed_bytes_are_read_or_refused(
        choice in choice(),
        at: prop::sample::Index,
        byte: u8,
    ) {
        let mut body = json!({"choices": [written(&choice, true)]}).to_string().into_bytes();
        let at = at.index(body.len());
        body[at] = byte;
        for choice in read_completions(&body).unwrap_or_default() {
            prop_assert_eq!(choice.token_ids.len(), choice.logprobs.len());
            prop_assert!(choice.token_ids.iter().all(|id| u32::try_from(*id).is_ok()));
            prop_assert!(choice.logprobs.iter().all(|logprob| logprob.is_finite()));
        }
    }
}
