//! The stages of a normalizer or pre-tokenizer, as they stand in the file.
//!
//! They are read as JSON, because the types of `tokenizers` keep fields private that matter here, such as
//! the pattern of a `Replace`.

use serde_json::Value;

/// The type of one stage of the file.
pub(crate) fn kind(value: &Value) -> Option<&str> {
    value.get("type").and_then(Value::as_str)
}

/// The stages of a normalizer (`list` is `normalizers`) or pre-tokenizer (`pretokenizers`), in
/// order, sequences unrolled.
pub(crate) fn stages<'a>(value: &'a Value, list: &str) -> Vec<&'a Value> {
    let inner = value.get(list).and_then(Value::as_array);
    // Files from before stages had a type have sequences without one.
    match inner.filter(|_| matches!(kind(value), None | Some("Sequence"))) {
        _ if value.is_null() => Vec::new(),
        Some(inner) => inner.iter().flat_map(|stage| stages(stage, list)).collect(),
        None => vec![value],
    }
}
