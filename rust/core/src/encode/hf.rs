//! The general encoder: the `tokenizers` crate's own normalizer, pre-tokenizer and model, run on
//! one segment at a time. It is the oracle, so nothing here may differ from it.

use std::ops::Range;

use tokenizers::models::ModelWrapper;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::tokenizer::normalizer::Range as Span;
use tokenizers::{Model as _, NormalizedString, Normalizer};

use super::edge::{Edge, EdgePreTokenizer};
use super::encoded::Encoded;
use super::segment::Segment;
use crate::error::{Error, Result};
use crate::file::{Model, caught};

/// The three stages, the first two once for each [`Edge`].
pub(crate) struct Pipeline {
    pub normalizers: [Option<NormalizerWrapper>; 4],
    pub pre_tokenizers: [EdgePreTokenizer; 4],
    pub model: Model,
}

impl Pipeline {
    /// Encodes one segment that holds no added token with `normalized=false`.
    pub fn encode_segment(&self, segment: &Segment<'_>, out: &mut Encoded) -> Result<()> {
        let mut normalized = NormalizedString::from(segment.text);
        if let Some(normalizer) = &self.normalizers[segment.edge as usize] {
            run("normalizer", segment.text, || normalizer.normalize(&mut normalized))?;
        }
        let Some(cutter) = segment.normalized else {
            // Sliced although it is the whole: `Metaspace` "first" looks at where a slice begins
            // in the original, which leaves out text that a normalizer removed before it.
            let whole = 0..normalized.get().len();
            return self.encode_normalized(&normalized, whole, segment, out);
        };
        let cuts = cutter.cut(normalized.get(), segment.joined.any_scaffold(), |range| {
            segment
                .run_around_normalized(&normalized, range)
                .filter(|_| self.is_of_scaffold(segment, &normalized, range))
        });
        let mut from = 0;
        for cut in cuts {
            self.encode_normalized(&normalized, from..cut.range.start, segment, out)?;
            let original = normalized
                .convert_offsets(Span::Normalized(cut.range.clone()))
                .unwrap_or(0..segment.text.len());
            let token = cutter.token(cut.token);
            let range = segment.offset + original.start..segment.offset + original.end;
            out.added.push(range.clone());
            out.push(token.id, range);
            from = cut.range.end;
        }
        self.encode_normalized(&normalized, from..normalized.get().len(), segment, out)
    }

    /// True if a range of the normalized text, which aligns with scaffold, owes nothing to content
    /// beside it that a normalizer composed, replaced or removed together with it. That holds if all
    /// original text between the range's neighbours is scaffold, or if the scaffold in it alone
    /// normalizes to the same.
    ///
    /// Alignments alone would let content take part in a control token: of scaffold `e` and content
    /// U+0301 NFC makes `é`, which `tokenizers` aligns with the `e` alone.
    fn is_of_scaffold(
        &self,
        segment: &Segment<'_>,
        normalized: &NormalizedString,
        range: &Range<usize>,
    ) -> bool {
        let original = |part: Range<usize>| normalized.convert_offsets(Span::Normalized(part));
        let text = normalized.get();
        let before = text[..range.start].chars().next_back().map_or(0, char::len_utf8);
        let after = text[range.end..].chars().next().map_or(0, char::len_utf8);
        let Some(own) = original(range.clone()) else { return false };
        let start = match before {
            0 => 0,
            _ => original(range.start - before..range.start).map_or(own.start, |r| r.end),
        };
        let end = match after {
            0 => segment.text.len(),
            _ => original(range.end..range.end + after).map_or(own.end, |r| r.start),
        };
        let at = |byte: usize| segment.offset + byte;
        let (start, end) = (start.min(own.start), end.max(own.end));
        if segment.joined.run_around(&(at(start)..at(end))).is_some() {
            return true;
        }
        let Some(run) = segment.joined.run_around(&(at(own.start)..at(own.end))) else {
            return false;
        };
        let source = at(start).max(run.start)..at(end).min(run.end);
        [Edge::Segment, Edge::Interior].into_iter().any(|edge| {
            let mut alone = NormalizedString::from(&segment.joined.text[source.clone()]);
            let stage = self.normalizers[edge as usize].as_ref();
            stage.is_none_or(|stage| stage.normalize(&mut alone).is_ok())
                && alone.get() == &text[range.clone()]
        })
    }

