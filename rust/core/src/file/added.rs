//! Added tokens and their two classes.
//!
//! Ordinary text is meant to become *textual* added tokens: whitespace runs and HTML tags
//! (Gemma, GPT-NeoX, Phi). All others are *control* tokens: only scaffold may become one.

use std::collections::HashSet;

use serde::Deserialize;

/// An added token of the tokenizer, with its flags and its class.
#[expect(clippy::struct_excessive_bools, reason = "these are the flags of the file")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddedToken {
    /// The id.
    pub id: u32,
    /// The text that becomes the token.
    pub content: String,
    /// Matches only between non-word characters.
    pub single_word: bool,
    /// Swallows whitespace on its left.
    pub lstrip: bool,
    /// Swallows whitespace on its right.
    pub rstrip: bool,
    /// Is matched after normalization.
    pub normalized: bool,
    /// Special in the sense of transformers; it does not decide the class alone.
    pub special: bool,
    /// Control (true) or textual (false).
    pub control: bool,
}

/// Added tokens that belong to another class than their spelling says.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// Contents of tokens to treat as control tokens.
    pub control: HashSet<String>,
    /// Contents of tokens to treat as textual.
    pub textual: HashSet<String>,
}

/// As the token stands in the file.
#[expect(clippy::struct_excessive_bools, reason = "these are the flags of the file")]
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct RawAddedToken {
    /// Read because it must be one: `tokenizers` numbers added tokens itself.
    #[serde(default, rename = "id")]
    _id: u32,
    pub content: String,
    #[serde(default)]
    pub single_word: bool,
    #[serde(default)]
    pub lstrip: bool,
    #[serde(default)]
    pub rstrip: bool,
    #[serde(default)]
    pub normalized: bool,
    #[serde(default)]
    pub special: bool,
}

impl RawAddedToken {
    pub fn classified(self, id: u32, overrides: &Overrides) -> AddedToken {
        let control = if overrides.control.contains(&self.content) {
            true
        } else if overrides.textual.contains(&self.content) {
            false
        } else {
            self.special || !is_textual(&self.content)
        };
        AddedToken {
            id,
            control,
            content: self.content,
            single_word: self.single_word,
            lstrip: self.lstrip,
            rstrip: self.rstrip,
            normalized: self.normalized,
            special: self.special,
        }
    }
}

/// Whitespace only (`▁`, SentencePiece's space, counts), or a tag with the name of an HTML element.
fn is_textual(content: &str) -> bool {
    if content.chars().all(|c| c.is_whitespace() || c == '▁') {
        return true;
    }
    let Some(inside) = content.strip_prefix('<').and_then(|rest| rest.strip_suffix('>')) else {
        return false;
    };
    let name = inside.strip_prefix('/').or_else(|| inside.strip_suffix('/')).unwrap_or(inside);
    HTML_ELEMENTS.binary_search(&name.trim_end().to_ascii_lowercase().as_str()).is_ok()
}

/// The elements of the HTML standard, obsolete ones included, sorted. Without `s`: in a tokenizer
/// `<s>` and `</s>` are the ends of a sequence.
const HTML_ELEMENTS: [&str; 141] = [
    "a",
    "abbr",
    "acronym",
    "address",
    "applet",
    "area",
    "article",
    "aside",
    "audio",
    "b",
    "base",
    "basefont",
    "bdi",
    "bdo",
    "bgsound",
    "big",
    "blink",
    "blockquote",
    "body",
    "br",
    "button",
    "canvas",
    "caption",
    "center",
    "cite",
    "code",
    "col",
    "colgroup",
    "data",
    "datalist",
    "dd",
    "del",
    "details",
    "dfn",
    "dialog",
    "dir",
    "div",
    "dl",
    "dt",
    "em",
    "embed",
    "fieldset",
    "figcaption",
    "figure",
    "font",
    "footer",
    "form",
    "frame",
    "frameset",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "head",
    "header",
    "hgroup",
    "hr",
    "html",
    "i",
    "iframe",
    "img",
    "input",
    "ins",
    "isindex",
    "kbd",
    "keygen",
    "label",
    "legend",
    "li",
    "link",
    "listing",
    "main",
    "map",
    "mark",
    "marquee",
    "menu",
    "menuitem",
    "meta",
    "meter",
    "multicol",
    "nav",
    "nextid",
    "nobr",
    "noembed",
    "noframes",
    "noscript",
    "object",
    "ol",
    "optgroup",
    "option",
    "output",
    "p",
    "param",
    "picture",
    "plaintext",
    "pre",
    "progress",
    "q",
    "rb",
    "rp",
    "rt",
    "rtc",
    "ruby",
    "samp",
    "script",
    "search",
    "section",
    "select",
    "slot",
    "small",
    "source",
    "spacer",
    "span",
    "strike",
    "strong",
    "style",
    "sub",
    "summary",
    "sup",
    "svg",
    "table",
    "tbody",
    "td",
    "template",
    "textarea",
    "tfoot",
    "th",
    "thead",
    "time",
    "title",
    "tr",
    "track",
    "tt",
    "u",
    "ul",
    "var",
    "video",
    "wbr",
    "xmp",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn html_elements_are_sorted() {
        assert!(HTML_ELEMENTS.is_sorted());
    }

    #[test]
    fn whitespace_and_html_are_textual_and_all_else_is_control() {
        for text in ["\n\n", "  ", "▁▁", "<table>", "</td>", "<br/>", "<H1>"] {
            assert!(is_textual(text), "{text:?}");
        }
        for text in
            ["<s>", "</s>", "<|im_end|>", "<think>", "<tool_call>", "[INST]", "<unk>", "<>", "a"]
        {
            assert!(!is_textual(text), "{text:?}");
        }
    }
}
