//! A guess at why a prompt does not go on with what stood there.
//!
//! Guesses are for people: nothing is decided by them. They look at a bounded number of tokens on
//! either side of the difference.

use serde::{Deserialize, Serialize};

use super::call::Call;
use crate::error::Error;
use crate::tokenizer::Tokenizer;

/// Why a prompt differs from what stood there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// One side has one token more at the very beginning.
    Bos,
    /// The same text in other tokens.
    BpeMerge,
    /// The difference lies in the thinking of a turn.
    Thinking,
    /// The difference lies in whitespace, or in the token that ends the turn.
    Separator,
    /// The difference lies in a tool call.
    ToolCall,
    /// Another text.
    Rewritten,
    /// Nothing fits, or there is no tokenizer to see the text with.
    Unknown,
}

impl Cause {
    /// The name that users see.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Bos => "bos",
            Self::BpeMerge => "bpe_merge",
            Self::Thinking => "thinking",
            Self::Separator => "separator",
            Self::ToolCall => "tool_call",
            Self::Rewritten => "rewritten",
            Self::Unknown => "unknown",
        }
    }

    pub(super) fn hint(self) -> &'static str {
        match self {
            Self::Bos => "write BOS once, by the template or by the tokenizer",
            Self::BpeMerge => "the text of the turn was tokenized again; pass token ids",
            Self::Thinking => "the chat template removed thinking; pass token ids",
            Self::Separator => "the template ends the turn in its own way; pass token ids",
            Self::ToolCall => "a tool call was parsed and serialized again; pass token ids",
            Self::Rewritten => "the history was rewritten; pass token ids",
            Self::Unknown => "pass tokenizer= to see both texts",
        }
    }
}

/// Tokens on each side of the difference that are shown.
const SHOWN: usize = 8;
/// Tokens on each side of the difference whose text is looked at.
const SEEN: usize = 4096;
/// Tokens within which the two sides may come together again.
const NEAR: usize = 16;
const THINKING: [(&str, &str); 4] = [
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|channel|>analysis", "<|channel|>final"),
    ("<|channel>thought", "<channel|>"),
];
const TOOL_CALLS: [&str; 7] = [
    "<tool_call>",
    "<function=",
    "[TOOL_CALLS]",
    "<|python_tag|>",
    "<|tool_call",
    "<|tool▁call",
    "to=functions.",
];

/// The two sides of one difference.
pub(super) struct Difference<'a> {
    /// What stood there, and which call that is.
    pub old: &'a Call<'a>,
    pub other: usize,
    /// The prompt that differs.
    pub new: &'a Call<'a>,
    /// Where.
    pub token: usize,
    /// Whether it is known that the prompt repeats turns of the old one further on.
    pub rewritten: bool,
}

