//! A tokenizer that answers exactly, one segment at a time.
//!
//! Invariant: encoding text that is all scaffold, with [`Edge::Start`], gives the tokens of
//! `tokenizers` without special tokens added; content never becomes a control token.

mod added;
mod bytes;
mod hf;
mod load;
mod profile;
mod spelled;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use rustc_hash::{FxHashMap, FxHashSet};

pub use added::{AddedToken, Overrides};
pub use profile::Profile;
pub use spelled::Spelled;

use crate::error::{Error, Result};
use crate::parts::{Joined, Part, PartKind};
use crate::seam::{Seam, joins};
use crate::segment::{Cutter, cut_joined, hard_tokens};
use bytes::{Spelling, byte_table};
use hf::{Pipeline, Segment};

/// What stands to the left of a piece of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edge {
    /// Nothing: it begins the conversation.
    Start,
    /// An added token: a new segment, but not the first.
    Segment,
    /// Tokens of the same segment that must not change: no prefix of any kind.
    Continue,
}

/// What becomes of control tokens that a text spells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddedMode {
    /// They become control tokens: the text is scaffold.
    Parse,
    /// They stay text: the text is content.
    Text,
    /// They are an error.
    Raise,
}

/// Tokens with what a trajectory needs to know about them.
#[derive(Debug, Default)]
pub(crate) struct Encoded {
    pub ids: Vec<u32>,
    /// The bytes of the joined text that each token came from; `0..0` where it has one part only.
    pub spans: Vec<Range<usize>>,
    /// The hard tokens that were cut out, in order.
    pub hard: Vec<HardCut>,
}

/// A hard token in a joined text: a place that nothing around it can change.
#[derive(Debug, Clone)]
pub(crate) struct HardCut {
    pub bytes: Range<usize>,
    /// How many tokens the text has up to and with this one.
    pub tokens_before_end: usize,
}

impl Encoded {
    fn push(&mut self, id: u32, span: Range<usize>) {
        self.ids.push(id);
        self.spans.push(span);
    }

    /// Whether a hard token begins at this byte.
    pub fn hard_at(&self, byte: usize) -> bool {
        self.hard.iter().any(|cut| cut.bytes.start == byte)
    }
}

/// A `tokenizer.json`, ready for exact assembly.
pub struct Tokenizer {
    pipeline: Pipeline,
    raw: Cutter,
    normalized: Option<Cutter>,
    /// For each token of `raw`: hard or not.
    hard: Vec<bool>,
    hard_ids: FxHashSet<u32>,
    control: FxHashMap<u32, String>,
    mintable: FxHashMap<u32, String>,
    unk_id: Option<u32>,
    added: Vec<AddedToken>,
    vocab_size: usize,
    spelling: Spelling,
    bytes: OnceLock<Vec<Option<Box<[u8]>>>>,
    profile: Profile,
}

impl Tokenizer {
    /// Reads the text of a `tokenizer.json`.
    ///
    /// # Errors
    /// [`Error::Load`] where it is not one, [`Error::NotDeterministic`] where it draws at random.
    pub fn from_json(json: &str, overrides: &Overrides) -> Result<Self> {
        let loaded = load::load(json, overrides)?;
        let (normalized, raw): (Vec<_>, Vec<_>) =
            loaded.added.iter().cloned().partition(|token| token.normalized);
        let hard = hard_tokens(&raw);
        let hard_ids =
            raw.iter().zip(&hard).filter(|(_, hard)| **hard).map(|(token, _)| token.id).collect();
        let raw_patterns: Vec<String> = raw.iter().map(|token| token.content.clone()).collect();
        let normalized_patterns: Vec<String> =
            normalized.iter().map(|token| loaded.normalized_patterns[&token.id].clone()).collect();
        let vocab_size = profile::vocab_size(&loaded);
        let mintable = profile::mintable(&loaded);
        let control = loaded
            .added
            .iter()
            .filter(|token| token.control)
            .map(|token| (token.id, token.content.clone()))
            .collect();
        let unk_id = profile::unk_id(&loaded);
        let profile = Profile::new(&loaded, &raw, &hard, &mintable, vocab_size);
        Ok(Self {
            spelling: Spelling::detect(
                &loaded.settings,
                [&loaded.normalizer, &loaded.pre_tokenizer, &loaded.decoder],
            ),
            raw: Cutter::new(raw, &raw_patterns),
            normalized: (!normalized.is_empty())
                .then(|| Cutter::new(normalized, &normalized_patterns)),
            pipeline: loaded.pipeline,
            hard,
            hard_ids,
            control,
            mintable,
            unk_id,
            added: loaded.added,
            vocab_size,
            bytes: OnceLock::new(),
            profile,
        })
    }