    /// Encodes a range of the normalized text that lies between added tokens.
    fn encode_normalized(
        &self,
        normalized: &NormalizedString,
        range: Range<usize>,
        segment: &Segment<'_>,
        out: &mut Encoded,
    ) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let begins = range.start == 0;
        let slice = normalized.slice(Span::Normalized(range)).expect("cuts fall on characters");
        // A later slice stands behind an added token.
        let edge = if begins { segment.edge } else { Edge::Segment };
        let mut failed = None;
        // `split` has no way to return an error of its callback, so the first one is kept.
        let mut encode = |piece: NormalizedString| {
            if failed.is_none() {
                failed = self.encode_piece(&piece, segment, out).err();
            }
        };
        let stage = &self.pre_tokenizers[edge as usize];
        run("pre-tokenizer", segment.text, || stage.split(slice, &mut encode))?;
        failed.map_or(Ok(()), Err)
    }

    /// Encodes a pre-token.
    fn encode_piece(
        &self,
        piece: &NormalizedString,
        segment: &Segment<'_>,
        out: &mut Encoded,
    ) -> Result<()> {
        let text = piece.get();
        let base = segment.offset + piece.offsets_original().0;
        let original = |range: Range<usize>| {
            piece
                .convert_offsets(Span::Normalized(range.clone()))
                .map_or(base + range.start..base + range.end, |r| base + r.start..base + r.end)
        };
        for (id, range) in self.tokens_of(text)? {
            if segment.mints(id, text.get(range.clone()).unwrap_or_default()) {
                let whole = original(range.clone());
                if segment.joined.run_around(&whole).is_none() {
                    if !(text.is_char_boundary(range.start) && text.is_char_boundary(range.end)) {
                        return Err(segment.cannot_avoid(id, text));
                    }
                    self.encode_minting(text, range, &original, segment, out)?;
                    continue;
                }
            }
            let whole = if out.with_spans { original(range) } else { 0..0 };
            out.push(id, whole);
        }
        Ok(())
    }

    /// The model's tokens of a word, and the bytes of the word that each stands for.
    fn tokens_of(&self, word: &str) -> Result<Vec<(u32, Range<usize>)>> {
        let tokens = run("model", word, || self.model.hf().tokenize(word))?;
        let covered = tokens.last().map_or(0, |token| token.offsets.1);
        if covered == word.len() {
            return Ok(tokens.into_iter().map(|t| (t.id, t.offsets.0..t.offsets.1)).collect());
        }
        // The offsets of a model that drops characters count as if those had not been there.
        let kept = self.kept_bytes(word);
        let range = |(start, end): (usize, usize)| {
            if kept.len() == covered { kept[start]..kept[end - 1] + 1 } else { 0..word.len() }
        };
        Ok(tokens.into_iter().map(|token| (token.id, range(token.offsets))).collect())
    }

    /// The bytes of a word, without those of characters that BPE drops: it has neither them, nor
    /// bytes for them, nor an unknown token.
    fn kept_bytes(&self, word: &str) -> Vec<usize> {
        let ModelWrapper::BPE(bpe) = self.model.hf() else { return (0..word.len()).collect() };
        let mark = |mark: &Option<String>| mark.clone().unwrap_or_default();
        let (prefix, suffix) =
            (mark(&bpe.continuing_subword_prefix), mark(&bpe.end_of_word_suffix));
        let has = |text: &str| bpe.token_to_id(text).is_some();
        let is_kept = |start: usize, end: usize| {
            let before = if start > 0 { prefix.as_str() } else { "" };
            let after = if end == word.len() { suffix.as_str() } else { "" };
            let symbol = format!("{before}{}{after}", &word[start..end]);
            let mut bytes = symbol.bytes();
            has(&symbol) || (bpe.byte_fallback && bytes.all(|byte| has(&format!("<0x{byte:02X}>"))))
        };
        let spans = word.char_indices().map(|(start, c)| (start, start + c.len_utf8()));
        spans
            .filter(|&(start, end)| is_kept(start, end))
            .flat_map(|(start, end)| start..end)
            .collect()
    }

    /// Encodes a range of a piece for which the model would write a control token: its first character
    /// and the rest separately, again and again until no control token comes out.
    fn encode_minting(
        &self,
        piece: &str,
        range: Range<usize>,
        original: &dyn Fn(Range<usize>) -> Range<usize>,
        segment: &Segment<'_>,
        out: &mut Encoded,
    ) -> Result<()> {
        let middle = range.start + piece[range.clone()].chars().next().map_or(0, char::len_utf8);
        for half in [range.start..middle, middle..range.end] {
            let text = &piece[half.clone()];
            for (id, range) in self.tokens_of(text)? {
                let inner = half.start + range.start..half.start + range.end;
                // Tokens for single bytes of a character have no text of their own.
                let inside = piece.get(inner.clone()).unwrap_or_default();
                if !segment.mints(id, inside) {
                    out.push(id, original(inner));
                } else if inside.chars().nth(1).is_none() {
                    return Err(segment.cannot_avoid(id, text));
                } else {
                    self.encode_minting(piece, inner, original, segment, out)?;
                }
            }
        }
        Ok(())
    }
}

/// Runs a stage on a text. A stage of `tokenizers` panics where its settings in the file contradict
/// each other, and that becomes an error of this text.
fn run<T>(stage: &str, text: &str, work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T> {
    let reason = match caught(work) {
        Ok(Ok(done)) => return Ok(done),
        Ok(Err(error)) => error.to_string(),
        Err(panic) => format!(
            "its {stage} panicked: {panic}\nhint: check that the tokenizer.json is complete"
        ),
    };
    let mut short: String = text.chars().take(60).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    Err(Error::Encode { text: short, reason })
}
