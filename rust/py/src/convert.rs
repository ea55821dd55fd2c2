//! Texts, modes and typed parts, as the core has them.

use std::collections::HashSet;

use abut_core::{AddedMode, Overrides, Part, PartKind, Provenance};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyList, PySequence, PyString, PyTuple, PyType};

use crate::error;

/// Added tokens that belong to another class, from any iterable of str.
pub fn overrides_in(
    control: Option<&Bound<'_, PyAny>>,
    textual: Option<&Bound<'_, PyAny>>,
) -> PyResult<Overrides> {
    let set = |values: Option<&Bound<'_, PyAny>>| -> PyResult<HashSet<String>> {
        match values {
            None => Ok(HashSet::new()),
            Some(one) if one.is_instance_of::<PyString>() => Err(PyTypeError::new_err(
                "control and textual take a list of added tokens, got one str",
            )),
            Some(values) => values.try_iter()?.map(|value| value?.extract()).collect(),
        }
    };
    Ok(Overrides { control: set(control)?, textual: set(textual)? })
}

/// The UTF-8 of a `str`, borrowed.
pub fn text_in<'a>(value: &'a Bound<'_, PyString>) -> PyResult<&'a str> {
    value.to_str().map_err(|_| {
        error::tokenizer(
            "the text has a lone surrogate, which is half of a character and has no UTF-8\n\
             hint: decode bytes with errors=\"replace\", or text.encode(\"utf-8\", \"replace\")"
                .to_owned(),
        )
    })
}

/// Texts, in order.
pub fn texts_in<'py>(texts: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyString>>> {
    let one = texts.is_instance_of::<PyString>() || texts.is_instance_of::<PyBytes>();
    if one || texts.cast::<PySequence>().is_err() {
        return Err(PyTypeError::new_err(format!(
            "texts must be a list of str, got {}\nhint: pass [text] for one text, or list(texts)",
            type_name(texts)
        )));
    }
    let text = |(index, text): (usize, PyResult<Bound<'py, PyAny>>)| {
        text?.cast_into::<PyString>().map_err(|e| {
            let got = type_name(&e.into_inner());
            PyTypeError::new_err(format!("texts must be a list of str, got {got} at index {index}"))
        })
    };
    texts.try_iter()?.enumerate().map(text).collect()
}

/// A text and the mode for the control tokens that it spells.
pub fn mode_of<'a>(value: &'a Bound<'_, PyString>, added: &str) -> PyResult<(&'a str, AddedMode)> {
    let mode = mode_in(added)?;
    if mode == AddedMode::Parse && value.is_instance(content_class(value.py())?)? {
        return Err(PyTypeError::new_err(
            "abut.Content never becomes control tokens, but added=\"parse\" asks for them\n\
             hint: pass added=\"text\", or a plain str if you trust the text",
        ));
    }
    Ok((text_in(value)?, mode))
}

fn scaffold_class(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static SCAFFOLD: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    SCAFFOLD.import(py, "abut.parts", "Scaffold")
}

fn content_class(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static CONTENT: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    CONTENT.import(py, "abut.parts", "Content")
}

pub fn mode_in(added: &str) -> PyResult<AddedMode> {
    match added {
        "parse" => Ok(AddedMode::Parse),
        "text" => Ok(AddedMode::Text),
        "raise" => Ok(AddedMode::Raise),
        other => Err(PyValueError::new_err(format!(
            "added={other:?}: expected \"parse\", \"text\" or \"raise\""
        ))),
    }
}

/// Provenance that text can have; only `append_sampled` writes "sampled", only parts "scaffold".
pub fn provenance_in(name: &str) -> PyResult<Provenance> {
    match name {
        "prompt" => Ok(Provenance::Prompt),
        "env" => Ok(Provenance::Env),
        "close" => Ok(Provenance::Close),
        other => Err(PyValueError::new_err(format!(
            "provenance={other:?}: expected \"prompt\", \"env\" or \"close\""
        ))),
    }
}

/// Typed parts, with the Python strings that they borrow from.
pub struct Parts<'py>(Vec<(PartKind, Bound<'py, PyString>)>);

impl<'py> Parts<'py> {
    pub fn new(parts: &Bound<'py, PyAny>) -> PyResult<Self> {
        let (scaffold, content) = (scaffold_class(parts.py())?, content_class(parts.py())?);
        let ordered = parts.is_instance_of::<PyList>() || parts.is_instance_of::<PyTuple>();
        if !ordered {
            return Err(PyTypeError::new_err(format!(
                "parts must be a list of abut.Scaffold and abut.Content, got {}",
                type_name(parts)
            )));
        }
        parts
            .try_iter()?
            .map(|part| {
                let part = part?;
                // Content first: a part that is both is not trusted.
                let kind = if part.is_instance(content)? {
                    PartKind::Content
                } else if part.is_instance(scaffold)? {
                    PartKind::Scaffold
                } else {
                    return Err(PyTypeError::new_err(format!(
                        "a part must be abut.Scaffold or abut.Content, got {}: only scaffold may \
                         become control tokens, so say which it is",
                        type_name(&part)
                    )));
                };
                Ok((kind, part.cast_into::<PyString>()?))
            })
            .collect::<PyResult<Vec<_>>>()
            .map(Self)
    }

    pub fn borrow(&self) -> PyResult<Vec<Part<'_>>> {
        self.0.iter().map(|(kind, text)| Ok(Part { kind: *kind, text: text_in(text)? })).collect()
    }
}

pub fn type_name(value: &Bound<'_, PyAny>) -> String {
    value.get_type().name().map_or_else(|_| "an object".to_owned(), |name| name.to_string())
}