    /// The tokens of `text`, which begins the conversation. Never adds BOS or EOS.
    ///
    /// # Errors
    /// [`Error::ControlToken`] with [`AddedMode::Raise`]; [`Error::Encode`] where the model cannot
    /// write the text.
    pub fn encode(&self, text: &str, mode: AddedMode) -> Result<Vec<u32>> {
        self.encode_parts(&[self.part(text, mode)?], Edge::Start)
    }

    /// The tokens of the joined text of `parts`; only scaffold becomes control tokens.
    ///
    /// # Errors
    /// [`Error::Encode`] or [`Error::CannotAvoid`] where the model cannot write the text.
    pub fn encode_parts(&self, parts: &[Part<'_>], edge: Edge) -> Result<Vec<u32>> {
        Ok(self.encode_joined(&Joined::new(parts.iter().copied()), edge)?.ids)
    }

    /// The verdict on the seam between two texts; both and their join are encoded.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn seam(&self, a: &str, b: &str, mode: AddedMode) -> Result<Seam> {
        self.part(&[a, b].concat(), mode)?;
        let (a_part, b_part) = (self.part(a, mode)?, self.part(b, mode)?);
        let left = self.encode_joined(&Joined::new([a_part]), Edge::Start)?;
        let joined = self.encode_joined(&Joined::new([a_part, b_part]), Edge::Start)?;
        let ends_hard = left.hard.last().is_some_and(|cut| cut.bytes.end == a.len());
        let barrier = ends_hard || joined.hard_at(a.len()) || a.is_empty() || b.is_empty();
        Ok(Seam::between_texts(&left.ids, &joined.ids, barrier))
    }

