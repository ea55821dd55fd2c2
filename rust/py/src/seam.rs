//! `abut.Seam`.

use abut_core::{Merge, Seam};
use numpy::PyArray1;
use pyo3::prelude::*;

use crate::arrays::ids_out;

#[pyclass(name = "Seam", module = "abut", frozen, eq)]
#[derive(PartialEq, Eq)]
pub struct PySeam(pub Seam);

#[pymethods]
impl PySeam {
    #[getter]
    fn kind(&self) -> &'static str {
        self.0.kind.as_str()
    }

    #[getter]
    fn exact(&self) -> bool {
        self.0.exact
    }

    #[getter]
    fn drop(&self) -> usize {
        self.0.drop
    }

    #[getter]
    fn ids<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        ids_out(py, &self.0.ids)
    }

    #[getter]
    fn canonical_ids<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyArray1<i64>>> {
        self.0.canonical_ids.as_deref().map(|ids| ids_out(py, ids))
    }

    #[getter]
    fn merge(&self) -> Option<PyMerge> {
        self.0.merge.clone().map(PyMerge)
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

#[pyclass(name = "Merge", module = "abut", frozen, eq)]
#[derive(PartialEq, Eq)]
pub struct PyMerge(Merge);

#[pymethods]
impl PyMerge {
    #[getter]
    fn left_ids<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        ids_out(py, &self.0.left_ids)
    }

    #[getter]
    fn right_ids<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        ids_out(py, &self.0.right_ids)
    }

    #[getter]
    fn merged_ids<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        ids_out(py, &self.0.merged_ids)
    }

    #[getter]
    fn left_text(&self) -> &str {
        &self.0.left_text
    }

    #[getter]
    fn right_text(&self) -> &str {
        &self.0.right_text
    }

    fn __repr__(&self) -> String {
        let Merge { left_ids, right_ids, merged_ids, left_text, right_text } = &self.0;
        format!(
            "Merge({left_text:?} {left_ids:?} + {right_text:?} {right_ids:?} -> {merged_ids:?})"
        )
    }
}
