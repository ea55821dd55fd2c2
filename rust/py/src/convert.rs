//! Python values in and out: NumPy arrays without a detour through lists, texts, typed parts.

use std::collections::HashSet;

use abut_core::{AddedMode, Error, Overrides, Part, PartKind, Provenance};
use numpy::{
    PyArray1, PyArrayDescrMethods, PyReadonlyArray1, PyUntypedArray, PyUntypedArrayMethods,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyList, PyMemoryView, PyString, PyTuple, PyType};

use crate::error;

/// Ids as the core has them. Arrays of int64 are read in place; other sequences of ints are taken
/// as they are.
pub fn ids_in(value: &Bound<'_, PyAny>, vocab_size: usize) -> PyResult<Vec<u32>> {
    let unknown = |position, id| error::to_py(&Error::UnknownId { position, id, vocab_size });
    int64_in(value)?
        .into_iter()
        .enumerate()
        .map(|(position, id)| u32::try_from(id).map_err(|_| unknown(position, id)))
        .collect()
}

/// Integers, one-dimensional; nothing that only can be read as integers, such as bool or bytes.
pub fn int64_in(value: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
    if let Ok(array) = value.extract::<PyReadonlyArray1<'_, i64>>() {
        return Ok(array.as_array().to_vec());
    }
    let wrong = || {
        PyTypeError::new_err(format!(
            "ids must be a one-dimensional array or list of ints, got {}",
            describe(value)
        ))
    };
    refuse_lookalikes(value).map_err(|()| wrong())?;
    value.extract::<Vec<i64>>().map_err(|_| wrong())
}

/// Logprobs as the core has them; None becomes NaN, which the core refuses by index.
pub fn logprobs_in(value: &Bound<'_, PyAny>) -> PyResult<Vec<f32>> {
    if let Ok(array) = value.extract::<PyReadonlyArray1<'_, f32>>() {
        return Ok(array.as_array().to_vec());
    }
    let wrong = || {
        PyTypeError::new_err(format!(
            "logprobs must be a one-dimensional array or list of floats, got {}",
            describe(value)
        ))
    };
    refuse_lookalikes(value).map_err(|()| wrong())?;
    let values = value.extract::<Vec<Option<f32>>>().map_err(|_| wrong())?;
    Ok(values.into_iter().map(|logprob| logprob.unwrap_or(f32::NAN)).collect())
}

/// Bytes and bools convert to numbers without complaint, and an empty array has any shape.
fn refuse_lookalikes(value: &Bound<'_, PyAny>) -> Result<(), ()> {
    let bytes = value.is_instance_of::<PyBytes>() || value.is_instance_of::<PyByteArray>();
    if bytes || value.is_instance_of::<PyMemoryView>() || value.is_instance_of::<PyString>() {
        return Err(());
    }
    if let Ok(array) = value.cast::<PyUntypedArray>() {
        return if array.ndim() == 1 && array.dtype().kind() != b'b' { Ok(()) } else { Err(()) };
    }
    let bools = value
        .try_iter()
        .map_err(|_| ())?
        .any(|item| item.is_ok_and(|item| item.is_instance_of::<PyBool>()));
    if bools { Err(()) } else { Ok(()) }
}

/// What a value is, as far as it helps: of an array its shape and dtype, of a list what it holds.
fn describe(value: &Bound<'_, PyAny>) -> String {
    if let Ok(array) = value.cast::<PyUntypedArray>() {
        return format!("an array of shape {:?} and dtype {}", array.shape(), array.dtype());
    }
    let odd = value.try_iter().ok().and_then(|items| {
        items
            .flatten()
            .enumerate()
            .find(|(_, item)| item.is_instance_of::<PyBool>() || item.extract::<i64>().is_err())
    });
    match odd {
        Some((index, item)) if value.is_instance_of::<PyList>() => {
            format!("a list with {} at index {index}", type_name(&item))
        }
        _ => type_name(value),
    }
}

/// Ids as an int64 array.
pub fn ids_out<'py>(py: Python<'py>, ids: &[u32]) -> Bound<'py, PyArray1<i64>> {
    PyArray1::from_iter(py, ids.iter().map(|&id| i64::from(id)))
}

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

/// A text and what becomes of the control tokens that it spells.
pub fn mode_of<'a>(value: &'a Bound<'_, PyString>, added: &str) -> PyResult<(&'a str, AddedMode)> {
    let mode = mode_in(added)?;
    if mode == AddedMode::Parse && value.is_instance(content_class(value.py())?)? {
        return Err(PyTypeError::new_err(
            "abut.Content never becomes control tokens, but added=\"parse\" asks for them\n\
             hint: pass added=\"text\", or plain str for text of your own",
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

fn mode_in(added: &str) -> PyResult<AddedMode> {
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
                // Content first: what is both is not trusted.
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
