//! A walk from an offset inside a text against the pieces that `tokenizers` makes of it.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tokenizers::{
    OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, PreTokenizerWrapper,
};

use super::*;
use crate::rng::Rng;

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK_REST: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const TIKTOKEN: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s*[\r\n]|\s+(?!\S)|\s";

fn split(pattern: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

/// Pre-tokenizers of models, and some of none: lazy, in two steps back, over several characters.
fn pre_tokenizers() -> Vec<Value> {
    let alone = [
        GPT2,
        LLAMA3,
        O200K,
        DEEPSEEK_REST,
        TIKTOKEN,
        r"\p{N}{1,3}",
        r"[a-z]+ ?",
        r"a+?b|a|'s",
        r"(?:ab)+c|a|b+",
        r"aab|\p{L}{2,4}|\s+(?!\S)",
    ];
    let sequence = |stages: &[Value]| json!({"type": "Sequence", "pretokenizers": stages});
    let digits = |apart: bool| json!({"type": "Digits", "individual_digits": apart});
    let mut all: Vec<Value> = alone.into_iter().map(split).collect();
    let kana = "[一-龥぀-ゟ゠-ヿ]+";
    all.push(sequence(&[split(r"\p{N}{1,3}"), split(kana), split(DEEPSEEK_REST)]));
    all.push(sequence(&[digits(true), split(GPT2)]));
    all.push(sequence(&[digits(false), split(O200K)]));
    all.push(sequence(&[split(r"[a-z]+ ?"), split(LLAMA3)]));
    all
}

/// Runs of few kinds of characters.
fn text(rng: &mut Rng, most: usize) -> String {
    const KINDS: [&str; 9] = [
        "ab",
        "abAB",
        "aAé中ſß",
        "12",
        " ",
        " \n",
        "!'/.",
        "😀\u{200d}\u{fe0f}\u{301}",
        "a's1 \n!",
    ];
    let mut text = String::new();
    while rng.below(4) > 0 {
        let kind: Vec<char> = KINDS[rng.below(KINDS.len())].chars().collect();
        text.extend((0..rng.below(most)).map(|_| kind[rng.below(kind.len())]));
    }
    text
}

/// Where the pieces of a text begin and end.
fn cuts(pre_tokenizer: &PreTokenizerWrapper, text: &str) -> BTreeSet<usize> {
    let mut pieces = PreTokenizedString::from(text);
    pre_tokenizer.pre_tokenize(&mut pieces).expect("it splits");
    let pieces = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
    pieces.into_iter().flat_map(|(_, (start, end), _)| [start, end]).collect()
}

#[test]
fn from_an_alignment_on_the_pieces_are_those_of_the_whole_text() {
    let (mut kept, mut differ) = (0, 0);
    for config in pre_tokenizers() {
        let oracle: PreTokenizerWrapper = serde_json::from_value(config.clone()).expect("valid");
        let path = Path::new(&Pieces::new(&config).expect("known")).expect("it can be walked");
        let (mut rng, mut met) = (Rng(3), 0);
        for _ in 0..4000 {
            let (x, y) = (text(&mut rng, 8), text(&mut rng, 6));
            let edges: Vec<usize> = x.char_indices().map(|(at, _)| at).collect();
            let Some(&at) = edges.get(rng.below(edges.len().max(1))) else { continue };
            let walk = |text: &str| {
                let mut walk = path.begin();
                text.chars().all(|c| path.step(&mut walk, c, None)).then_some(walk)
            };
            let (Some(whole), Some(tail)) = (walk(&x), walk(&x[at..])) else { continue };
            let all = cuts(&oracle, &(x.clone() + &y));
            let behind: BTreeSet<usize> = all.range(at + 1..).copied().collect();
            let alone = cuts(&oracle, &(x[at..].to_owned() + &y));
            let alone: BTreeSet<usize> = alone.range(1..).map(|cut| cut + at).collect();
            let alignment = whole.align(&tail).filter(|alignment| {
                let keeps = path.keeps(&whole, *alignment, &y);
                kept += usize::from(keeps && !alignment.is_in_first());
                alignment.is_in_first() || keeps
            });
            if let Some(alignment) = alignment {
                assert_eq!(behind, alone, "{config} {x:?} {at} {y:?}");
                assert!(
                    alignment.before > 0 || at == 0 || all.contains(&at),
                    "{config} {x:?} {at}"
                );
                // The piece begins where the walk says: so its length is known.
                let start = all.range(..=at).next_back().expect("the first begins at 0");
                assert_eq!(at - start, alignment.before, "{config} {x:?} {at} {y:?}");
                met += 1;
            } else {
                differ += usize::from(behind != alone);
            }
        }
        assert!(met > 30, "{config}: {met} met");
    }
    // Alignments behind an attempt that may still go on, and offsets at which the walks refuse to align.
    assert!(kept > 80 && differ > 300, "{kept} kept, {differ} differ");
}

#[test]
fn an_expression_that_could_be_read_in_another_way_is_not_followed() {
    let refused = [
        r"a?+a",
        r"\p{L}++a",
        r"\s++(?!\S)",
        r"a*",
        r"(?:a*)+",
        r"a$",
        r"^a",
        r"a(?=b)",
        r"(?i:ss)",
        r"(?:a|(?!\S))b?",
        r"a{0,1}+a",
    ];
    for expression in refused {
        assert!(Program::new(expression).is_none(), "{expression}");
    }
    for expression in [GPT2, LLAMA3, O200K, DEEPSEEK_REST, TIKTOKEN, r"\p{L}++\d", r"a+?b"] {
        assert!(Program::new(expression).is_some(), "{expression}");
    }
}
