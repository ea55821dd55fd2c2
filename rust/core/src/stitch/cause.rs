//! A guess at the cause of a difference between a prompt and the tokens that stood there.
//!
//! Guesses are for people: nothing depends on them. They look at a bounded number of tokens on either
//! side of the difference.

use serde::{Deserialize, Serialize};

use super::call::Call;
use crate::error::Error;
use crate::tokenizer::Tokenizer;

/// The cause of a difference between a prompt and the tokens that stood there.
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
            Self::Separator => "the template ends the turn differently; pass token ids",
            Self::ToolCall => "a tool call was parsed and serialized again; pass token ids",
            Self::Rewritten => "the history was rewritten; pass token ids",
            Self::Unknown => "pass tokenizer= to see both texts",
        }
    }
}

/// The tokens on each side of the difference whose text a message shows.
const SHOWN_TOKENS: usize = 8;
/// The tokens on each side of the difference whose text decides about the cause. Thinking may be long,
/// and its opening tag is at its beginning.
const DECODED_TOKENS: usize = 4096;
/// The tokens within which the two sides have to come together again if they are the same text in other
/// tokens, or if one of them has one token more.
const REJOIN_TOKENS: usize = 16;
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
    /// The call whose tokens stood there.
    pub old: &'a Call<'a>,
    /// Its index.
    pub other: usize,
    /// The call whose prompt differs.
    pub new: &'a Call<'a>,
    /// The first token that differs.
    pub token: usize,
    /// True if the prompt is known to repeat turns of the old call further on.
    pub rewritten: bool,
}

impl Difference<'_> {
    /// The text around the difference, on both sides.
    pub fn texts(&self, tokenizer: &Tokenizer) -> (String, String) {
        let shown = self.token.saturating_sub(SHOWN_TOKENS)..self.token + SHOWN_TOKENS;
        let text = |ids| String::from_utf8_lossy(&decode(tokenizer, ids)).into_owned();
        (text(self.old.tokens(shown.clone())), text(self.new.prompt().tokens(shown)))
    }

    /// The whole message, with the texts where there is a tokenizer.
    pub fn error(&self, call: usize, parent: usize, tokenizer: Option<&Tokenizer>) -> Error {
        let Self { old, other, token, .. } = *self;
        let right = self.new.prompt_ids.get(token);
        let right = right.map_or("missing".to_owned(), ToString::to_string);
        let sampled = token >= old.prompt_ids.len();
        let of = if sampled {
            "was sampled".to_owned()
        } else {
            format!("in the prompt of call {other}")
        };
        let texts = tokenizer.map_or_else(String::new, |tokenizer| {
            let (left, right) = self.texts(tokenizer);
            format!("\n  call {other}: {left:?}\n  call {call}: {right:?}")
        });
        let cause = self.cause(tokenizer);
        let left = old.token(token).to_string() + " " + &of;
        Error::Drift { call, parent, token, right, left, texts, hint: cause.hint() }
    }

    /// The first cause that fits. The order goes from the most certain to the least: a missing BOS and
    /// the same text in other tokens can be proved, the others are read off tags in the text.
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
        let seen = self.token..self.token + DECODED_TOKENS;
        let start = if in_sample { self.old.prompt_ids.len() } else { self.token };
        let end = if in_sample { self.old.len() } else { self.old.prompt_ids.len() };
        let old = decode(tokenizer, self.old.tokens(self.token..end.min(seen.end)));
        let new = decode(tokenizer, self.new.prompt().tokens(seen));
        if self.same_text(tokenizer) || (!old.is_empty() && new.starts_with(&old)) {
            return Cause::BpeMerge;
        }
        // The generation prompt may end with the opening tag (`<think>\n`), so the text before the
        // difference begins some tokens before the sample.
        let near =
            start.saturating_sub(SHOWN_TOKENS).max(self.token.saturating_sub(DECODED_TOKENS));
        let before = decode(tokenizer, self.old.tokens(near..self.token));
        let before = String::from_utf8_lossy(&before);
        let (old, new) = (String::from_utf8_lossy(&old), String::from_utf8_lossy(&new));
        let in_thinking = |(start, end): &(&str, &str)| {
            let is_inside = before.rfind(start).is_some_and(|at| !before[at..].contains(end));
            is_inside || old.trim_start().starts_with(start)
        };
        if in_sample && THINKING.iter().any(in_thinking) {
            return Cause::Thinking;
        }
        let begins = |text: &str, tag: &str| text.trim_start().starts_with(tag);
        let in_call = |tag: &str| before.contains(tag) || begins(&old, tag) || begins(&new, tag);
        if in_sample && !at_stop && TOOL_CALLS.iter().any(|tag| in_call(tag)) {
            return Cause::ToolCall;
        }
        // The old text without whitespace is still there, in the same order: only whitespace differs.
        let mut rest = new.chars().filter(|c| !c.is_whitespace());
        if at_stop || old.chars().filter(|c| !c.is_whitespace()).all(|c| rest.next() == Some(c)) {
            return Cause::Separator;
        }
        Cause::Rewritten
    }

    /// True if the sides agree once one of them skips a token.
    fn one_more(&self, skip_old: usize, skip_new: usize) -> bool {
        let near = |skip: usize| self.token + skip..self.token + skip + REJOIN_TOKENS;
        let old = self.old.tokens(near(skip_old));
        let new = self.new.prompt().tokens(near(skip_new));
        let shared = old.zip(new).take_while(|(old, new)| old == new).count();
        let left = |len: usize, skip: usize| len.saturating_sub(self.token + skip);
        let most = left(self.old.len(), skip_old).min(left(self.new.prompt_ids.len(), skip_new));
        // One shared token could be chance: many turns begin with the same one.
        shared >= 2 && shared == most.min(REJOIN_TOKENS)
    }

    /// True if some of the next tokens on both sides are the same text.
    fn same_text(&self, tokenizer: &Tokenizer) -> bool {
        let near = self.token..self.token + REJOIN_TOKENS;
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
