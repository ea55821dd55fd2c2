//! One name for one type, and doc comments that begin with their subject.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "support/sources.rs"]
mod sources;

use std::collections::BTreeMap;

use sources::{Source, files_in, is_test, sources, tokens, without_tests};

#[test]
fn no_struct_enum_or_trait_of_the_core_has_the_name_of_another() {
    let types = types(&sources());
    assert!(types.len() > 100, "only {} types were found", types.len());
    assert_eq!(twice(types), Vec::<String>::new());
}

#[test]
fn a_name_that_occurs_twice_is_reported() {
    let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
    let sources = [
        file("a.rs", "pub struct One; enum Two { A }\n#[cfg(test)]\nstruct Three;"),
        file("b.rs", "fn f() {\n    struct Two;\n}\ntrait Three {}"),
        file("a/tests.rs", "struct One;"),
    ];
    assert_eq!(twice(types(&sources)), ["Two: a.rs:1, b.rs:2"]);
}

#[test]
fn doc_comments_begin_with_their_subject() {
    let folders = ["core/src", "core/tests", "core/benches", "py/src", "fuzz/fuzz_targets"];
    let sources: Vec<Source> = folders.into_iter().flat_map(files_in).collect();
    assert_eq!(without_subject(&sources), Vec::<String>::new());
}

#[test]
fn a_doc_comment_without_a_subject_is_reported() {
    let text = "//! What a file is.\n\n/// Whether it is.\n/// Who knows.\nfn f() {\n    /// The sum.\n    /// What of it.\n    // Whether or not.\n}\n/// Whatever.\n/// Of one.\n";
    let found = without_subject(&[("a.rs".to_owned(), text.to_owned())]);
    assert_eq!(found, ["a.rs:1: What a file is.", "a.rs:3: Whether it is."]);
    let text = "/// Of one batch.\nstruct A;\n\n/// That of B.\nstruct C;\n";
    assert_eq!(without_subject(&[("a.rs".to_owned(), text.to_owned())]).len(), 2);
}

/// The positions of the types that are not of tests, by name.
fn types(sources: &[Source]) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, text) in sources.iter().filter(|(path, _)| !is_test(path)) {
        for pair in without_tests(&tokens(text)).windows(2) {
            let [(line, keyword), (_, name)] = pair else { continue };
            if ["struct", "enum", "trait"].contains(&keyword.as_str()) {
                found.entry(name.clone()).or_default().push(format!("{path}:{line}"));
            }
        }
    }
    found
}

fn twice(types: BTreeMap<String, Vec<String>>) -> Vec<String> {
    let several = types.into_iter().filter(|(_, found)| found.len() > 1);
    several.map(|(name, found)| format!("{name}: {}", found.join(", "))).collect()
}

/// The doc comments that begin with a word that names nothing.
fn without_subject(sources: &[Source]) -> Vec<String> {
    const OPENINGS: [&str; 6] = ["What ", "Whether ", "Who ", "Those ", "That ", "Of one "];
    let mut found = Vec::new();
    for (path, text) in sources {
        let mut before = None;
        for (line, comment) in (1..).zip(text.lines().map(doc_comment)) {
            let is_first = before.is_none();
            if let Some(comment) = comment.filter(|_| is_first) {
                if OPENINGS.iter().any(|opening| comment.starts_with(opening)) {
                    found.push(format!("{path}:{line}: {comment}"));
                }
            }
            before = comment;
        }
    }
    found
}

/// The text of a line of a doc comment.
fn doc_comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    line.strip_prefix("///").or_else(|| line.strip_prefix("//!")).map(str::trim_start)
}
