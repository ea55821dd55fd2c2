//! `abut.stitch`.

use abut_core::{Call, OnDrift, Transition};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arrays::Numbers;
use crate::columns::PyColumns;
use crate::convert::type_name;
use crate::error;
use crate::tokenizer::PyTokenizer;

#[pyclass(name = "Transition", module = "abut", frozen)]
pub struct PyTransition(Transition);

#[pymethods]
impl PyTransition {
    #[getter]
    fn call(&self) -> usize {
        self.0.call
    }

    #[getter]
    fn parent(&self) -> Option<usize> {
        self.0.parent
    }

    #[getter]
    fn chain(&self) -> Option<usize> {
        self.0.chain
    }

    #[getter]
    fn kind(&self) -> &'static str {
        self.0.kind.as_str()
    }

    #[getter]
    fn token(&self) -> Option<usize> {
        self.0.token
    }

    #[getter]
    fn cause(&self) -> Option<&'static str> {
        self.0.cause.map(abut_core::Cause::as_str)
    }

    #[getter]
    fn left(&self) -> Option<&str> {
        self.0.texts.as_ref().map(|(left, _)| left.as_str())
    }

    #[getter]
    fn right(&self) -> Option<&str> {
        self.0.texts.as_ref().map(|(_, right)| right.as_str())
    }

    fn __repr__(&self) -> String {
        let or_none = |value: Option<usize>| value.map_or("None".to_owned(), |v| v.to_string());
        format!(
            "Transition(call={}, parent={}, chain={}, kind={:?}, token={}, cause={})",
            self.0.call,
            or_none(self.0.parent),
            or_none(self.0.chain),
            self.0.kind.as_str(),
            or_none(self.0.token),
            self.0.cause.map_or("None".to_owned(), |cause| format!("{:?}", cause.as_str())),
        )
    }
}

#[pyclass(name = "Stitched", module = "abut", frozen)]
pub struct PyStitched {
    chains: Vec<Py<PyColumns>>,
    transitions: Vec<Py<PyTransition>>,
    dropped: abut_core::Dropped,
}

#[pymethods]
impl PyStitched {
    #[getter]
    fn chains(&self, py: Python<'_>) -> Vec<Py<PyColumns>> {
        self.chains.iter().map(|chain| chain.clone_ref(py)).collect()
    }

    #[getter]
    fn transitions(&self, py: Python<'_>) -> Vec<Py<PyTransition>> {
        self.transitions.iter().map(|transition| transition.clone_ref(py)).collect()
    }

    #[getter]
    fn dropped<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        dict.set_item("empty", self.dropped.empty)?;
        dict.set_item("truncated", self.dropped.truncated)?;
        dict.set_item("quarantined", self.dropped.quarantined)?;
        Ok(dict)
    }

    fn __repr__(&self) -> String {
        format!(
            "Stitched({} chains, {} calls, dropped: {} empty, {} truncated, {} quarantined)",
            self.chains.len(),
            self.transitions.len() + self.dropped.empty,
            self.dropped.empty,
            self.dropped.truncated,
            self.dropped.quarantined,
        )
    }
}

#[pyfunction]
#[pyo3(signature = (calls, *, on_drift = "error", tokenizer = None))]
pub fn stitch(
    py: Python<'_>,
    calls: &Bound<'_, PyAny>,
    on_drift: &str,
    tokenizer: Option<&Bound<'_, PyTokenizer>>,
) -> PyResult<PyStitched> {
    let on_drift = match on_drift {
        "error" => OnDrift::Error,
        "truncate" => OnDrift::Truncate,
        "split" => OnDrift::Split,
        "realign" => OnDrift::Realign,
        other => {
            return Err(PyValueError::new_err(format!(
                "on_drift={other:?}: expected \"error\", \"truncate\", \"split\" or \"realign\""
            )));
        }
    };
    let recorded = calls
        .try_iter()?
        .enumerate()
        .map(|(index, call)| Recorded::new(index, &call?))
        .collect::<PyResult<Vec<_>>>()?;
    let calls = recorded.iter().map(Recorded::borrow).collect::<PyResult<Vec<_>>>()?;
    let tokenizer = tokenizer.map(|tokenizer| tokenizer.get().0.clone());
    let stitched = py
        .detach(|| abut_core::stitch(&calls, on_drift, tokenizer.as_deref()))
        .map_err(|e| error::to_py(&e))?;
    let chains = stitched.chains.into_iter();
    let transitions = stitched.transitions.into_iter();
    Ok(PyStitched {
        chains: chains
            .map(|row| Py::new(py, PyColumns::from_core(py, row)))
            .collect::<PyResult<_>>()?,
        transitions: transitions
            .map(|one| Py::new(py, PyTransition(one)))
            .collect::<PyResult<_>>()?,
        dropped: stitched.dropped,
    })
}

/// One call, its arrays borrowed where they are as the core reads them.
struct Recorded<'py> {
    prompt_ids: Numbers<'py, i64>,
    completion_ids: Numbers<'py, i64>,
    logprobs: Numbers<'py, f32>,
}

impl<'py> Recorded<'py> {
    fn new(index: usize, call: &Bound<'py, PyAny>) -> PyResult<Self> {
        let parts = call.try_iter().and_then(Iterator::collect::<PyResult<Vec<_>>>);
        let Ok([prompt_ids, completion_ids, logprobs]) = parts.as_deref() else {
            return Err(PyTypeError::new_err(format!(
                "call {index} must be (prompt_ids, completion_ids, logprobs), got {}",
                type_name(call)
            )));
        };
        Ok(Self {
            prompt_ids: Numbers::of(&format!("call {index}: prompt_ids"), prompt_ids)?,
            completion_ids: Numbers::of(&format!("call {index}: completion_ids"), completion_ids)?,
            logprobs: Numbers::of(&format!("call {index}: logprobs"), logprobs)?,
        })
    }

    fn borrow(&self) -> PyResult<Call<'_>> {
        Ok(Call {
            prompt_ids: self.prompt_ids.as_slice()?,
            completion_ids: self.completion_ids.as_slice()?,
            logprobs: self.logprobs.as_slice()?,
        })
    }
}
