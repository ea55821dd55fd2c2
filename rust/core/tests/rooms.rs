//! The rooms of the core are used in one order, without a circle: the order that `src/lib.rs` shows.
//!
//! All paths from `crate::`, `super::` and `self::` are followed, in `use` and wherever else they
//! stand. Tests may look at any room.
#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::Path;

/// A file of the core by its path below `src`, and its text.
type Source = (String, String);

#[test]
fn each_room_uses_only_rooms_that_stand_before_it() {
    let sources = sources();
    let order = order_in(&lib());
    assert_eq!(faults(&order, &sources), Vec::<String>::new());
    let used: usize = sources.iter().map(|source| other_rooms(source).len()).sum();
    assert!(used > 50, "only {used} uses of another room were found");
}

#[test]
fn the_order_names_every_room_once() {
    let order = order_in(&lib());
    let rooms: BTreeSet<String> =
        sources().iter().map(|(path, _)| module_of(path).remove(0)).collect();
    let named: BTreeSet<String> = order.iter().cloned().collect();
    assert_eq!((&named, order.len()), (&rooms, rooms.len()));
}

/// The negative control: however a later room is reached, the checker says so.
#[test]
fn a_use_of_a_later_room_is_reported() {
    let late = "uses late, which stands after it";
    let cases = [
        ("early.rs", "use crate::late::Thing;", late),
        ("early.rs", "use super::late::Thing;", late),
        ("early.rs", "use self::super::late::Thing;", late),
        ("early.rs", "pub(crate) use crate::{early::A, late::{B, C}};", late),
        ("early.rs", "use crate::late as other;", late),
        ("early.rs", "fn f(a: &crate::late::Thing) {}", late),
        ("early.rs", "fn f() { let x = Vec::<crate::late::Thing>::new(); }", late),
        ("early.rs", "const C: char = '\"'; use crate::late::Thing; const D: char = '\"';", late),
        ("early.rs", "fn f<'a>(a: &'a str) -> crate::late::Thing<'a> {}", late),
        ("early.rs", "#[cfg(test)]\nmod tests { fn f() {} }\nuse crate::late::Thing;", late),
        ("early.rs", "#[cfg(test)]\nuse crate::late::{A, B};\nuse crate::late::Thing;", late),
        ("early/mod.rs", "use super::late::Thing;", late),
        ("early/inner.rs", "use super::super::late::Thing;", late),
        ("early/inner.rs", "use super::{Own, super::late::Thing};", late),
        ("early/inner/deep.rs", "use super::super::super::late::Thing;", late),
        ("early.rs", "use crate::*;", "names crate::*, which is in no room"),
        ("early.rs", "use crate as all;", "names crate::self, which is in no room"),
        ("early.rs", "use crate::{self as all};", "names crate::self, which is in no room"),
        ("early.rs", "use crate::Thing;", "names crate::Thing, which is in no room"),
        ("strange.rs", "", "is in no room that the order names"),
    ];
    let order = ["early", "late"].map(str::to_owned);
    for (path, text, fault) in cases {
        let found = faults(&order, &[(path.to_owned(), text.to_owned())]);
        assert_eq!(found.len(), 1, "{path}: {text}: {found:?}");
        assert!(found[0].ends_with(fault), "{path}: {text}: {found:?}");
    }
}

#[test]
fn what_is_no_use_of_a_later_room_is_not_reported() {
    let cases = [
        ("late.rs", "use crate::early::Thing; use super::early::{A, B};"),
        ("early/mod.rs", "use crate::early::inner::Thing; mod inner; pub use inner::late;"),
        ("early/inner.rs", "use super::late::Thing;"),
        ("early/inner/deep.rs", "use super::super::late::Thing; pub(super) fn f() {}"),
        (
            "early.rs",
            "// crate::late::A\n/* crate::late::B /* crate::late::C */ */\n/// [`crate::late::D`]",
        ),
        ("early.rs", "fn f() { g(\"\\\" crate::late::A\", r#\"\" crate::late::B\"#); }"),
        ("early.rs", "#[cfg(test)]\nmod tests {\n    use crate::late::Thing;\n}"),
        ("early.rs", "#[cfg(test)]\nuse crate::late::{A, B};\nfn f() {}"),
        ("early.rs", "#[cfg(test)]\n#[derive(Debug)]\nstruct A(crate::late::Thing);"),
        ("early/tests.rs", "use crate::late::Thing;"),
        ("early/inner/tests/deep.rs", "use crate::late::Thing;"),
    ];
    let order = ["early", "late"].map(str::to_owned);
    for (path, text) in cases {
        let found = faults(&order, &[(path.to_owned(), text.to_owned())]);
        assert_eq!(found, Vec::<String>::new(), "{path}: {text}");
    }
}

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))
}

