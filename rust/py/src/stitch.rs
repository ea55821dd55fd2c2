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

/// The way in which one recorded call follows another.
#[pyclass(name = "Transition", module = "abut.trajectory", frozen)]
pub struct PyTransition(Transition);

#[pymethods]
impl PyTransition {
    /// Index of the call, as recorded.
    #[getter]
    fn call(&self) -> usize {
        self.0.call
    }

    /// The call that it extends, leaves or repeats.
    ///
    /// None where no recorded sample shares its history, and where several calls could be it.
    #[getter]
    fn parent(&self) -> Option<usize> {
        self.0.parent
    }

    /// Index in `Stitched.chains`; None where it was dropped or quarantined.
    #[getter]
    fn chain(&self) -> Option<usize> {
        self.0.chain
    }

    /// The verdict.
    ///
    /// - clean: it extends its parent exactly and goes on with its chain; or it is the first call
    ///   with this prompt, which has no parent.
    /// - realigned: it goes on with its parent's chain, in which the differing tail of the
    ///   parent's sample is context now.
    /// - forked: it does not go on with its parent's chain. It begins one of its own, or was
    ///   dropped (`chain` is None). Where its prompt is that of another call, `parent` is that
    ///   call's, which may be None.
    /// - quarantined: it extends more than one call exactly, or a call that is quarantined.
    #[getter]
    fn kind(&self) -> &'static str {
        self.0.kind.as_str()
    }

    /// The first token that differs from what stood there; None where nothing differs.
    ///
    /// An index from 0 in the prompt, or its length where it ends inside a sample.
    #[getter]
    fn token(&self) -> Option<usize> {
        self.0.token
    }

    /// A guess at why it differs.
    ///
    /// None where nothing differs, and where several calls are left at `token`; then `left` and
    /// `right` are None, too.
    #[getter]
    fn cause(&self) -> Option<&'static str> {
        self.0.cause.map(abut_core::Cause::as_str)
    }

    /// The text around `token` in what stood there; None without `tokenizer`.
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

/// Recorded calls, joined: in all chains together, no sampled token is trained twice.
#[pyclass(name = "Stitched", module = "abut", frozen)]
pub struct PyStitched {
    chains: Chains,
    transitions: Transitions,
    dropped: abut_core::Dropped,
}

#[pymethods]
impl PyStitched {
    /// One row each, in the order in which their first calls were recorded.
    #[getter]
    fn chains(&self, py: Python<'_>) -> Vec<Py<PyColumns>> {
        self.chains.iter().map(|chain| chain.clone_ref(py)).collect()
    }

    /// One for each call with a sample, as recorded.
    #[getter]
    fn transitions(&self, py: Python<'_>) -> Vec<Py<PyTransition>> {
        self.transitions.iter().map(|transition| transition.clone_ref(py)).collect()
    }

    /// The numbers of calls in no chain: nothing was sampled, cut off, no certain parent.
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

/// Join calls that another program recorded. Linear in the tokens given.
///
/// Args:
///     calls: `(prompt_ids, completion_ids, logprobs)` of each, in any order; contiguous int64
///         arrays are read in place.
///     on_drift: the handling of a prompt that differs from what stood there. "error": refuse the
///         recording; "truncate": the chain ends before the call, which is dropped with what
///         extends it; "split": the call begins a chain; "realign": the differing tail of a sample
///         becomes context, and elsewhere as "split".
///     tokenizer: for texts and better guesses at causes; it decides nothing.
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
