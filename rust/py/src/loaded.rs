//! The tokenizers that this process has, each once.
//!
//! Invariant: a tokenizer never changes, so loading the same text with the same overrides again, from a
//! file, a string, a transformers tokenizer or a pickle, returns the object that exists. It is kept only
//! as long as it is in use.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyTuple};

use crate::tokenizer::PyTokenizer;

/// The tokenizer that was made of `source`, if there is one.
///
/// All are compared: they are few, texts of other lengths differ at once, and hashing a text of 10 MB
/// would take a tenth of the time of loading it.
pub fn known<'py>(source: &Bound<'py, PyTuple>) -> PyResult<Option<Bound<'py, PyTokenizer>>> {
    let py = source.py();
    let all = py.get_type::<PyList>().call1((tokenizers(py)?,))?;
    for tokenizer in all.try_iter()? {
        let tokenizer = tokenizer?.cast_into::<PyTokenizer>()?;
        if tokenizer.get().source.bind(py).eq(source)? {
            return Ok(Some(tokenizer));
        }
    }
    Ok(None)
}

/// The tokenizer to use: `made`, or that of a thread which was faster.
pub fn kept(made: Bound<'_, PyTokenizer>) -> PyResult<Bound<'_, PyTokenizer>> {
    let py = made.py();
    if let Some(other) = known(made.get().source.bind(py))? {
        return Ok(other);
    }
    tokenizers(py)?.call_method1("add", (&made,))?;
    Ok(made)
}

/// A `WeakSet`. Made with the module: a process that is forked while another thread makes it would
/// wait for that thread.
pub fn tokenizers(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static TOKENIZERS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let tokenizers = TOKENIZERS.get_or_try_init(py, || {
        let class = py.import("weakref")?.getattr("WeakSet")?;
        class.call0().map(Bound::unbind)
    })?;
    Ok(tokenizers.bind(py))
}
