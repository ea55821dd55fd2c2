//! `abut.stitch`.

use abut_core::{Call, OnDrift, Transition};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arrays::Numbers;
use crate::columns::PyColumns;
use crate::convert::type_name;
use crate::error;
use crate::pickle::{Reduced, Written, read, reduce, written};
use crate::tokenizer::PyTokenizer;

/// How one recorded call follows another.
#[pyclass(name = "Transition", module = "abut.trajectory", frozen)]
pub struct PyTransition(Transition);

#[pymethods]
impl PyTransition {
    /// The position of the call in the recording.
    #[getter]
    fn call(&self) -> usize {
        self.0.call
    }

    /// The position of the call that this one extends, leaves or repeats.
    ///
    /// None if no recorded sample shares the call's history, or if several calls could be the
    /// parent.
    #[getter]
    fn parent(&self) -> Option<usize> {
        self.0.parent
    }

    /// The position in `Stitched.chains`; None if the call was dropped or quarantined.
    #[getter]
    fn chain(&self) -> Option<usize> {
        self.0.chain
    }

    /// The verdict.
    ///
    /// - clean: the call extends its parent exactly and continues the parent's chain; or it is
    ///   the first call with this prompt, without a parent.
    /// - realigned: the call continues its parent's chain, in which the tail of the parent's
    ///   sample that differs has become context.
    /// - forked: the call does not continue its parent's chain. It begins a new chain, or was
    ///   dropped (`chain` is None). If another call has the same prompt, `parent` is the parent
    ///   of that call, which may be None.
    /// - quarantined: the call extends more than one call exactly, or a quarantined call.
    #[getter]
    fn kind(&self) -> &'static str {
        self.0.kind.as_str()
    }

    /// The position of the first token that differs; None if nothing differs.
    ///
    /// Counted from 0 in the prompt; the prompt's length if it ends inside a sample.
    #[getter]
    fn token(&self) -> Option<usize> {
        self.0.token
    }

    /// Why the prompt probably differs.
    ///
    /// None if nothing differs, or if several calls differ at `token`; then `left` and `right`
    /// are None, too.
    #[getter]
    fn cause(&self) -> Option<&'static str> {
        self.0.cause.map(abut_core::Cause::as_str)
    }

    /// The recorded text around `token`; None without `tokenizer`.
    #[getter]
    fn left(&self) -> Option<&str> {
        self.0.texts.as_ref().map(|(left, _)| left.as_str())
    }

    /// The text around `token` in the prompt; None without `tokenizer`.
    #[getter]
    fn right(&self) -> Option<&str> {
        self.0.texts.as_ref().map(|(_, right)| right.as_str())
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Reduced<'py, Written<'py>>> {
        reduce(slf, written(slf.py(), &slf.get().0)?)
    }

    #[staticmethod]
    fn _unpickled(state: &[u8]) -> PyResult<Self> {
        read(state).map(Self)
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

type Chains = Vec<Py<PyColumns>>;
type Transitions = Vec<Py<PyTransition>>;

/// Recorded calls, joined into chains; no sampled token is trained in more than one chain.
#[pyclass(name = "Stitched", module = "abut", frozen)]
pub struct PyStitched {
    chains: Chains,
    transitions: Transitions,
    dropped: abut_core::Dropped,
}

#[pymethods]
impl PyStitched {
    /// One row for each chain, in the order in which the first calls were recorded.
    #[getter]
    fn chains(&self, py: Python<'_>) -> Vec<Py<PyColumns>> {
        self.chains.iter().map(|chain| chain.clone_ref(py)).collect()
    }

    /// One transition for each call with a sample, in the order of the recording.
    #[getter]
    fn transitions(&self, py: Python<'_>) -> Vec<Py<PyTransition>> {
        self.transitions.iter().map(|transition| transition.clone_ref(py)).collect()
    }

    /// How many calls are in no chain: empty sample, truncated, or no certain parent.
    #[getter]
    fn dropped<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        dict.set_item("empty", self.dropped.empty)?;
        dict.set_item("truncated", self.dropped.truncated)?;
        dict.set_item("quarantined", self.dropped.quarantined)?;
        Ok(dict)
    }

    fn __reduce__<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<Reduced<'py, (Chains, Transitions, Written<'py>)>> {
        let (py, this) = (slf.py(), slf.get());
        reduce(slf, (this.chains(py), this.transitions(py), written(py, &this.dropped)?))
    }

    #[staticmethod]
    fn _unpickled(
        chains: Chains,
        transitions: Transitions,
        dropped: Written<'_>,
    ) -> PyResult<Self> {
        Ok(Self { chains, transitions, dropped: read(dropped.0.as_bytes())? })
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

/// Join calls that another program recorded; the time is linear in the number of tokens.
///
/// Args:
///     calls: `(prompt_ids, completion_ids, logprobs)` of each call, in any order; contiguous
///         int64 arrays are read without a copy.
///     on_drift: what to do if a prompt differs from the recorded tokens. "error": raise an
///         error; "truncate": end the chain before the call, and drop the call and all that
///         extend it; "split": begin a new chain with the call; "realign": turn the tail of a
///         sample that differs into context, and otherwise do the same as "split".
///     tokenizer: adds texts and better causes to the verdicts; it does not change the
///         chains.
///
/// Returns:
///     The chains, one row each, and a verdict on each call.
///
/// Raises:
///     TrajectoryError: a call is malformed: an empty prompt, a negative id, or logprobs that are
///         not one finite number per sampled id.
///     SeamError: with `on_drift="error"`, a prompt differs or has more than one possible parent.
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
    let tokenizer = tokenizer.map(|tokenizer| tokenizer.get().core.clone());
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
