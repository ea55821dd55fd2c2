//! Pickling, so that values can be sent to other processes.
//!
//! Invariant: a pickle holds everything that reading it needs, because the files of the first process may
//! not exist there. A value is pickled as the core's JSON, a tokenizer as its file and overrides.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The result of `__reduce__`: a function and its arguments.
pub type Reduced<'py, A> = (Bound<'py, PyAny>, A);

/// The static method that reads what `reduce` wrote; each class that pickles has one.
const READ: &str = "_unpickled";

/// Reduces to the class's own reader, called with `arguments`.
pub fn reduce<'py, A>(this: &Bound<'py, PyAny>, arguments: A) -> PyResult<Reduced<'py, A>> {
    Ok((this.get_type().getattr(READ)?, arguments))
}

/// A value of the core as JSON: the one argument of a reader.
pub type Written<'py> = (Bound<'py, PyBytes>,);

/// Writes a value for `read`.
pub fn written<'py>(py: Python<'py>, value: &impl Serialize) -> PyResult<Written<'py>> {
    let json = serde_json::to_vec(value).map_err(|e| PyValueError::new_err(e.to_string()))?;
    Ok((PyBytes::new(py, &json),))
}

/// Reads a value that `written` wrote.
pub fn read<T: DeserializeOwned>(written: &[u8]) -> PyResult<T> {
    serde_json::from_slice(written)
        .map_err(|e| PyValueError::new_err(format!("not a pickle of this version of abut: {e}")))
}

/// The error of a class that does not pickle.
pub fn refused(why: &str, hint: &str) -> PyErr {
    PyTypeError::new_err(format!("{why}\nhint: {hint}"))
}
