//! The rooms of the core are used in one order, without a circle: the order that `src/lib.rs` shows. The
//! files of each room use each other without a circle, too.
//!
//! All paths from `crate::`, `super::` and `self::` are followed, in `use` and wherever else they
//! stand. Tests may look at any room.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "support/sources.rs"]
mod sources;

use std::collections::BTreeSet;

use sources::{Source, is_test, lib, module_of, sources, tokens, without_tests};

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
fn anything_but_a_use_of_a_later_room_is_not_reported() {
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

#[test]
fn no_file_leads_back_to_itself() {
    assert_eq!(circles(&sources()), Vec::<String>::new());
}

/// The negative control for circles, of two files and of three.
#[test]
fn a_circle_between_files_of_one_room_is_reported() {
    let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
    let cases: [&[(&str, &str)]; 5] = [
        &[("a/x.rs", "use super::y::Y;"), ("a/y.rs", "use crate::a::x::X;")],
        &[("a/x.rs", "use super::y::{self, Y};"), ("a/y.rs", "fn f(x: &super::x::X) {}")],
        &[("a/mod.rs", "mod x;\nuse x::X;"), ("a/x.rs", "use super::CONSTANT;")],
        &[("a.rs", "mod x;\nfn f() { x::g() }"), ("a/x.rs", "use super::f;")],
        &[
            ("a/x.rs", "use super::y::Y;"),
            ("a/y.rs", "use super::z::Z;"),
            ("a/z.rs", "use super::x::X;"),
        ],
    ];
    for case in cases {
        let sources: Vec<Source> = case.iter().map(|(path, text)| file(path, text)).collect();
        let found = circles(&sources);
        assert_eq!(found.len(), case.len(), "{case:?}: {found:?}");
        assert!(found[0].ends_with("which leads back to it"), "{found:?}");
    }
    let others: [&[(&str, &str)]; 4] = [
        &[("a/x.rs", "use super::y::Y;"), ("a/y.rs", "use super::z::Z;")],
        &[("a/mod.rs", "mod x;\npub use x::X;"), ("a/x.rs", "use super::A;")],
        &[("a/mod.rs", "mod x;"), ("a/x.rs", "use super::A;\nimpl A {}")],
        &[("a/x.rs", "use super::y::Y;"), ("a/y.rs", "#[cfg(test)]\nuse super::x::X;")],
    ];
    for case in others {
        let sources: Vec<Source> = case.iter().map(|(path, text)| file(path, text)).collect();
        assert_eq!(circles(&sources), Vec::<String>::new(), "{case:?}");
    }
}

/// The rooms in the list that the documentation of the crate shows.
fn order_in(lib: &str) -> Vec<String> {
    let items = lib.lines().filter_map(|line| line.strip_prefix("//! - `"));
    items.map(|item| item.split_once('`').unwrap().0.to_owned()).collect()
}

fn faults(order: &[String], sources: &[Source]) -> Vec<String> {
    let position_of = |room: &str| order.iter().position(|other| other == room);
    let mut faults = Vec::new();
    for source in sources {
        let (path, room) = (&source.0, &module_of(&source.0)[0]);
        let Some(own) = position_of(room) else {
            faults.push(format!("{path} is in no room that the order names"));
            continue;
        };
        for (line, other) in other_rooms(source) {
            match position_of(&other) {
                None => faults.push(format!(
                    "{path}:{line}: {room} names crate::{other}, which is in no room"
                )),
                Some(position) if position > own => faults
                    .push(format!("{path}:{line}: {room} uses {other}, which stands after it")),
                Some(_) => {}
            }
        }
    }
    faults
}

/// The other rooms that a file names, with the line of each.
fn other_rooms(source: &Source) -> BTreeSet<(usize, String)> {
    let module = module_of(&source.0);
    // The crate itself is a way to every room.
    let room = |path: Vec<String>| path.into_iter().next().unwrap_or_else(|| "self".to_owned());
    let rooms = paths_in(source, &[]).into_iter().map(|(line, path)| (line, room(path)));
    rooms.filter(|(_, room)| *room != module[0]).collect()
}

/// The circles among the files of each room: every use that leads back to the file that it is in.
fn circles(sources: &[Source]) -> Vec<String> {
    let modules: Vec<Vec<String>> = sources.iter().map(|(path, _)| module_of(path)).collect();
    let file_of = |path: &[String]| {
        let named = (1..=path.len()).rev();
        named.into_iter().find_map(|len| modules.iter().position(|module| *module == path[..len]))
    };
    let uses: Vec<BTreeSet<(usize, usize)>> = (sources.iter().enumerate())
        .map(|(own, source)| {
            let paths = paths_in(source, &modules).into_iter();
            let files = paths.filter_map(|(line, path)| Some((line, file_of(&path)?)));
            files.filter(|(_, file)| *file != own && modules[*file][0] == modules[own][0]).collect()
        })
        .collect();
    let leads_to = |from: usize, to: usize| {
        let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(file) = next.pop() {
            if reached.insert(file) {
                next.extend(uses[file].iter().map(|(_, file)| *file));
            }
        }
        reached.contains(&to)
    };
    let mut circles = Vec::new();
    for (own, files) in uses.iter().enumerate() {
        for (line, file) in files.iter().filter(|(_, file)| leads_to(*file, own)) {
            let (path, other) = (&sources[own].0, &sources[*file].0);
            circles.push(format!("{path}:{line} uses {other}, which leads back to it"));
        }
    }
    circles
}

/// The paths of modules and items that a file names, from the top of the crate, with the line of each.
///
/// A path from `crate`, `super` or `self` counts wherever it stands, and one from a child of the file's
/// own module if `modules` has that child. A file may pass on its children's names (`pub use child::A`)
/// though they use its own: it does nothing with them.
fn paths_in((path, text): &Source, modules: &[Vec<String>]) -> Vec<(usize, Vec<String>)> {
    if is_test(path) {
        return Vec::new();
    }
    let module = module_of(path);
    let children: BTreeSet<&str> = modules
        .iter()
        .filter_map(|other| other.strip_prefix(&module[..])?.first())
        .map(String::as_str)
        .collect();
    let tokens = without_tests(&tokens(text));
    let word = |at: usize| tokens.get(at).map_or("", |token| token.1.as_str());
    let mut named = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let is_first = at == 0 || word(at - 1) != "::";
        let is_passed_on = at > 1 && word(at - 1) == "use" && ["pub", ")"].contains(&word(at - 2));
        let is_child = children.contains(word(at)) && is_first && !is_passed_on;
        let from_here = ["crate", "super", "self"].contains(&word(at)) || is_child;
        if (from_here && word(at + 1) == "::") || (word(at) == "crate" && word(at + 1) == "as") {
            let mut paths = Vec::new();
            let line = tokens[at].0;
            follow(&word, &mut at, module.clone(), &mut paths);
            named.extend(paths.into_iter().map(|path| (line, path)));
        } else {
            at += 1;
        }
    }
    named
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
                    // Skips a name after `as`, and everything else between two paths.
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
