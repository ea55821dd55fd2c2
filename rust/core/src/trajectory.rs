//! A trajectory: tokens in the order in which the engine saw and sampled them.
//!
//! Invariant: **a token has a finite logprob exactly when it was sampled**, every array has one
//! entry per token, and nothing before the frozen edge ever changes. Only this file writes `ids`,
//! `logprobs` and `provenance`, so the invariant is checked here; a fork copies them.

mod fork;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::append::{OpenText, Tail};
use crate::columns::Columns;
use crate::encode::Edge;
use crate::error::{Error, Result, SampleOf};
use crate::logprob;
use crate::parts::{Joined, Part};
use crate::provenance::Provenance;
use crate::seam::{Seam, SeamKind};
use crate::tokenizer::{AddedMode, Tokenizer};

/// One turn: the request that the engine received, and the sample that it returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Turn {
    /// The first token of the sample: the length of the request.
    pub start: usize,
    /// The end of the sample, exclusive.
    pub end: usize,
}

/// The number of tokens beside a frozen edge whose text is looked at first, and then four times as many
/// until an anchor is found. Sixteen tokens of running text are about ten words, and each word begins
/// at an anchor.
const NEAR_TOKENS: usize = 16;

/// Tokens with provenance, joined without gap or overlap.
#[derive(Clone)]
pub struct Trajectory {
    tokenizer: Arc<Tokenizer>,
    ids: Vec<u32>,
    logprobs: Vec<f32>,
    provenance: Vec<u8>,
    turns: Vec<Turn>,
    /// The first token after the last hard token.
    barrier: usize,
    /// The values of `barrier` at the start and at the end of each turn. A fork can't derive them from
    /// the ids: unknown text has the id of `<unk>`, which may be a hard token, but was not cut out.
    barriers: Vec<[usize; 2]>,
    /// The text whose tokens may still change.
    open: OpenText,
    /// The first token of the open text. All tokens before it are frozen.
    open_start: usize,
    /// True if the open text touches frozen tokens that are not the canonical ones for both together.
    /// The next text is then not judged at the frozen edge again: the seam there is merged already.
    open_is_merged: bool,
    /// True if the last thing that happened is a request, so that a sample may follow.
    requested: bool,
}

