//! A tokenizer that answers exactly, one segment at a time.
//!
//! Invariant: encoding text that is all scaffold, with [`Edge::Start`], gives the tokens of
//! `tokenizers` without special tokens added; content never becomes a control token.

mod added;
mod bytes;
mod edge;
mod encoded;
mod fast;
mod hf;
mod load;
mod profile;
mod spelled;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use rustc_hash::{FxHashMap, FxHashSet};

pub use added::{AddedToken, Overrides};
pub(crate) use bytes::byte_chars;
pub use edge::Edge;
pub(crate) use edge::{kind, stages};
pub(crate) use encoded::{Encoded, HardCut};
pub(crate) use load::{Loaded, ModelSettings};
pub use profile::Profile;
pub use spelled::Spelled;

use crate::anchor::{Anchors, Reach};
use crate::error::{Error, Result};
use crate::parts::{Joined, Part};
use crate::segment::{Cutter, cut_joined, hard_tokens};
use bytes::{ByteTable, Spelling, is_own};
use fast::Fast;
use hf::{Pipeline, Segment};

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

/// A `tokenizer.json`, ready for exact assembly.
pub struct Tokenizer {
    pipeline: Pipeline,
    fast: Option<Fast>,
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
    bytes: OnceLock<ByteTable>,
    /// Where text can be taken up again; `None` where no place is known.
    anchors: Option<Anchors>,
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
        let anchors = Anchors::new(
            &loaded,
            Reach::new(&raw, &raw_patterns),
            Reach::new(&normalized, &normalized_patterns),
        );
        let why_opaque = anchors.as_ref().err().cloned();
        let profile = Profile::new(&loaded, &raw, &hard, &mintable, vocab_size, why_opaque);
        let mut tokenizer = Self {
            spelling: Spelling::detect(
                &loaded.settings,
                [&loaded.normalizer, &loaded.pre_tokenizer, &loaded.decoder],
            ),
            raw: Cutter::new(raw, &raw_patterns),
            normalized: (!normalized.is_empty())
                .then(|| Cutter::new(normalized, &normalized_patterns)),
            pipeline: loaded.pipeline,
            fast: loaded.fast,
            hard,
            hard_ids,
            control,
            mintable,
            unk_id,
            added: loaded.added,
            vocab_size,
            bytes: OnceLock::new(),
            anchors: anchors.ok(),
            profile,
        };
        tokenizer.compare_encoders()?;
        Ok(tokenizer)
    }

    /// Leaves all text to the general encoder where the other one differs from it.
    fn compare_encoders(&mut self) -> Result<()> {
        let Some(fast) = self.fast.take() else { return Ok(()) };
        // Scaffold may become anything, so there is always a way to write it.
        let probe = Joined::new([Part::scaffold(&fast.probe())]);
        let expected = self.encode_joined(&probe, Edge::Start)?.ids;
        self.fast = Some(fast);
        let ids = self.encode_joined(&probe, Edge::Start)?.ids;
        if ids == expected {
            self.profile.encoder = "fast";
        } else {
            let first = ids.iter().zip(&expected).take_while(|(a, b)| a == b).count();
            let spelled = self.decode_bytes(&expected[first..expected.len().min(first + 3)])?;
            self.profile.demoted_because = Some(format!(
                "it differs from tokenizers at {:?}",
                String::from_utf8_lossy(&spelled)
            ));
            self.profile.encoder = "hf";
            self.fast = None;
        }
        Ok(())
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

    /// The bytes of the ids, by table.
    ///
    /// # Errors
    /// [`Error::UnknownId`] for an id outside the vocabulary.
    pub fn decode_bytes(&self, ids: &[u32]) -> Result<Vec<u8>> {
        let table = self.byte_table();
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        for (position, &id) in ids.iter().enumerate() {
            bytes.extend_from_slice(table.get(id).ok_or(Error::UnknownId {
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
        match ids.iter().position(|&id| table.get(id).is_none()) {
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

    /// The text of ids: added tokens are scaffold, all else is content. Bytes that are not whole
    /// characters end it: with `suffix` the text after the last of them is given, otherwise the
    /// text before the first. `None` where that is empty.
    pub(crate) fn parts_of_ids(&self, ids: &[u32], suffix: bool) -> Result<Option<Joined>> {
        let mut runs: Vec<&[u32]> =
            ids.chunk_by(|a, b| self.is_added(*a) == self.is_added(*b)).collect();
        if suffix {
            runs.reverse();
        }
        let mut parts = Vec::with_capacity(runs.len());
        for run in runs {
            let bytes = self.decode_bytes(run)?;
            let text = if suffix { valid_suffix(&bytes) } else { valid_prefix(&bytes) };
            let whole = text.len() == bytes.len();
            parts.push((self.is_added(run[0]), text.to_owned()));
            if !whole {
                break;
            }
        }
        if suffix {
            parts.reverse();
        }
        let joined =
            Joined::new(parts.iter().map(|(added, text)| {
                if *added { Part::scaffold(text) } else { Part::content(text) }
            }));
        Ok((!joined.text.is_empty()).then_some(joined))
    }

    /// Whether the id is that of an added token, and of nothing else.
    fn is_added(&self, id: u32) -> bool {
        let found = self.added.binary_search_by_key(&id, |token| token.id);
        found.is_ok_and(|index| !is_own(&self.added[index], &self.pipeline.model))
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

    /// Whether there are places where text can be taken up again.
    pub(crate) fn has_anchors(&self) -> bool {
        self.anchors.is_some()
    }

    /// The last place inside `text` where it can be taken up again with [`Edge::Interior`].
    pub(crate) fn last_anchor(&self, text: &str) -> Option<usize> {
        self.anchors.as_ref()?.last_in(text, &self.pipeline.model)
    }

    /// The first such place, and the end of the character that follows.
    pub(crate) fn first_anchor(&self, text: &str) -> Option<(usize, usize)> {
        self.anchors.as_ref()?.first_in(text, &self.pipeline.model)
    }

    /// Whether the text can be taken up again at byte `at` as far as added tokens, normalizer and
    /// pre-tokenizer go. Where the model may merge across it, [`Tokenizer::stay_apart`] decides.
    pub(crate) fn can_restart(&self, text: &str, at: usize) -> bool {
        self.anchors.as_ref().is_some_and(|anchors| anchors.can_restart(text, at))
    }

    /// Whether the model leaves two tokens of one word as they are when they meet. Then no merge
    /// crosses the place between them: up to the first that does, both sides are as on their own,
    /// and it would also happen between the two.
    pub(crate) fn stay_apart(&self, left: u32, right: u32) -> bool {
        use tokenizers::Model;
        let model = &self.pipeline.model;
        let text = |id: u32| {
            // An unknown token and a byte do not spell the text that they stand for.
            let text =
                model.id_to_token(id).filter(|_| self.unk_id != Some(id) && !self.is_added(id));
            text.filter(|text| !(text.len() == 6 && text.starts_with("<0x")))
        };
        let certified = self.anchors.as_ref().is_some_and(Anchors::certify);
        let (true, Some(a), Some(b)) = (certified, text(left), text(right)) else { return false };
        let joined = model.tokenize(&(a + &b)).unwrap_or_default();
        joined.iter().map(|token| token.id).eq([left, right])
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
        let mut out = Encoded { with_spans: joined.with_spans, ..Encoded::default() };
        // About what text has; what is too much goes with the result.
        out.ids.reserve(joined.text.len() / 3);
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
        if self.fast.as_ref().is_some_and(|fast| fast.encode(&segment, out)) {
            return Ok(());
        }
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

    fn byte_table(&self) -> &ByteTable {
        self.bytes.get_or_init(|| ByteTable::new(&self.spelling, &self.pipeline.model, &self.added))
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
