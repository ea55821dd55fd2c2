//! Where text can be taken up again: the anchors, asked of a tokenizer.

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
}
