//! `abut._native.read_completions`.

use abut_core::StopReason;
use numpy::{PyArray1, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error;

/// One choice in the reply of a vLLM server.
#[pyclass(name = "Choice", module = "abut._native", frozen)]
pub struct PyChoice {
    /// The number that the server gave the choice.
    #[pyo3(get)]
    index: usize,
    /// `(T,)` int64: the sampled ids, the stop token included.
    #[pyo3(get)]
    token_ids: Py<PyArray1<i64>>,
    /// `(T,)` float32, nats, aligned with `token_ids`.
    #[pyo3(get)]
    logprobs: Py<PyArray1<f32>>,
    /// `stop`, `length`, `abort`, …; None if the server did not give one.
    #[pyo3(get)]
    finish_reason: Option<String>,
    stop_reason: Option<StopReason>,
    /// The text as the server decoded it; None from `/inference/v1/generate`.
    #[pyo3(get)]
    text: Option<String>,
    /// `(P,)` int64: the ids that the engine received; None if the server omits them.
    #[pyo3(get)]
    prompt_token_ids: Option<Py<PyArray1<i64>>>,
}

#[pymethods]
impl PyChoice {
    /// The stop token or stop string; None for the end-of-sequence token.
    #[getter]
    fn stop_reason(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        Ok(match &self.stop_reason {
            None => None,
            Some(StopReason::Token(id)) => Some(id.into_pyobject(py)?.into_any().unbind()),
            Some(StopReason::Text(text)) => Some(text.into_pyobject(py)?.into_any().unbind()),
        })
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        format!(
            "Choice({}, {} tokens, finish_reason={})",
            self.index,
            self.token_ids.bind(py).len(),
            self.finish_reason.as_ref().map_or("None".to_owned(), |reason| format!("{reason:?}")),
        )
    }
}

/// Read a vLLM reply with ids and logprobs: `/v1/completions` or `/inference/v1/generate`.
///
/// Args:
///     body: the whole body of the reply.
///
/// Raises:
///     SamplerError: the body is not such a reply, ids or logprobs are missing, an id is not
///         valid, or the logprobs are not one possible number for each id; names the choice
///         and the index.
#[pyfunction]
#[pyo3(signature = (body, /))]
pub fn read_completions(py: Python<'_>, body: &Bound<'_, PyBytes>) -> PyResult<Vec<PyChoice>> {
    let bytes = body.as_bytes();
    let choices = py.detach(|| abut_core::read_completions(bytes)).map_err(|e| error::to_py(&e))?;
    let choices = choices.into_iter().map(|choice| PyChoice {
        index: choice.index,
        token_ids: PyArray1::from_vec(py, choice.token_ids).unbind(),
        logprobs: PyArray1::from_vec(py, choice.logprobs).unbind(),
        finish_reason: choice.finish_reason,
        stop_reason: choice.stop_reason,
        text: choice.text,
        prompt_token_ids: choice.prompt_token_ids.map(|ids| PyArray1::from_vec(py, ids).unbind()),
    });
    Ok(choices.collect())
}
