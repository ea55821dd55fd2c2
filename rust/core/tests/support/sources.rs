//! The sources as text and as words, for tests about them.
#![allow(dead_code)]

use std::path::{Path, PathBuf};

/// A file by its path, and its text.
pub type Source = (String, String);

/// The text of `lib.rs`.
pub fn lib() -> String {
    std::fs::read_to_string(below_rust("core/src/lib.rs")).unwrap()
}

/// All files of the core but `lib.rs`, which names the rooms.
pub fn sources() -> Vec<Source> {
    let mut sources = files_in("core/src");
    sources.retain(|(path, _)| path != "lib.rs");
    sources
}

fn below_rust(path: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(path)
}

/// The Rust files in a folder below `rust/`, by their paths below that folder.
pub fn files_in(folder: &str) -> Vec<Source> {
    let top = below_rust(folder);
    let mut sources = Vec::new();
    let mut folders = vec![top.clone()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let below = path.strip_prefix(&top).unwrap();
                let names = below.iter().map(|name| name.to_str().unwrap());
                let text = std::fs::read_to_string(&path).unwrap();
                sources.push((names.collect::<Vec<_>>().join("/"), text));
            }
        }
    }
    sources.sort();
    sources
}

/// True if a file below `src` holds tests alone.
pub fn is_test(path: &str) -> bool {
    path.split('/').any(|name| name == "tests" || name == "tests.rs")
}

/// `encode/fast/mod.rs` is the module `encode::fast`.
pub fn module_of(path: &str) -> Vec<String> {
    let names = path.strip_suffix(".rs").unwrap().split('/');
    names.filter(|name| *name != "mod").map(str::to_owned).collect()
}

/// Leaves out every item behind `#[cfg(test)]`.
pub fn without_tests(tokens: &[(usize, String)]) -> Vec<(usize, String)> {
    const MARK: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let rest = &tokens[at..];
        let marked =
            rest.len() > MARK.len() && rest.iter().zip(MARK).all(|(token, mark)| token.1 == mark);
        if marked {
            at += MARK.len();
            at += item_len(&tokens[at..]);
        } else {
            kept.push(tokens[at].clone());
            at += 1;
        }
    }
    kept
}

/// An item ends with `;`, or with the brace that closes its body.
fn item_len(tokens: &[(usize, String)]) -> usize {
    let mut depth = 0;
    for (index, (_, word)) in tokens.iter().enumerate() {
        match word.as_str() {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth -= 1,
            _ => {}
        }
        let is_group_of_use = tokens.get(index + 1).is_some_and(|next| next.1 == ";");
        if depth == 0 && (word == ";" || (word == "}" && !is_group_of_use)) {
            return index + 1;
        }
    }
    tokens.len()
}

/// The words and signs of a source with their lines, without comments and without what stands in
/// quotes.
pub fn tokens(text: &str) -> Vec<(usize, String)> {
    let mut tokens = Vec::new();
    let (mut rest, mut line) = (text, 1);
    while let Some(c) = rest.chars().next() {
        let word = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
        let hashes = rest[word..].chars().take_while(|c| *c == '#').count();
        let is_raw = ["r", "br", "cr"].contains(&&rest[..word]);
        let len = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            comment_len(rest)
        } else if is_raw && rest[word + hashes..].starts_with('"') {
            let inside = word + hashes + 1;
            let end = format!("\"{}", "#".repeat(hashes));
            inside + rest[inside..].find(&end).unwrap() + end.len()
        } else if c == '"' {
            quoted_len(rest, '"')
        } else if c == '\'' && !is_lifetime(rest) {
            quoted_len(rest, '\'')
        } else {
            let len = if rest.starts_with("::") { 2 } else { word.max(c.len_utf8()) };
            if !c.is_whitespace() {
                tokens.push((line, rest[..len].to_owned()));
            }
            len
        };
        line += rest[..len].matches('\n').count();
        rest = &rest[len..];
    }
    tokens
}

/// `'a` without a quote behind it.
fn is_lifetime(text: &str) -> bool {
    let mut chars = text.chars().skip(1);
    chars.next().is_some_and(|c| c.is_alphabetic() || c == '_') && chars.next() != Some('\'')
}

fn quoted_len(text: &str, quote: char) -> usize {
    let mut escaped = true;
    for (at, c) in text.char_indices() {
        if c == quote && !escaped {
            return at + 1;
        }
        escaped = (c == '\\' && !escaped) && at > 0;
    }
    text.len()
}

/// Comments nest.
fn comment_len(text: &str) -> usize {
    let (mut at, mut depth) = (0, 0);
    while at < text.len() {
        let (step, change) = match text.get(at..at + 2) {
            Some("/*") => (2, 1),
            Some("*/") => (2, -1),
            _ => (1, 0),
        };
        at += step;
        depth += change;
        if depth == 0 {
            break;
        }
    }
    at
}
