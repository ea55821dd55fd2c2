//! Offsets at which a pre-tokenizer always cuts, or at least goes on as on a new text.

use once_cell::race::OnceBox;
use regex_syntax::hir::ClassUnicode;
use serde_json::Value;

use super::pattern::{Pattern, assigned_before_14, has};
use crate::byte_chars::byte_chars;
use crate::file::{kind, stages};

/// The pattern that `ByteLevel` splits by. It is not in the file: `tokenizers` holds it in its code.
const BYTE_LEVEL: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const WHITESPACE: &str = r"\w+|[^\w\s]+";

/// The stages of a pre-tokenizer.
#[derive(Debug)]
pub(crate) struct Pieces(Vec<Stage>);

/// One stage of a pre-tokenizer, as far as it matters at one offset.
#[derive(Debug)]
pub(super) enum Stage {
    Split {
        by: By,
        behavior: Behavior,
    },
    /// A space becomes this character.
    Space(char),
    /// Each byte becomes a character.
    Bytes(Box<[char; 256]>),
    /// Writes this before every piece that does not begin with it.
    Prefix(char),
}

/// The pattern of a split.
#[derive(Debug, Clone)]
pub(super) enum By {
    Pattern(Box<Pattern>),
    // Single characters.
    Char(char),
    Whitespace,
    Numeric,
    Punctuation,
}

/// The pieces that a split makes of its matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Behavior {
    /// Each match is a piece of its own, or is removed.
    Apart,
    WithPrevious,
    WithNext,
    Contiguous,
}

/// An offset at which the pre-tokenizer treats both sides separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Junction {
    /// True if a piece ends there.
    pub cut: bool,
    /// The characters that meet there, as the model sees them.
    pub left: char,
    pub right: char,
}

impl Pieces {
    /// `Err` names the pre-tokenizer that has no such offsets.
    pub fn new(config: &Value) -> Result<Self, String> {
        let mut found = Vec::new();
        for (index, config) in stages(config, "pretokenizers").into_iter().enumerate() {
            let name = kind(config).unwrap_or("?");
            let refuse = |what: &str| format!("pre-tokenizer {name}{what}");
            let flag = |key: &str, default: bool| {
                config.get(key).and_then(Value::as_bool).unwrap_or(default)
            };
            let pattern = |expression: &str| {
                let pattern = Pattern::new(expression);
                pattern.map(|p| By::Pattern(Box::new(p))).ok_or_else(|| refuse(" of this pattern"))
            };
            let split = |by, behavior| Stage::Split { by, behavior };
            match name {
                "Whitespace" => found.push(split(pattern(WHITESPACE)?, Behavior::Apart)),
                "WhitespaceSplit" => {
                    found.push(split(By::Whitespace, Behavior::Apart));
                }
                "BertPreTokenizer" => {
                    found.push(split(By::Whitespace, Behavior::Apart));
                    found.push(split(By::Punctuation, Behavior::Apart));
                }
                "Punctuation" => {
                    let behavior = behavior(config, refuse)?;
                    found.push(split(By::Punctuation, behavior));
                }
                "Digits" => {
                    let apart = flag("individual_digits", false);
                    let behavior = if apart { Behavior::Apart } else { Behavior::Contiguous };
                    found.push(split(By::Numeric, behavior));
                }
                "CharDelimiterSplit" => {
                    let delimiter = character(config, "delimiter").ok_or_else(|| refuse(""))?;
                    found.push(split(By::Char(delimiter), Behavior::Apart));
                }
                "Split" => {
                    let written = config.get("pattern").unwrap_or(&Value::Null);
                    let string = written.get("String").and_then(Value::as_str);
                    let regex = written.get("Regex").and_then(Value::as_str);
                    let by = match (string, regex) {
                        (Some(text), _) => pattern(&regex_syntax::escape(text))?,
                        (_, Some(expression)) => pattern(expression)?,
                        _ => return Err(refuse(" without a pattern")),
                    };
                    let behavior = behavior(config, refuse)?;
                    if flag("invert", false) && behavior != Behavior::Apart {
                        return Err(refuse(" that is inverted and merges"));
                    }
                    found.push(split(by, behavior));
                }
                "ByteLevel" => {
                    if flag("add_prefix_space", true) && index > 0 {
                        found.push(Stage::Prefix(' '));
                    }
                    if flag("use_regex", true) {
                        found.push(split(pattern(BYTE_LEVEL)?, Behavior::Apart));
                    }
                    found.push(Stage::Bytes(Box::new(byte_chars())));
                }
                "Metaspace" => {
                    let space = character(config, "replacement").ok_or_else(|| refuse(""))?;
                    found.push(Stage::Space(space));
                    let scheme = config.get("prepend_scheme").and_then(Value::as_str);
                    if index > 0 && scheme.is_none_or(|scheme| scheme == "always") {
                        found.push(Stage::Prefix(space));
                    }
                    if flag("split", true) {
                        found.push(split(By::Char(space), Behavior::WithNext));
                    }
                }
                _ => return Err(refuse("")),
            }
        }
        Ok(Self(found))
    }