    /// The literal equation `tok(a+b) == tok(a)+tok(b)` on three independent encodes.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn is_additive(&self, a: &str, b: &str, mode: AddedMode) -> Result<bool> {
        let (left, right) = (self.encode(a, mode)?, self.encode(b, mode)?);
        Ok(joins(&left, &right, &self.encode(&[a, b].concat(), mode)?))
    }

    /// The bytes of the ids, by table.
    ///
    /// # Errors
    /// [`Error::UnknownId`] for an id outside the vocabulary.
    pub fn decode_bytes(&self, ids: &[u32]) -> Result<Vec<u8>> {
        let table = self.byte_table();
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        for (position, &id) in ids.iter().enumerate() {
            let piece = table.get(id as usize).and_then(Option::as_deref);
            bytes.extend_from_slice(piece.ok_or(Error::UnknownId {
                position,
                id: id.into(),
                vocab_size: self.vocab_size,
            })?);
        }
        Ok(bytes)
    }

    /// Refuses ids that the tokenizer does not have.
    ///
    /// # Errors
    /// [`Error::UnknownId`] for the first one.
    pub fn check_ids(&self, ids: &[u32]) -> Result<()> {
        let table = self.byte_table();
        let known = |&id: &u32| table.get(id as usize).is_some_and(Option::is_some);
        match ids.iter().position(|id| !known(id)) {
            None => Ok(()),
            Some(position) => Err(Error::UnknownId {
                position,
                id: ids[position].into(),
                vocab_size: self.vocab_size,
            }),
        }
    }

    /// The id of a token by its text: an added token or an entry of the vocabulary.
    #[must_use]
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        use tokenizers::Model;
        self.added
            .iter()
            .find(|added| added.content == token)
            .map(|added| added.id)
            .or_else(|| self.pipeline.model.token_to_id(token))
    }

    /// The added tokens, by id.
    #[must_use]
    pub fn added_tokens(&self) -> &[AddedToken] {
        &self.added
    }

    /// Whether the token can never be changed by the text around it.
    #[must_use]
    pub fn is_hard(&self, id: u32) -> bool {
        self.hard_ids.contains(&id)
    }

    /// The text of ids as parts: added tokens are scaffold, all else is content. Bytes that are
    /// not whole characters end it: with `suffix` the text after the last of them is given,
    /// otherwise the text before the first. `None` where that is empty.
    pub(crate) fn parts_of_ids(
        &self,
        ids: &[u32],
        suffix: bool,
    ) -> Result<Option<Vec<(PartKind, String)>>> {
        let mut runs: Vec<&[u32]> =
            ids.chunk_by(|a, b| self.is_added(*a) == self.is_added(*b)).collect();
        if suffix {
            runs.reverse();
        }
        let mut parts = Vec::with_capacity(runs.len());
        for run in runs {
            let kind = if self.is_added(run[0]) { PartKind::Scaffold } else { PartKind::Content };
            let bytes = self.decode_bytes(run)?;
            let text = if suffix { valid_suffix(&bytes) } else { valid_prefix(&bytes) };
            let whole = text.len() == bytes.len();
            parts.push((kind, text.to_owned()));
            if !whole {
                break;
            }
        }
        if suffix {
            parts.reverse();
        }
        let empty = parts.iter().all(|(_, text)| text.is_empty());
        Ok((!empty).then_some(parts))
    }

    fn is_added(&self, id: u32) -> bool {
        self.added.binary_search_by_key(&id, |token| token.id).is_ok()
    }

    /// What is known without encoding anything.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// How many ids there are, added tokens included.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    pub(crate) fn encode_joined(&self, joined: &Joined, edge: Edge) -> Result<Encoded> {
        let encode = AssertUnwindSafe(|| self.encode_segments(joined, edge));
        // A tokenizer that contradicts itself makes `tokenizers` panic. That costs this text.
        catch_unwind(encode).unwrap_or_else(|_| {
            Err(Error::Encode {
                text: joined.text.chars().take(60).collect(),
                reason: "the tokenizers crate panicked; is the file consistent?".to_owned(),
            })
        })
    }

    fn encode_segments(&self, joined: &Joined, edge: Edge) -> Result<Encoded> {
        let cuts = cut_joined(&self.raw, joined);
        let mut out = Encoded::default();
        let mut from = 0;
        for cut in cuts {
            self.encode_segment(joined, from..cut.range.start, edge, &mut out)?;
            out.push(self.raw.token(cut.token).id, cut.range.clone());
            from = cut.range.end;
            if self.hard[cut.token] {
                let tokens_before_end = out.ids.len();
                out.hard.push(HardCut { bytes: cut.range, tokens_before_end });
            }
        }
        self.encode_segment(joined, from..joined.text.len(), edge, &mut out)?;
        Ok(out)
    }

    fn encode_segment(
        &self,
        joined: &Joined,
        range: Range<usize>,
        edge: Edge,
        out: &mut Encoded,
    ) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let segment = Segment {
            text: &joined.text[range.clone()],
            edge: if range.start == 0 { edge } else { Edge::Segment },
            offset: range.start,
            normalized: self.normalized.as_ref(),
            mintable: &self.mintable,
            unk_id: self.unk_id,
            joined,
        };
        self.pipeline.encode(&segment, out)
    }

    /// What a text is under a mode: scaffold or content.
    ///
    /// # Errors
    /// [`Error::ControlToken`] with [`AddedMode::Raise`], where the text spells one.
    pub(crate) fn part<'a>(&self, text: &'a str, mode: AddedMode) -> Result<Part<'a>> {
        match mode {
            AddedMode::Parse => Ok(Part::scaffold(text)),
            AddedMode::Text => Ok(Part::content(text)),
            AddedMode::Raise => {
                self.refuse_control_tokens(text)?;
                Ok(Part::content(text))
            }
        }
    }

    fn byte_table(&self) -> &[Option<Box<[u8]>>] {
        self.bytes.get_or_init(|| byte_table(&self.spelling, &self.pipeline.model, &self.added))
    }
}

/// The longest run of whole characters at the start.
fn valid_prefix(bytes: &[u8]) -> &str {
    bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid())
}

/// The longest run of whole characters at the end.
fn valid_suffix(bytes: &[u8]) -> &str {
    let last = bytes.utf8_chunks().last().filter(|chunk| chunk.invalid().is_empty());
    last.map_or("", |chunk| chunk.valid())
}
