//! Building a tokenizer from its file.

use once_cell::race::OnceBox;
use rustc_hash::FxHashSet;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::{NormalizedString, Normalizer};

use super::Tokenizer;
use super::bytes::Spelling;
use super::profile::{self, Profile};
use crate::added_tokens::{Cutter, hard_tokens};
use crate::anchor::{Anchors, Reach};
use crate::encode::{Edge, Fast, Pipeline, normalizers, pre_tokenizers};
use crate::error::{Error, Result};
use crate::file::{AddedToken, Model, Overrides, caught, guarded, load, unreadable};
use crate::parts::{Joined, Part};

impl Tokenizer {
    /// Reads the text of a `tokenizer.json`.
    ///
    /// # Errors
    /// [`Error::Load`] where it is not one, [`Error::NotDeterministic`] where it draws at random.
    pub fn from_json(json: &str, overrides: &Overrides) -> Result<Self> {
        // The guards further in name the part of the file; this one catches all other panics.
        match caught(|| Self::build(json, overrides)) {
            Ok(built) => built,
            Err(panic) => Err(unreadable(format!("its parts do not fit together: {panic}"))),
        }
    }

    fn build(json: &str, overrides: &Overrides) -> Result<Self> {
        let mut loaded = load(json, overrides)?;
        let (normalized, raw): (Vec<_>, Vec<_>) =
            loaded.added.iter().cloned().partition(|token| token.normalized);
        let hard = hard_tokens(&raw);
        let hard_ids: FxHashSet<u32> =
            raw.iter().zip(&hard).filter(|(_, hard)| **hard).map(|(token, _)| token.id).collect();
        let lowest = hard_ids.iter().min().copied().unwrap_or(u32::MAX);
        let hard_range = lowest..=hard_ids.iter().max().copied().unwrap_or(0);
        let raw_patterns: Vec<String> = raw.iter().map(|token| token.content.clone()).collect();
        let normalizers = normalizers(&loaded.normalizer)?;
        let pre_tokenizers = pre_tokenizers(&loaded.pre_tokenizer)?;
        let normalized_patterns = patterns_once_normalized(&normalized, &normalizers)?;
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
        let fast = Fast::new(&loaded);
        if fast.is_none() {
            // All text is left to `tokenizers`, whose model is made here and not with the first text.
            loaded.model.forget_parts();
        }
        let mut tokenizer = Self {
            spelling: Spelling::detect(
                &loaded.settings,
                [&loaded.normalizer, &loaded.pre_tokenizer, &loaded.decoder],
            ),
            raw: Cutter::new(raw, &raw_patterns),
            normalized: (!normalized.is_empty())
                .then(|| Cutter::new(normalized, &normalized_patterns)),
            fast,
            pipeline: Pipeline { normalizers, pre_tokenizers, model: loaded.model },
            hard,
            hard_ids,
            hard_range,
            control,
            mintable,
            unk_id,
            added: loaded.added,
            vocab_size,
            bytes: OnceBox::new(),
            anchors: anchors.ok(),
            profile,
        };
        tokenizer.compare_encoders()?;
        Ok(tokenizer)
    }

    /// Leaves all text to the general encoder where the fast one differs from it.
    pub(super) fn compare_encoders(&mut self) -> Result<()> {
        let Some(fast) = &self.fast else { return Ok(()) };
        let text = fast.probe();
        self.profile.encoder = "fast";
        // Scaffold may become anything, so there is always a way to write it.
        let probe = Joined::new([Part::scaffold(&text)]);
        // Making the whole model of `tokenizers` takes three times as long as all else here, so the
        // first comparison is with a model that knows only the entries that the probe can spell.
        let seen = self.as_the_model_sees(&text);
        let narrowed = seen.and_then(|seen| self.pipeline.model.narrowed(&seen));
        let written = narrowed.map(|narrowed| self.written_by_both(Some(narrowed), &probe));
        if written.is_some_and(|written| written.is_ok_and(|[fast, general]| fast == general)) {
            return Ok(());
        }
        // They differ, or there is no smaller model: the whole one decides.
        let whole = self.pipeline.model.uncached();
        let [ids, expected] = self.written_by_both(whole, &probe)?;
        if ids == expected {
            return Ok(());
        }
        self.fast = None;
        self.profile.encoder = "hf";
        let first = ids.iter().zip(&expected).take_while(|(a, b)| a == b).count();
        let spelled = self.decode_bytes(&expected[first..expected.len().min(first + 3)])?;
        self.profile.demoted_because =
            Some(format!("it differs from tokenizers at {:?}", String::from_utf8_lossy(&spelled)));
        self.pipeline.model.forget_parts();
        Ok(())
    }

    /// The text as the fast encoder writes it and as the general one does, which both use `model`,
    /// or the tokenizer's own.
    fn written_by_both(&mut self, model: Option<Model>, text: &Joined) -> Result<[Vec<u32>; 2]> {
        let own = model.map(|model| std::mem::replace(&mut self.pipeline.model, model));
        let by_fast = self.encode_joined(text, Edge::Start);
        let fast = self.fast.take();
        let by_general = self.encode_joined(text, Edge::Start);
        self.fast = fast;
        if let Some(own) = own {
            self.pipeline.model = own;
        }
        Ok([by_fast?.ids, by_general?.ids])
    }

    /// A text that begins the conversation as the model sees it, before it is cut into words.
    fn as_the_model_sees(&self, text: &str) -> Option<String> {
        Some(self.spelling.spelled(&self.normalize(text, Edge::Start)?))
    }
}

/// The patterns of added tokens with `normalized=true`: their content, normalized as at the start.
fn patterns_once_normalized(
    tokens: &[AddedToken],
    normalizers: &[Option<NormalizerWrapper>; 4],
) -> Result<Vec<String>> {
    let pattern = |token: &AddedToken| {
        let mut pattern = NormalizedString::from(token.content.as_str());
        if let Some(normalizer) = &normalizers[Edge::Start as usize] {
            guarded("normalizer", || normalizer.normalize(&mut pattern))?;
        }
        if pattern.get().is_empty() {
            return Err(Error::Load {
                reason: format!("the added token {:?} is empty once normalized", token.content),
                hint: "set its \"normalized\" to false: an empty token would match between all characters",
            });
        }
        Ok(pattern.get().to_owned())
    };
    tokens.iter().map(pattern).collect()
}
