//! Reading the reply of a vLLM server into arrays.
//!
//! Invariant: each choice that [`read_completions`] returns has possible ids, and one possible logprob
//! for each of them. Everything else in a reply, by far the most of it, is skipped and not built.

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::error::{Error, Result, SampleOf};
use crate::logprob;

/// One choice of a reply.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The server's own number of the choice.
    pub index: usize,
    /// The sampled ids, the stop token included.
    pub token_ids: Vec<i64>,
    /// Nats, one for each of `token_ids`.
    pub logprobs: Vec<f32>,
    /// `stop`, `length`, `abort`, …; None where the server gave none.
    pub finish_reason: Option<String>,
    /// The token or string that ended it, where that is not the end-of-sequence token.
    pub stop_reason: Option<StopReason>,
    /// The text as the server decoded it; `/inference/v1/generate` decodes nothing.
    pub text: Option<String>,
    /// The ids that the engine received, where the server repeats them.
    pub prompt_token_ids: Option<Vec<i64>>,
}

/// The token or string that ended a sample.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum StopReason {
    /// A token of `stop_token_ids`.
    Token(i64),
    /// A stop string.
    Text(String),
}

#[derive(Deserialize)]
struct Reply<'a> {
    #[serde(borrow)]
    choices: Vec<RawChoice<'a>>,
}

#[derive(Deserialize)]
struct RawChoice<'a> {
    index: usize,
    #[serde(borrow, default)]
    token_ids: Option<Numbers<'a>>,
    #[serde(borrow, default)]
    logprobs: Option<RawLogprobs<'a>>,
    #[serde(default)]
    finish_reason: Option<String>,
    #[serde(default)]
    stop_reason: Option<StopReason>,
    #[serde(default)]
    text: Option<String>,
    #[serde(borrow, default)]
    prompt_token_ids: Option<Numbers<'a>>,
}

#[derive(Deserialize)]
struct RawLogprobs<'a> {
    /// Of `/v1/completions`.
    #[serde(borrow, default)]
    token_logprobs: Option<Numbers<'a>>,
    /// Of `/inference/v1/generate`.
    #[serde(borrow, default)]
    content: Option<Vec<RawLogprob<'a>>>,
}

#[derive(Deserialize)]
struct RawLogprob<'a> {
    #[serde(borrow)]
    logprob: &'a RawValue,
}

/// An array of numbers that stays text: the part between its brackets. `serde_json` has checked that it
/// is valid JSON, so the text between two commas is either a number or some other JSON value, which
/// parsing it refuses.
struct Numbers<'a>(&'a str);

impl<'de: 'a, 'a> Deserialize<'de> for Numbers<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let text = <&RawValue>::deserialize(deserializer)?.get();
        let inside = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        inside.map(Self).ok_or_else(|| {
            serde::de::Error::custom(format!("expected an array, found {}", shortened(text)))
        })
    }
}

impl<'a> Numbers<'a> {
    fn items(&self) -> impl Iterator<Item = &'a str> {
        let none = usize::from(self.0.trim_ascii().is_empty());
        self.0.split(',').map(str::trim_ascii).skip(none)
    }
}

/// Reads the body of a reply of `/v1/completions` or `/inference/v1/generate`. Linear in its bytes.
///
/// # Errors
/// [`Error::Reply`]: no such reply. [`Error::ReplyArray`]: ids or logprobs are missing.
/// [`Error::ReplyId`]: a value that is not an id. [`Error::LogprobCount`], [`Error::Logprob`]: logprobs
/// that are not those of the ids.
pub fn read_completions(body: &[u8]) -> Result<Vec<Choice>> {
    let refused = |reason| Error::Reply { bytes: body.len(), reason };
    let text = std::str::from_utf8(body).map_err(|error| refused(error.to_string()))?;
    let reply: Reply<'_> =
        serde_json::from_str(text).map_err(|error| refused(error.to_string()))?;
    reply.choices.into_iter().map(read_choice).collect()
}

fn read_choice(raw: RawChoice<'_>) -> Result<Choice> {
    let choice = raw.index;
    let token_ids = raw.token_ids.ok_or(Error::ReplyArray {
        choice,
        name: "token_ids",
        hint: "send \"return_token_ids\": true, which vLLM supports since 0.10.2",
    })?;
    let token_ids = read_ids(choice, "token_ids", &token_ids)?;
    let logprobs = read_logprobs(choice, raw.logprobs.as_ref(), &token_ids)?;
    logprob::check(SampleOf::Choice(choice), &token_ids, &logprobs)?;
    let prompt =
        raw.prompt_token_ids.as_ref().map(|array| read_ids(choice, "prompt_token_ids", array));
    Ok(Choice {
        index: choice,
        token_ids,
        logprobs,
        finish_reason: raw.finish_reason,
        stop_reason: raw.stop_reason,
        text: raw.text,
        prompt_token_ids: prompt.transpose()?,
    })
}

fn read_ids(choice: usize, name: &'static str, array: &Numbers<'_>) -> Result<Vec<i64>> {
    let id = |(index, item): (usize, &str)| {
        item.parse::<u32>().map(i64::from).map_err(|_| Error::ReplyId {
            choice,
            name,
            index,
            value: shortened(item),
        })
    };
    array.items().enumerate().map(id).collect()
}

fn read_logprobs(choice: usize, raw: Option<&RawLogprobs<'_>>, ids: &[i64]) -> Result<Vec<f32>> {
    let sample = SampleOf::Choice(choice);
    let values: Vec<&str> = match raw {
        Some(RawLogprobs { token_logprobs: Some(array), .. }) => array.items().collect(),
        Some(RawLogprobs { content: Some(tokens), .. }) => {
            tokens.iter().map(|token| token.logprob.get()).collect()
        }
        _ => {
            let hint = "send \"logprobs\": 0";
            return Err(Error::ReplyArray { choice, name: "logprobs", hint });
        }
    };
    if values.len() != ids.len() {
        return Err(Error::LogprobCount { sample, ids: ids.len(), logprobs: values.len() });
    }
    let logprob = |(&value, (index, &id)): (&&str, (usize, &i64))| {
        // By way of f64, as every other reader of JSON does it, so that all agree to the last bit.
        #[allow(
            clippy::cast_possible_truncation,
            reason = "what overflows is infinite, and refused"
        )]
        value.parse::<f64>().map(|value| value as f32).map_err(|_| Error::Logprob {
            sample,
            index,
            id,
            value: shortened(value),
            problem: "not a number",
        })
    };
    values.iter().zip(ids.iter().enumerate()).map(logprob).collect()
}

fn shortened(text: &str) -> String {
    const LONGEST: usize = 24;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