impl Difference<'_> {
    /// The text around the difference, on both sides.
    pub fn texts(&self, tokenizer: &Tokenizer) -> (String, String) {
        let shown = self.token.saturating_sub(SHOWN)..self.token + SHOWN;
        let text = |ids| String::from_utf8_lossy(&decode(tokenizer, ids)).into_owned();
        (text(self.old.tokens(shown.clone())), text(self.new.prompt().tokens(shown)))
    }

    /// The whole message, with the texts where there is a tokenizer.
    pub fn error(&self, call: usize, parent: usize, tokenizer: Option<&Tokenizer>) -> Error {
        let Self { old, other, token, .. } = *self;
        let right = self.new.prompt_ids.get(token);
        let right = right.map_or("missing".to_owned(), ToString::to_string);
        let sampled = token >= old.prompt_ids.len();
        let of =
            if sampled { "was sampled".to_owned() } else { format!("in that of call {other}") };
        let texts = tokenizer.map_or_else(String::new, |tokenizer| {
            let (left, right) = self.texts(tokenizer);
            format!("\n  call {other}: {left:?}\n  call {call}: {right:?}")
        });
        let cause = self.cause(tokenizer);
        let left = old.token(token).to_string() + " " + &of;
        Error::Drift { call, parent, token, right, left, texts, hint: cause.hint() }
    }

    /// The first reason that fits.
    pub fn cause(&self, tokenizer: Option<&Tokenizer>) -> Cause {
        if self.token <= 1 && (self.one_more(0, 1) || self.one_more(1, 0)) {
            return Cause::Bos;
        }
        let in_sample = self.token >= self.old.prompt_ids.len();
        let at_stop = in_sample && self.token + 1 == self.old.len();
        match tokenizer {
            Some(tokenizer) => self.cause_in_text(tokenizer, in_sample, at_stop),
            None if self.rewritten => Cause::Rewritten,
            None if at_stop => Cause::Separator,
            None => Cause::Unknown,
        }
    }

    fn cause_in_text(&self, tokenizer: &Tokenizer, in_sample: bool, at_stop: bool) -> Cause {
        let seen = self.token..self.token + SEEN;
        let start = if in_sample { self.old.prompt_ids.len() } else { self.token };
        let end = if in_sample { self.old.len() } else { self.old.prompt_ids.len() };
        let old = decode(tokenizer, self.old.tokens(self.token..end.min(seen.end)));
        let new = decode(tokenizer, self.new.prompt().tokens(seen));
        if self.same_text(tokenizer) || (!old.is_empty() && new.starts_with(&old)) {
            return Cause::BpeMerge;
        }
        let begun = start.saturating_sub(SHOWN).max(self.token.saturating_sub(SEEN));
        let before = decode(tokenizer, self.old.tokens(begun..self.token));
        let before = String::from_utf8_lossy(&before);
        let (old, new) = (String::from_utf8_lossy(&old), String::from_utf8_lossy(&new));
        let in_thinking = |(open, close): &(&str, &str)| {
            let opened = before.rfind(open).is_some_and(|at| !before[at..].contains(close));
            opened || old.trim_start().starts_with(open)
        };
        if in_sample && THINKING.iter().any(in_thinking) {
            return Cause::Thinking;
        }
        let begins = |text: &str, tag: &str| text.trim_start().starts_with(tag);
        let in_call = |tag: &str| before.contains(tag) || begins(&old, tag) || begins(&new, tag);
        if in_sample && !at_stop && TOOL_CALLS.iter().any(|tag| in_call(tag)) {
            return Cause::ToolCall;
        }
        let mut rest = new.chars().filter(|c| !c.is_whitespace());
        if at_stop || old.chars().filter(|c| !c.is_whitespace()).all(|c| rest.next() == Some(c)) {
            return Cause::Separator;
        }
        Cause::Rewritten
    }

    /// Whether the sides agree where one of them skips a token.
    fn one_more(&self, skip_old: usize, skip_new: usize) -> bool {
        let near = |skip: usize| self.token + skip..self.token + skip + NEAR;
        let old = self.old.tokens(near(skip_old));
        let new = self.new.prompt().tokens(near(skip_new));
        let shared = old.zip(new).take_while(|(old, new)| old == new).count();
        let left = |len: usize, skip: usize| len.saturating_sub(self.token + skip);
        let most = left(self.old.len(), skip_old).min(left(self.new.prompt_ids.len(), skip_new));
        shared >= 2 && shared == most.min(NEAR)
    }

    /// Whether some of the next tokens on both sides are the same text.
    fn same_text(&self, tokenizer: &Tokenizer) -> bool {
        let near = self.token..self.token + NEAR;
        let mut old = decode_each(tokenizer, self.old.tokens(near.clone()));
        let mut new = decode_each(tokenizer, self.new.prompt().tokens(near));
        let (mut left, mut right) = (Vec::new(), Vec::new());
        loop {
            let side = if left.len() <= right.len() {
                (&mut left, &mut old)
            } else {
                (&mut right, &mut new)
            };
            let Some(bytes) = side.1.next() else { return false };
            side.0.extend(bytes);
            let shared = left.len().min(right.len());
            if left[..shared] != right[..shared] {
                return false;
            }
            if shared > 0 && left.len() == right.len() {
                return true;
            }
        }
    }
}

fn decode(tokenizer: &Tokenizer, ids: impl Iterator<Item = i64>) -> Vec<u8> {
    decode_each(tokenizer, ids).flatten().collect()
}

/// The bytes of each id; U+FFFD for ids that the tokenizer does not have.
fn decode_each(
    tokenizer: &Tokenizer,
    ids: impl Iterator<Item = i64>,
) -> impl Iterator<Item = Vec<u8>> {
    ids.map(|id| {
        let bytes = u32::try_from(id).ok().and_then(|id| tokenizer.decode_bytes(&[id]).ok());
        bytes.unwrap_or_else(|| "\u{fffd}".into())
    })
}
