//! Offsets at which encoding can restart: the anchors, asked of a tokenizer.

use tokenizers::Model as _;

use super::Tokenizer;
use crate::anchor::Anchors;

impl Tokenizer {
    /// True if text can have anchors.
    pub(crate) fn has_anchors(&self) -> bool {
        self.anchors.is_some()
    }

    /// The last anchor inside `text`, in bytes: encoding restarts there with
    /// [`Edge::Interior`](crate::encode::Edge::Interior).
    pub(crate) fn last_anchor(&self, text: &str) -> Option<usize> {
        self.anchors.as_ref()?.last_in(text, &self.pipeline.model)
    }

    /// The first anchor inside `text`, and the end of the character that follows it, in bytes.
    pub(crate) fn first_anchor(&self, text: &str) -> Option<(usize, usize)> {
        self.anchors.as_ref()?.first_in(text, &self.pipeline.model)
    }

    /// True if added tokens, normalizer and pre-tokenizer allow encoding to restart at byte `at`. The
    /// model may still merge across it, which [`Tokenizer::stay_apart`] decides.
    pub(crate) fn can_restart(&self, text: &str, at: usize) -> bool {
        self.anchors.as_ref().is_some_and(|anchors| anchors.can_restart(text, at))
    }

    /// True if [`Tokenizer::stay_apart`] is enough to restart between two tokens wherever
    /// [`Tokenizer::can_restart`] holds.
    pub(crate) fn certifies(&self) -> bool {
        self.anchors.as_ref().is_some_and(Anchors::certify)
    }

    /// True if the model leaves two tokens of one word as they are when they meet. Then no merge
    /// crosses the offset between them: up to the first merge that does, both sides are merged as on
    /// their own, and that merge would also happen between the two tokens alone.
    pub(crate) fn stay_apart(&self, left: u32, right: u32) -> bool {
        let model = &self.pipeline.model;
        let unknown = self.unk_id.and_then(|id| model.id_to_token(id));
        // An unknown token of a single character is merged as that character.
        let unknown = unknown.as_deref().filter(|unknown| unknown.chars().nth(1).is_some());
        let text = |id: u32| {
            let text =
                model.id_to_token(id).filter(|_| self.unk_id != Some(id) && !self.is_added(id));
            // An unknown token and a byte token do not spell the text that they stand for, and neither
            // does a token that is merged from them.
            text.filter(|text| !text.contains("<0x") && !unknown.is_some_and(|u| text.contains(u)))
        };
        let (Some(a), Some(b)) = (text(left), text(right)) else { return false };
        self.fast.as_ref().and_then(|fast| fast.stay_apart(left, right)).unwrap_or_else(|| {
            let joined = model.hf().tokenize(&[a, b].concat()).unwrap_or_default();
            joined.iter().map(|token| token.id).eq([left, right])
        })
    }
}