    pub(super) fn stages(&self) -> &[Stage] {
        &self.0
    }

    /// True if some stage cuts.
    pub fn can_cut(&self) -> bool {
        self.0.iter().any(|stage| matches!(stage, Stage::Split { .. }))
    }

    /// True if the model sees bytes.
    pub fn are_bytes(&self) -> bool {
        self.0.iter().any(|stage| matches!(stage, Stage::Bytes(_)))
    }

    /// The junction between two normalized characters; `None` where a split may reach over them or
    /// depends on later text. With `may_end` an added token may begin there, so the text on the left
    /// may end there or go on.
    pub fn between(&self, mut left: char, mut right: char, mut may_end: bool) -> Option<Junction> {
        let mut cut = false;
        for stage in &self.0 {
            match stage {
                Stage::Split { by, behavior } => {
                    // `\s+(?!\S)` matches the same before whitespace as at the end of the text. Before
                    // any other character it gives one space back.
                    if may_end && by.looks_ahead() && !right.is_whitespace() {
                        return None;
                    }
                    match by.cuts(*behavior, left, right)? {
                        Verdict::Cut => cut = true,
                        Verdict::NoCut => {}
                        // The next stage sees either the whole text or a piece that ends here.
                        Verdict::Unsettled => may_end = true,
                    }
                }
                Stage::Space(to) => {
                    left = if left == ' ' { *to } else { left };
                    right = if right == ' ' { *to } else { right };
                }
                Stage::Bytes(chars) => {
                    let mut bytes = [0; 4];
                    let last = left.encode_utf8(&mut bytes).len() - 1;
                    left = chars[usize::from(bytes[last])];
                    right.encode_utf8(&mut bytes);
                    right = chars[usize::from(bytes[0])];
                }
                // A text that restarts here would get a prefix that it does not have inside.
                Stage::Prefix(prefix) if !cut && right != *prefix => return None,
                Stage::Prefix(_) => {}
            }
        }
        Some(Junction { cut, left, right })
    }
}

/// The effect of a split at an offset that no match reaches over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Cut,
    NoCut,
    /// Text further on decides.
    Unsettled,
}

impl By {
    /// `None` where a match may reach over the two.
    fn cuts(&self, behavior: Behavior, left: char, right: char) -> Option<Verdict> {
        if let Self::Pattern(pattern) = self {
            if !(is_settled(left) && is_settled(right)) || pattern.joins(left, right) {
                return None;
            }
        }
        let (left, right) = (self.matches(left), self.matches(right));
        let cuts = match behavior {
            Behavior::Apart if left == Some(true) || right == Some(true) => Some(true),
            Behavior::Apart => left.and(right),
            Behavior::WithPrevious => left,
            Behavior::WithNext => right,
            Behavior::Contiguous => left.zip(right).map(|(left, right)| left != right),
        };
        Some(match cuts {
            Some(true) => Verdict::Cut,
            Some(false) => Verdict::NoCut,
            None => Verdict::Unsettled,
        })
    }

    fn looks_ahead(&self) -> bool {
        matches!(self, Self::Pattern(pattern) if pattern.looks_ahead())
    }