impl Trajectory {
    /// An empty trajectory.
    #[must_use]
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        Self {
            tokenizer,
            ids: Vec::new(),
            logprobs: Vec::new(),
            provenance: Vec::new(),
            turns: Vec::new(),
            barrier: 0,
            barriers: Vec::new(),
            open: OpenText::new(Edge::Start),
            open_start: 0,
            open_is_merged: false,
            requested: false,
        }
    }

    /// Appends context: the tokens of all text since the last hard token or frozen edge are those
    /// of the whole text, whatever the pieces in which it arrived.
    ///
    /// # Errors
    /// As [`Tokenizer::encode_parts`]; nothing is written then.
    pub fn append_parts(&mut self, parts: &[Part<'_>], provenance: Provenance) -> Result<Seam> {
        // Empty text changes nothing, so a request before it may still be answered.
        if parts.iter().all(|part| part.text.is_empty()) {
            return Ok(Seam::clean(SeamKind::Barrier, Vec::new()));
        }
        let (tail, seam, open_is_merged) = self.judge(parts)?;
        self.open_is_merged = open_is_merged;
        self.open.push(parts, provenance);
        self.write_open(tail);
        self.requested = false;
        Ok(seam)
    }

    /// The number of bytes of open text, which is encoded again with the next text.
    #[must_use]
    pub fn open_bytes(&self) -> usize {
        self.open.bytes()
    }

    /// The tokenizer, shared with every fork.
    #[must_use]
    pub fn shared_tokenizer(&self) -> Arc<Tokenizer> {
        Arc::clone(&self.tokenizer)
    }

    /// Appends one text: scaffold under [`AddedMode::Parse`], else content.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`]; nothing is written then.
    pub fn append_text(
        &mut self,
        text: &str,
        mode: AddedMode,
        provenance: Provenance,
    ) -> Result<Seam> {
        let part = self.tokenizer.part(text, mode)?;
        self.append_parts(&[part], provenance)
    }

    /// All ids so far, to send to the engine. Freezes them.
    pub fn request(&mut self) -> &[u32] {
        self.freeze();
        self.requested = true;
        &self.ids
    }

    /// Appends the tokens that the engine sampled, unchanged, with their logprobs.
    ///
    /// # Errors
    /// [`Error::NoRequest`], [`Error::LogprobCount`], [`Error::Logprob`], [`Error::UnknownId`];
    /// nothing is written then.
    pub fn append_sampled(&mut self, ids: &[u32], logprobs: &[f32]) -> Result<Seam> {
        if !self.requested {
            let reason = if self.ids.is_empty() {
                "the trajectory is empty"
            } else if self.turns.last().is_some_and(|turn| turn.end == self.ids.len()) {
                "the last request is already answered"
            } else {
                "text was appended after the last request"
            };
            return Err(Error::NoRequest { reason });
        }
        // `request()` of an empty trajectory is allowed, because a caller may only look at it; but no
        // engine samples from nothing, and a trainer needs a prompt.
        if self.ids.is_empty() {
            return Err(Error::NoRequest { reason: "the request was empty" });
        }
        logprob::check(SampleOf::Turn(self.turns.len()), ids, logprobs)?;
        self.tokenizer.check_ids(ids)?;
        let seam = self.seam_before_sample(ids)?;

        let (start, barrier) = (self.ids.len(), self.barrier);
        self.ids.extend_from_slice(ids);
        self.logprobs.extend_from_slice(logprobs);
        self.provenance.resize(self.ids.len(), Provenance::Sampled as u8);
        self.turns.push(Turn { start, end: self.ids.len() });
        self.requested = false;
        // A sampled id is the token that it names, never unknown text, so a hard id is a barrier here.
        if let Some(last) = ids.iter().rposition(|&id| self.tokenizer.is_hard(id)) {
            self.barrier = start + last + 1;
        }
        self.barriers.push([barrier, self.barrier]);
        self.freeze();
        Ok(seam)
    }

    /// All ids.
    #[must_use]
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// The logprob of each token, in nats; NaN where it was not sampled.
    #[must_use]
    pub fn logprobs(&self) -> &[f32] {
        &self.logprobs
    }

    /// The [`Provenance`] of each token.
    #[must_use]
    pub fn provenance(&self) -> &[u8] {
        &self.provenance
    }

    /// The turns so far.
    #[must_use]
    pub fn turns(&self) -> &[Turn] {
        &self.turns
    }

    /// The row for a trainer: the prompt up to the first sampled token, and the aligned rest up to the
    /// last sampled token. Context after that is left out: it trains nothing, and trainers look at the
    /// last token to see whether a row was cut.
    ///
    /// # Errors
    /// [`Error::NothingSampled`].
    pub fn columns(&self) -> Result<Columns> {
        let sampled = Provenance::Sampled as u8;
        let is_sampled = |&p: &u8| p == sampled;
        let first = self.provenance.iter().position(is_sampled);
        let last = self.provenance.iter().rposition(is_sampled);
        let (Some(start), Some(last)) = (first, last) else {
            return Err(Error::NothingSampled { tokens: self.ids.len() });
        };
        let end = last + 1;
        let zero_if_nan = |&logprob: &f32| if logprob.is_nan() { 0.0 } else { logprob };
        Ok(Columns {
            prompt_ids: self.ids[..start].iter().map(|&id| id.into()).collect(),
            completion_ids: self.ids[start..end].iter().map(|&id| id.into()).collect(),
            logprobs: self.logprobs[start..end].iter().map(zero_if_nan).collect(),
            env_mask: self.provenance[start..end].iter().map(|&p| u8::from(p == sampled)).collect(),
        })
    }

    /// Makes all tokens so far final. Later text continues from their ids, not from their text.
    fn freeze(&mut self) {
        self.open_start = self.ids.len();
        self.open_is_merged = false;
        self.open = OpenText::new(if self.ids.is_empty() {
            Edge::Start
        } else if self.barrier == self.ids.len() {
            Edge::Segment
        } else {
            Edge::Continue
        });
    }

    /// The tokens of the open text with `parts`, the verdict on the seam between the two, and the next
    /// value of `open_is_merged`.
    ///
    /// Two seams are possible. If the open text is empty, `parts` meet the frozen tokens, which never
    /// change: their seam is judged by the canonical tokens. Otherwise `parts` meet open text, whose
    /// tokens are rewritten. Even then the frozen edge has to be judged again if the first open tokens
    /// change: text that joins may merge with frozen tokens where less of it did not.
    fn judge(&self, parts: &[Part<'_>]) -> Result<(Tail, Seam, bool)> {
        let open_ids = &self.ids[self.open_start..];
        let tail = self.open.encode_with_parts(&self.tokenizer, open_ids, parts)?;
        let Tail { kept, ref encoded, boundary, .. } = tail;
        let continues = self.open.edge() == Edge::Continue && !encoded.hard_at(0);
        if continues && boundary == 0 {
            let right = Joined::new(parts.iter().copied());
            let seam = self.seam_after_frozen(&right, encoded.ids.clone())?;
            let merged = !seam.exact;
            return Ok((tail, seam, merged));
        }
        // With nothing open, `parts` begin the conversation or stand behind a hard token: a barrier.
        let mut seam = Seam::between_texts(
            &self.tokenizer,
            &open_ids[kept..],
            &encoded.ids,
            boundary == 0 || encoded.hard_at(boundary),
            || Joined::new(parts.iter().copied()),
        )?;
        let mut merged = self.open_is_merged;
        // If the first open tokens stay (`kept > 0`), their seam with the frozen ones stays as well.
        if continues && !merged && kept == 0 {
            let right = parts.iter().fold(self.open.joined(), |mut right, part| {
                right.push(*part);
                right
            });
            let frozen = self.seam_after_frozen(&right, Vec::new())?;
            merged = !frozen.exact;
            // The caller gets one verdict. A merge with frozen tokens is the one that can't be undone.
            if merged {
                let Seam { kind, exact, canonical_ids, merge, .. } = frozen;
                seam = Seam { kind, exact, canonical_ids, merge, ..seam };
            }
        }
        Ok((tail, seam, merged))
    }

    /// The verdict on the seam between the request and a sample.
    fn seam_before_sample(&self, ids: &[u32]) -> Result<Seam> {
        let first_hard = ids.iter().position(|&id| self.tokenizer.is_hard(id));
        let right = &ids[..first_hard.unwrap_or(ids.len())];
        if right.is_empty() || self.barrier == self.ids.len() {
            return Ok(Seam::clean(SeamKind::Barrier, ids.to_vec()));
        }
        // A sample may be long, and only its text up to the first anchor decides whether the seam is
        // exact. If the seam is not exact, `canonical_ids` needs all of it: then the whole is judged.
        let mut tokens = NEAR_TOKENS;
        while tokens < right.len() {
            let near = self.tokenizer.parts_of_ids(&right[..tokens], false)?;
            let anchored = |near: &Joined<'_>| self.tokenizer.first_anchor(&near.text).is_some();
            if let Some(near) = near.filter(anchored) {
                let seam = self.seam_after_frozen(&near, ids.to_vec())?;
                if seam.exact {
                    return Ok(seam);
                }
                break;
            }
            tokens *= 4;
        }
        match self.tokenizer.parts_of_ids(right, false)? {
            None => Ok(Seam::broken(ids.to_vec())),
            Some(right) => self.seam_after_frozen(&right, ids.to_vec()),
        }
    }

    /// The verdict on the seam between the frozen tokens and `right`, of which `written` are the tokens.
    fn seam_after_frozen(&self, right: &Joined<'_>, written: Vec<u32>) -> Result<Seam> {
        let Some((left, edge)) = self.frozen_tail()? else { return Ok(Seam::broken(written)) };
        Ok(Seam::after_frozen(&self.tokenizer, &left, edge, right, written))
    }

    /// The text of the frozen tokens from its last anchor on, or else since the last hard token;
    /// `None` where it ends inside a character. Without an anchor it continues with no prefix,
    /// because a prefix that was written is already among its bytes.
    fn frozen_tail(&self) -> Result<Option<(Joined<'static>, Edge)>> {
        let frozen = &self.ids[self.barrier..self.open_start];
        let mut tokens = NEAR_TOKENS;
        loop {
            let from = frozen.len().saturating_sub(tokens);
            let text = self.tokenizer.parts_of_ids(&frozen[from..], true)?;
            if let Some(text) = &text {
                if let Some(anchor) = self.tokenizer.last_anchor(&text.text) {
                    return Ok(Some((text.after(anchor).into_owned(), Edge::Interior)));
                }
            }
            if from == 0 {
                return Ok(text.map(|text| (text, Edge::Continue)));
            }
            tokens *= 4;
        }
    }

    /// Replaces the last tokens of the open text by those of `tail`, then freezes the settled ones.
    fn write_open(&mut self, tail: Tail) {
        let kept = self.open_start + tail.kept;
        self.ids.truncate(kept);
        self.logprobs.truncate(kept);
        self.provenance.truncate(kept);
        self.provenance.extend(self.open.provenance_of(&tail.encoded));
        let settled = self.open.settle(&self.tokenizer, &tail);
        self.ids.extend(tail.encoded.ids);
        self.logprobs.resize(self.ids.len(), f32::NAN);
        if let Some(tokens) = settled.to_hard_token {
            self.barrier = self.open_start + tokens;
            self.open_is_merged = false;
        }
        self.open_start += settled.tokens;
    }
}
