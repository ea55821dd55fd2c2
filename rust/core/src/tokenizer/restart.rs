//! Where text can be taken up again: the anchors, asked of a tokenizer.

use tokenizers::Model as _;

use super::Tokenizer;
use crate::anchor::Anchors;

impl Tokenizer {
    /// Whether there are places where text can be taken up again.
    pub(crate) fn has_anchors(&self) -> bool {
        self.anchors.is_some()
    }

    /// The last place inside `text` where it can be taken up again with
    /// [`Edge::Interior`](crate::encode::Edge::Interior).
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

    /// Whether tokens that the model leaves apart when they meet stay, wherever text can be taken up
    /// again between them.
    pub(crate) fn certifies(&self) -> bool {
        self.anchors.as_ref().is_some_and(Anchors::certify)
    }

    /// Whether the model leaves two tokens of one word as they are when they meet. Then no merge
    /// crosses the place between them: up to the first that does, both sides are as on their own,
    /// and it would also happen between the two.
    pub(crate) fn stay_apart(&self, left: u32, right: u32) -> bool {
        let model = &self.pipeline.model;
        let unknown = self.unk_id.and_then(|id| model.id_to_token(id));
        // One of a single character is merged as that character.
        let unknown = unknown.as_deref().filter(|unknown| unknown.chars().nth(1).is_some());
        let text = |id: u32| {
            let text =
                model.id_to_token(id).filter(|_| self.unk_id != Some(id) && !self.is_added(id));
            // An unknown token and a byte do not spell the text that they stand for, nor does what
            // is merged from them.
            text.filter(|text| !text.contains("<0x") && !unknown.is_some_and(|u| text.contains(u)))
        };
        let (Some(a), Some(b)) = (text(left), text(right)) else { return false };
        self.fast.as_ref().and_then(|fast| fast.stay_apart(left, right)).unwrap_or_else(|| {
            let joined = model.hf().tokenize(&[a, b].concat()).unwrap_or_default();
            joined.iter().map(|token| token.id).eq([left, right])
        })
    }
}
