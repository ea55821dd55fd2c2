//! `abut.Seam`.

use abut_core::{Merge, Seam};
use numpy::PyArray1;
use pyo3::prelude::*;

use crate::arrays::ids_out;
use crate::pickle::{Reduced, Written, read, reduce, written};

/// The verdict on one seam: whether it is exact, and the tokens that an append wrote.
#[pyclass(name = "Seam", module = "abut", frozen, eq)]
#[derive(PartialEq, Eq)]
pub struct PySeam(pub Seam);

#[pymethods]
impl PySeam {
    /// How abut decided the verdict; `merged` if the canonical tokens differ across the seam.
    #[getter]
    fn kind(&self) -> &'static str {
        self.0.kind.as_str()
    }

    /// True if the append did not have to change any earlier token.
    #[getter]
    fn exact(&self) -> bool {
        self.0.exact
    }

    /// How many tokens to the left of the seam were replaced.
    #[getter]
    fn drop(&self) -> usize {
        self.0.drop
    }

    /// `(T,)` int64: the new tokens, which follow the old ones without the last `drop`.
    #[getter]
    fn ids<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        ids_out(py, &self.0.ids)
    }

    /// `(T,)` int64: the canonical tokens, from the first that differs to the next hard token.
    ///
    /// Set only if the left side was frozen, because otherwise the canonical tokens are written.
    /// None if nothing differs, and if there are no canonical tokens: the seam is inside a
    /// character, or sampled bytes spell text that the vocabulary has only as a control token.
    #[getter]
    fn canonical_ids<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyArray1<i64>>> {
        self.0.canonical_ids.as_deref().map(|ids| ids_out(py, ids))
    }

    /// Both sides of a `merged` seam; None if there are no canonical tokens.
    #[getter]
    fn merge(&self) -> Option<PyMerge> {
        self.0.merge.clone().map(PyMerge)
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Reduced<'py, Written<'py>>> {
        reduce(slf, written(slf.py(), &slf.get().0)?)
    }

    #[staticmethod]
    fn _unpickled(state: &[u8]) -> PyResult<Self> {
        read(state).map(Self)
    }

    fn __repr__(&self) -> String {
        let canonical = self
            .0
            .canonical_ids
            .as_ref()
            .map_or_else(String::new, |ids| format!(", canonical_ids={ids:?}"));
        format!(
            "Seam(kind={:?}, exact={}, drop={}, ids={:?}{canonical})",
            self.0.kind.as_str(),
            if self.0.exact { "True" } else { "False" },
            self.0.drop,
            self.0.ids,
        )
    }
}

/// The tokens around a merged seam, from the first that differs to the last.
#[pyclass(name = "Merge", module = "abut.trajectory", frozen, eq)]
#[derive(PartialEq, Eq)]
pub struct PyMerge(Merge);

#[pymethods]
impl PyMerge {
    /// `(L,)` int64: last tokens of the left side alone; empty if only the right changes.
    #[getter]
    fn left_ids<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        ids_out(py, &self.0.left_ids)
    }

    /// `(R,)` int64: tokens of the right side alone; the first, if the left changes too.
    #[getter]
    fn right_ids<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        ids_out(py, &self.0.right_ids)
    }

    /// `(M,)` int64: the tokens of both sides encoded together.
    #[getter]
    fn merged_ids<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        ids_out(py, &self.0.merged_ids)
    }

    /// The text of `left_ids`.
    #[getter]
    fn left_text(&self) -> &str {
        &self.0.left_text
    }

    /// The text of `right_ids`.
    #[getter]
    fn right_text(&self) -> &str {
        &self.0.right_text
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Reduced<'py, Written<'py>>> {
        reduce(slf, written(slf.py(), &slf.get().0)?)
    }

    #[staticmethod]
    fn _unpickled(state: &[u8]) -> PyResult<Self> {
        read(state).map(Self)
    }

    fn __repr__(&self) -> String {
        let Merge { left_ids, right_ids, merged_ids, left_text, right_text } = &self.0;
        format!(
            "Merge({left_text:?} {left_ids:?} + {right_text:?} {right_ids:?} -> {merged_ids:?})"
        )
    }
}