fn lib() -> String {
    std::fs::read_to_string(folder().join("lib.rs")).unwrap()
}

/// All files but `lib.rs`, which is the house.
fn sources() -> Vec<Source> {
    let mut sources = Vec::new();
    let mut folders = vec![folder().to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let below = path.strip_prefix(folder()).unwrap();
                let names = below.iter().map(|name| name.to_str().unwrap());
                let text = std::fs::read_to_string(&path).unwrap();
                sources.push((names.collect::<Vec<_>>().join("/"), text));
            }
        }
    }
    sources.retain(|(path, _)| path != "lib.rs");
    sources.sort();
    sources
}

/// The rooms in the list that the documentation of the crate shows.
fn order_in(lib: &str) -> Vec<String> {
    let items = lib.lines().filter_map(|line| line.strip_prefix("//! - `"));
    items.map(|item| item.split_once('`').unwrap().0.to_owned()).collect()
}

/// `encode/fast/mod.rs` is the module `encode::fast`.
fn module_of(path: &str) -> Vec<String> {
    let names = path.strip_suffix(".rs").unwrap().split('/');
    names.filter(|name| *name != "mod").map(str::to_owned).collect()
}

fn faults(order: &[String], sources: &[Source]) -> Vec<String> {
    let place = |room: &str| order.iter().position(|other| other == room);
    let mut faults = Vec::new();
    for source in sources {
        let (path, room) = (&source.0, &module_of(&source.0)[0]);
        let Some(own) = place(room) else {
            faults.push(format!("{path} is in no room that the order names"));
            continue;
        };
        for (line, other) in other_rooms(source) {
            match place(&other) {
                None => faults.push(format!(
                    "{path}:{line}: {room} names crate::{other}, which is in no room"
                )),
                Some(place) if place > own => faults
                    .push(format!("{path}:{line}: {room} uses {other}, which stands after it")),
                Some(_) => {}
            }
        }
    }
    faults
}

/// What a file names of the crate beyond its own room, with the line of each.
fn other_rooms((path, text): &Source) -> BTreeSet<(usize, String)> {
    if path.split('/').any(|name| name == "tests" || name == "tests.rs") {
        return BTreeSet::new();
    }
    let module = module_of(path);
    let tokens = without_tests(&tokens(text));
    let word = |at: usize| tokens.get(at).map_or("", |token| token.1.as_str());
    let mut named = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let is_path = ["crate", "super", "self"].contains(&word(at)) && word(at + 1) == "::";
        if is_path || (word(at) == "crate" && word(at + 1) == "as") {
            let mut paths = Vec::new();
            let line = tokens[at].0;
            follow(&word, &mut at, module.clone(), &mut paths);
            named.extend(paths.into_iter().map(|path| (line, path)));
        } else {
            at += 1;
        }
    }
    // The crate itself is a way to every room.
    let room = |path: Vec<String>| path.into_iter().next().unwrap_or_else(|| "self".to_owned());
    let rooms = named.into_iter().map(|(line, path)| (line, room(path)));
    rooms.filter(|(_, room)| *room != module[0]).collect()
}

/// Reads a path, or a tree of them, that begins in the module `from`.
fn follow<'a>(
    word: &impl Fn(usize) -> &'a str,
    at: &mut usize,
    mut from: Vec<String>,
    paths: &mut Vec<Vec<String>>,
) {
    loop {
        match word(*at) {
            "crate" => from.clear(),
            "super" => drop(from.pop()),
            "self" => {}
            "{" => {
                *at += 1;
                while !["}", ""].contains(&word(*at)) {
                    follow(word, at, from.clone(), paths);
                    // A name after `as`, and what stands between two paths.
                    while !["}", "", ","].contains(&word(*at)) {
                        *at += 1;
                    }
                    *at += usize::from(word(*at) == ",");
                }
                *at += 1;
                return;
            }
            "<" => break,
            name => from.push(name.to_owned()),
        }
        *at += 1;
        if word(*at) != "::" {
            break;
        }
        *at += 1;
    }
    paths.push(from);
}

/// Leaves out every item behind `#[cfg(test)]`.
fn without_tests(tokens: &[(usize, String)]) -> Vec<(usize, String)> {
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
fn tokens(text: &str) -> Vec<(usize, String)> {
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