    /// True if a match holds this character wherever it stands, false if no match ever does; `None`
    /// where its neighbours decide.
    pub(super) fn matches(&self, c: char) -> Option<bool> {
        match self {
            Self::Pattern(pattern) if pattern.always_matches(c) => Some(true),
            Self::Pattern(pattern) => (!pattern.may_match(c)).then_some(false),
            Self::Char(only) => Some(c == *only),
            Self::Whitespace => Some(c.is_whitespace()),
            Self::Numeric => Some(c.is_numeric()),
            Self::Punctuation if c.is_ascii() => Some(c.is_ascii_punctuation()),
            // Which characters beyond ASCII are punctuation depends on the version of Unicode.
            Self::Punctuation => (c.is_alphanumeric() || c.is_whitespace()).then_some(false),
        }
    }
}

fn behavior(config: &Value, refuse: impl Fn(&str) -> String) -> Result<Behavior, String> {
    match config.get("behavior").and_then(Value::as_str) {
        Some("Removed" | "Isolated") => Ok(Behavior::Apart),
        Some("MergedWithPrevious") => Ok(Behavior::WithPrevious),
        Some("MergedWithNext") => Ok(Behavior::WithNext),
        Some("Contiguous") => Ok(Behavior::Contiguous),
        other => Err(refuse(&format!(" with behavior {other:?}"))),
    }
}

fn character(config: &Value, key: &str) -> Option<char> {
    config.get(key).and_then(Value::as_str).and_then(|text| text.chars().next())
}

/// True if every version of Unicode in use puts the character into the same classes. These are the
/// characters of Unicode 13: none of them has moved since in a way that a pattern sees. Oniguruma in
/// `tokenizers` 0.23 uses Unicode 16, and `regex-syntax` may be newer or older.
fn is_settled(c: char) -> bool {
    static OLD: OnceBox<ClassUnicode> = OnceBox::new();
    c.is_ascii() || has(OLD.get_or_init(|| Box::new(assigned_before_14())), c)
}

#[cfg(test)]
mod tests {
    use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
    use tokenizers::{
        OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, SplitDelimiterBehavior,
    };

    use super::*;

    /// The characters that Oniguruma puts into a class, out of `all`.
    fn of_onig(class: &str, all: &str) -> Vec<char> {
        let pattern = SplitPattern::Regex(class.to_owned());
        // Inverted: what does not match is removed.
        let split = Split::new(pattern, SplitDelimiterBehavior::Removed, true).expect("a class");
        let mut pieces = PreTokenizedString::from(all);
        split.pre_tokenize(&mut pieces).expect("it splits");
        let kept = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
        kept.into_iter().flat_map(|(piece, _, _)| piece.chars()).collect()
    }

    #[test]
    fn settled_characters_are_in_the_same_classes_for_both_engines() {
        let all: String = ('\0'..=char::MAX).filter(|c| is_settled(*c)).collect();
        let settled: std::collections::BTreeSet<char> = all.chars().collect();
        let general = ["L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "Mn", "N", "Nd", "P", "S", "Z"];
        let classes = general.map(|name| format!(r"\p{{{name}}}"));
        let others = [r"\s", r"\d", r"\p{Han}", r"[^\s\p{L}\p{N}]"].map(str::to_owned);
        for class in classes.iter().chain(&others) {
            let hir = regex_syntax::parse(class).expect("a class").into_kind();
            let regex_syntax::hir::HirKind::Class(regex_syntax::hir::Class::Unicode(own)) = hir
            else {
                panic!("{class} is no class");
            };
            let own = own.ranges().iter().flat_map(|range| range.start()..=range.end());
            let own: Vec<char> = own.filter(|c| settled.contains(c)).collect();
            let onig = of_onig(class, &all);
            let differ = own.iter().filter(|c| onig.binary_search(c).is_err());
            let differ: Vec<_> =
                differ.chain(onig.iter().filter(|c| own.binary_search(c).is_err())).collect();
            assert!(differ.is_empty(), "{class}: {differ:?}");
        }
    }
}
